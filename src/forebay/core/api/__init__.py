"""Commands and queries that the core accepts, and the replies it gives."""
