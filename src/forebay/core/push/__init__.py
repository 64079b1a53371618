"""Append messages: checks, room, push, update."""
