"""Load a shard from its records, and verify what a store holds."""
