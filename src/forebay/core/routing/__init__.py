"""From commands to shards: where tenants live, what spread tenants may ask, how replies are joined."""
