"""Checks of a push that need no state but the queue's options."""

from forebay.core.bounds import Limits
from forebay.core.errors import Invalid
from forebay.core.state import Attributes, Queue


def check_ordered(queue: Queue | None, attributes: Attributes) -> None:
    """Raise if a queue in strict order can't take messages with these attributes."""
    if queue is None or not queue.ordered:
        return
    for field in ("priority", "lifo", "depends_on"):
        if getattr(attributes, field):
            raise Invalid(field, "left out: the queue is ordered by partition; another queue can have it")


def check_payloads(limits: Limits, payloads: list[bytes]) -> list[int]:
    """Return the lengths of payloads; raise unless they may be pushed."""
    if not 1 <= len(payloads) <= limits.batch_max:
        raise Invalid("messages", f"a list of 1 to {limits.batch_max} payloads")
    lengths = list(map(len, payloads))
    if max(lengths) > limits.payload_bytes_max:
        raise Invalid("payload", f"at most {limits.payload_bytes_max} bytes; one has {max(lengths)}")
    return lengths
