"""``max_size``: how many more messages a queue may hold."""

from forebay.core.errors import Busy, Invalid
from forebay.core.state import Queue, fresh_count


def make_room(queue: Queue | None, count: int) -> None:
    """Reserve room for ``count`` messages; raise if the queue is full."""
    most = queue.options.max_size if queue is not None else 0
    if queue is None or not most or not count:
        return
    if count > most:
        raise Invalid("messages", f"at most {most}: queue {queue.name} holds no more, see its max_size")
    if count > queue.room:
        queue.room = most - size(queue)
        if count > queue.room:
            held = most - queue.room
            raise Busy(
                f"queue {queue.name} is full: it may hold {most} messages and has {held}; ack or cancel some"
            )
    queue.room -= count


def check_size(queue: Queue | None, count: int) -> None:
    """Raise if the queue has no room for ``count`` messages, without reserving it."""
    if queue is not None and queue.options.max_size and count > 0:
        queue.room = 0
        make_room(queue, count)
        queue.room = 0


def size(queue: Queue) -> int:
    """Count waiting, delayed, parked and active messages, in the group that has most."""
    if not queue.groups:
        logs_ = [partition.log for partition in queue.partitions.values()]
        withdrawn = sum(count for each in queue.partitions.values() for _, count, _ in each.withdrawn)
        return sum(log.end - log.first for log in logs_) - withdrawn
    return max(
        sum(
            fresh_count(track)
            + track.schedule.messages
            + track.unplanned
            + track.leased
            + track.partition.parked_messages
            for track in group.tracks.values()
        )
        for group in queue.groups.values()
    )
