"""Read-only queries: logs, counts, single messages, dead letters, metrics."""
