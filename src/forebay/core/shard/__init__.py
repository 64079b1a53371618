"""A shard: queues whose commands apply one after another."""
