"""The client for asyncio, from which ``sync`` is generated: see tools/make_sync.py."""
