"""Keys and values of a tenant."""
