"""DECIDES: state + command + now -> reply and records. Pure: no clock, no I/O; imports nothing of ours.

A folder is a room, and imports only rooms listed before it (tests/test_layers.py holds the order).
"""
