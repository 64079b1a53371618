"""ASKS: talks to a server."""
