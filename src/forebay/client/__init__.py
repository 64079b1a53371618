"""The clients of a server, and the worker and tasks built on them."""
