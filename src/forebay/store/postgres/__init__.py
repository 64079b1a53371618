"""The shared store: PostgreSQL."""
