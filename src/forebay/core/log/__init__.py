"""A partition's log: segments, their bodies, and partition numbers."""
