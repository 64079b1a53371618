"""The blocking client. All but ``link`` and ``pushing`` is generated from ``aio``: see tools/make_sync.py."""
