"""Asks a server: the clients, and what is made of them."""
