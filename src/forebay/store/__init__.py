"""KEEPS: records in, records out. Knows nothing of what they mean."""
