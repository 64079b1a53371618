"""What stages are, as plain as can be: lists of messages that wait to be put at the end of others."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from forebay.core.stages import adopt as stage_adopt
from forebay.core.state import PLAIN, Adopted, Attributes
from tests.sim.labels import Labels


@dataclass
class Message:
    payload: bytes
    attributes: Attributes = PLAIN
    key: str | None = None
    due_at: int = 0
    leased_until: int = 0
    """0 if nobody has it."""
    done: bool = False

    @property
    def labels(self) -> Labels:
        return self.attributes.headers, self.attributes.tags


@dataclass
class Stage:
    query: str | None
    batch: int
    expires_at: int
    run: int = 0
    parts: list[tuple[str, list[Message]]] = field(default_factory=list)
    """Partition and messages of each write."""

    @property
    def messages(self) -> list[Message]:
        return [message for _, part in self.parts for message in part]


@dataclass
class Queue:
    stored: bool = True
    logs: dict[str, list[Message]] = field(default_factory=dict)
    stages: dict[str, Stage] = field(default_factory=dict)
    adopted: dict[str, dict[int, Adopted]] = field(default_factory=dict)
    """By query, those that adopted last last."""

    def held(self) -> set[str]:
        """Keys of messages that have not ended."""
        every = (message for log in self.logs.values() for message in log)
        return {each.key for each in every if each.key is not None and not each.done}

    def open(self, now: int) -> list[tuple[str, int]]:
        """Partition and offset of everything that can be delivered."""
        return [
            (name, at)
            for name, log in self.logs.items()
            for at, each in enumerate(log)
            if not each.done and not each.leased_until and each.due_at <= now
        ]

    def advance(self, now: int) -> None:
        """What is over by now."""
        self.stages = {name: each for name, each in self.stages.items() if each.expires_at > now}
        for query, batches in list(self.adopted.items()):
            until = batches[max(batches)].until
            if until and until <= now:
                del self.adopted[query]
        for log in self.logs.values():
            for message in log:
                if message.leased_until <= now:
                    message.leased_until = 0

    def append(self, partition: str, message: Message, now: int) -> bool:
        """Whether a message was appended, and not one that holds its key already."""
        log = self.logs.setdefault(partition, [])
        if message.key is not None and message.key in self.held():
            return False
        message.due_at = now + message.attributes.delay_ms
        log.append(message)
        return True

    def refusal(self, query: str, batch: int, names: list[str], count: int | None) -> str | None:
        """Why an adoption that was not made before can't be; None if it can."""
        known = self.adopted.get(query)
        if known and batch < max(known):
            return "conflict"
        for name in names:
            if name not in self.stages:
                return "not_found"
            found = self.stages[name]
            if found.query is not None and (found.query, found.batch) != (query, batch):
                return "conflict"
        if count is not None and count != sum(len(self.stages[name].messages) for name in names):
            return "conflict"
        return None

    def adopt(self, names: list[str], now: int) -> tuple[list[tuple[str, int, int]], int]:
        """(partition, first offset, count) of what is there now, and how many were not appended."""
        begun: dict[str, int] = {}
        duplicates = 0
        for name in names:
            for partition, messages in self.stages.pop(name).parts:
                begun.setdefault(partition, len(self.logs.setdefault(partition, [])))
                duplicates += sum(not self.append(partition, message, now) for message in messages)
        ends = {name: len(self.logs[name]) for name in begun}
        ranges = [(name, first, ends[name] - first) for name, first in begun.items() if ends[name] > first]
        return ranges, duplicates

    def remember(self, query: str, batch: int, adopted: Adopted) -> None:
        batches = self.adopted.pop(query, {})
        self.adopted[query] = batches | {batch: replace(adopted, repeated=False)}
        if len(self.adopted[query]) > vars(stage_adopt)["ADOPTIONS_MAX"]:
            del self.adopted[query][min(self.adopted[query])]
        if len(self.adopted) > vars(stage_adopt)["QUERIES_MAX"]:
            brief = [each for each, known in self.adopted.items() if known[max(known)].until]
            gone = [each for each in brief if each != query] or list(self.adopted)
            del self.adopted[gone[0]]

    def drop_late(self, query: str, batch: int, names: list[str]) -> None:
        """What nobody can adopt any more goes."""
        for name, each in list(self.stages.items()):
            late = each.query == query and each.batch <= batch
            if late or (each.query is None and name in names):
                del self.stages[name]
