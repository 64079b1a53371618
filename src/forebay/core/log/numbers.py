"""Partition numbers: which number covers an offset, where it ends, when a new one is needed."""

from forebay.core.bounds import OFFSETS_PER_NUMBER
from forebay.core.ids import address
from forebay.core.state import Attributes, Partition, Queue


def number_of(partition: Partition, offset: int) -> tuple[int, int]:
    """Return the number that covers ``offset``, and the first offset under it."""
    numbers = partition.numbers
    if len(numbers) == 1:
        return numbers[0]
    for number, base in reversed(numbers):
        if base <= offset:
            return number, base
    raise AssertionError(f"offset {offset} is below the partition's first number")


def id_at(partition: Partition, offset: int) -> int:
    """Return the id, as a number, of the message at an offset."""
    number, base = number_of(partition, offset)
    return address(number, offset - base)


def end_of(partition: Partition, number: int) -> int:
    """Return the offset behind the last message under a number."""
    numbers = partition.numbers
    for at, (each, _) in enumerate(numbers):
        if each == number and at + 1 < len(numbers):
            return numbers[at + 1][1]
    return partition.log.end


def numbers_needed(queue: Queue | None, pushes: list[tuple[str, list[bytes], Attributes]]) -> int:
    """Count partition numbers that pushes may need: for new partitions, and full numbers."""
    known = queue.partitions if queue else {}
    return sum(name not in known or not fits(known[name], len(payloads)) for name, payloads, _ in pushes)


def fits(partition: Partition, count: int) -> bool:
    """Whether ``count`` more messages fit under the partition's number."""
    return partition.log.end - partition.numbers[-1][1] + count <= OFFSETS_PER_NUMBER
