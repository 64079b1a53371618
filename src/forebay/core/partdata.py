"""Small things that are known of a partition or a message in it."""

from msgspec import Struct


class Mark(Struct, frozen=True, gc=False, array_like=True):
    """Everything below an offset was settled by every group at an instant."""

    offset: int
    at: int


class Progress(Struct, frozen=True, gc=False, array_like=True):
    """How far the work on a message is, as its consumer says."""

    percent: int
    message: str
    at: int


class Retention(Struct, frozen=True, gc=False, array_like=True):
    """How long a partition keeps what, where that differs from its queue."""

    retention_ms: int | None = None
    completed_retention_ms: int | None = None
    partition_retention_ms: int | None = None
