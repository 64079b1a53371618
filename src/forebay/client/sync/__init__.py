"""The blocking client. All but ``connection`` and ``push_batcher`` is generated from ``aio``."""
