"""What a message has for itself, beside what it shares with others, and how repetitions are met."""

from msgspec import Struct

DROP, REPLACE, DEBOUNCE, THROTTLE = MODES = ("drop", "replace", "debounce", "throttle")
"""What a push does whose unique key is held.

drop        nothing: the message that holds the key is the one
replace     takes its place, if nobody has had it yet; else it is a message of its own that holds the key now
debounce    the same, and is delivered when no other came for a while
throttle    the key is not held until the message ends, but for a while: one message in that time
"""


class Particulars(Struct, frozen=True, gc=False):
    """What one message has for itself."""

    unique_key: str | None = None
    dedup: str = DROP
    window_ms: int = 0
    """Of debounce and throttle: the while."""
    max_ms: int = 0
    """Of debounce: how long a message may be put off in all; 0 is for ever."""
    job_id: str | None = None
    """Names the message as long as it is kept; pushed again, it is the same."""
    transaction_id: str | None = None
    """Known in its partition for the queue's dedup_window_ms; pushed again, it is the same."""
    keys: tuple[bytes, ...] = ()
    """Keys, packed, that get its payload if it dies."""
