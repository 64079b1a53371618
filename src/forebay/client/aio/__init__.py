"""The client for asyncio. What is in ``sync`` is generated from here: see tools/make_sync.py."""
