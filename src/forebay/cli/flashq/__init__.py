"""flashQ's data, read and imported."""
