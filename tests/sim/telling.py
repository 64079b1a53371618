"""What a pop that got too little leaves to be told of."""

from forebay.core.api import commands as c
from tests.sim.checks import TENANT, Checks


class Telling(Checks):
    """Pops that wait, and what holds them back."""

    def _before_pop(self, queue: str, group: str) -> None:
        """What was told before a pop looks is told for it."""
        known, found = self.model.queues.get(queue), self.engine.queues.get((TENANT, queue))
        if known is None or found is None or not (known.gated or known.ordered):
            return
        self._tick(queue)
        self._hear()

    def _note_look(self, queue: str, group: str, partition: str | None) -> None:
        """A pop got all there was, or too little."""
        known = self.model.queues[queue]
        if known.paused_until <= self.now and not self.engine.queues[TENANT, queue].groups[group].unplanned:
            names = [partition] if partition is not None else list(known.messages)
            self._looked.update((queue, group, name) for name in names)
            if (queue, group) in self._open and (known.gated or known.ordered):
                left = self.model.deliverable(queue, group, partition, self.now, {})
                self._open[queue, group].update(left)

    def _compare_deliverable(
        self, queue: str, group: str, partition: str | None, planned: dict[str, int]
    ) -> None:
        """As many messages are deliverable as should be; none if limits do not let as many go."""
        count = 1_000
        counted = self.model.counted(queue, group, partition, self.now, planned)
        counted = min(counted, self.model.allowed(queue, self.model.queues[queue].groups[group], self.now))
        assert self.engine.deliverable(c.Pop(TENANT, queue, group, count, count, partition)) == counted

    def _note_starved(
        self,
        queue: str,
        group: str,
        partition: str | None,
        min_count: int,
        got: int,
        count: int,
        allowed: int,
    ) -> None:
        """A pop was held back by limits: of its group, or of partitions in which something is left."""
        known = self.model.queues[queue]
        if known.paused_until > self.now:
            return
        self._hear()
        if allowed < min_count:
            self._starved[queue, group, None] = min_count
        elif got < min_count > 1 and self.model.limits_partitions(queue):
            self._short[queue, group, partition] = min_count
        elif got < min(count, allowed) and self.model.limits_partitions(queue):
            left = self.model.deliverable(queue, group, partition, self.now, {})
            reader = known.groups[group]
            for name in [name for name, found in left.items() if found]:
                if not self.model.partition_room(queue, reader, name, self.now):
                    self._starved[queue, group, name] = 1
