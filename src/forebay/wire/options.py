"""Options of queues, and what takes several forms in JSON: backoffs and rates."""

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from forebay.core.state import QueueOptions, Retention
from forebay.core.words import EXPONENTIAL


class BackoffIn(Struct, forbid_unknown_fields=True, gc=False):
    """How long to wait before a retry."""

    kind: str = EXPONENTIAL
    base_ms: int | None = None
    cap_ms: int | None = None
    jitter: float = 0.0
    steps: list[int] | None = None


AnyBackoff = int | list[int] | BackoffIn
"""A number is the base of an exponential backoff, 0 none; a list has a wait per retry."""


class RateIn(Struct, forbid_unknown_fields=True, gc=False):
    """So many messages (or bytes) within a time."""

    limit: int
    per_ms: int = 1_000
    burst: int = 0


AnyRate = int | RateIn
"""A number is a limit per second; 0 is no limit."""

RATES = ("rate_limit", "byte_limit", "partition_rate_limit")
_FORMS: dict[str, Any] = {
    "backoff": AnyBackoff,
    "limits": list[str],
    **dict.fromkeys(RATES, AnyRate | None),
    **dict.fromkeys(Retention.__struct_fields__, int | None),
}
"""Types of options that requests may give in other forms than the core has them."""

if TYPE_CHECKING:

    class OptionsIn(Struct):
        """Options of a queue. Those that are absent stay as they are."""

else:
    OptionsIn = msgspec.defstruct(
        "OptionsIn",
        [
            (each.name, _FORMS.get(each.name, each.type) | UnsetType, UNSET)
            for each in msgspec.structs.fields(QueueOptions)
        ],
        module=__name__,
        namespace={"__doc__": "Options of a queue. Those that are absent stay as they are."},
        forbid_unknown_fields=True,
        frozen=True,
        gc=False,
    )
