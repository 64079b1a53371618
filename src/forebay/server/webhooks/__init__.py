"""Outgoing webhooks, and the signatures of incoming ones."""
