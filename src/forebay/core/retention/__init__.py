"""Bounded disk use: sweep, merge, carve, remove."""
