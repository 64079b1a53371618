"""Penstock: a multi-tenant message and job queue."""

__version__ = "0.1.0"
