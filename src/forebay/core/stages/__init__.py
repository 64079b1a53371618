"""Staged writes: exactly-once batches, invisible until they are adopted."""
