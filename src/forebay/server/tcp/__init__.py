"""The TCP and Unix socket listener."""
