"""A worker as it told of itself, and the room that the workers of a tenant take in memory.

Workers of one kind name the same queues and tasks, so a tenant's room has each list of names once.
"""

from msgspec import Struct, field

from forebay.core.words import DEFAULT

WORKING = "working"
"""State of a worker that does not say another."""
WORKER_BYTES = 1_200
"""What a worker takes, beside the characters of its texts."""
RUNNING_BYTES = 180
"""What a job that runs takes, beside the characters of its task."""
NAME_BYTES = 170
"""What a name takes in a list, beside its characters."""


class Running(Struct, frozen=True, gc=False):
    """A job that runs."""

    id: int
    task: str
    since: int


class Worker(Struct, kw_only=True):
    """A worker as it last told of itself."""

    name: str
    tenant: str = DEFAULT
    host: str = ""
    pid: int = 0
    version: str = ""
    group: str = DEFAULT
    queues: dict[str, None] = field(default_factory=dict)
    """Names, each once, in the order in which they came; shared with others, so never changed."""
    tasks: dict[str, None] = field(default_factory=dict)
    """The same."""
    concurrency: int = 1
    state: str = WORKING
    started_at: int
    seen_at: int
    running: list[Running] = field(default_factory=list)
    """Those that run longest."""
    running_count: int = 0
    done: int = 0
    failed: int = 0
    patience_ms: int
    """Silence after which it is gone."""

    @property
    def process(self) -> tuple[str, int]:
        """Its host and pid."""
        return self.host, self.pid

    @property
    def own_bytes(self) -> int:
        """What it takes without its lists of names."""
        texts = _size("".join((self.name, self.host, self.version, self.group)))
        jobs = RUNNING_BYTES * len(self.running) + _size("".join([each.task for each in self.running]))
        return WORKER_BYTES + texts + jobs

    @property
    def shown_bytes(self) -> int:
        """About the bytes of an answer that it takes."""
        return self.own_bytes + _bytes_of(self.queues) + _bytes_of(self.tasks)


class Names(Struct):
    """A list of names, and how many workers have it."""

    names: dict[str, None]
    bytes: int
    uses: int = 0


class Room:
    """The workers of a tenant by name, those heard of last at the end, and the bytes that they take."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.bytes = 0
        self._names: dict[tuple[str, ...], Names] = {}

    def put(self, worker: Worker) -> None:
        """Add a worker, or put it in the place of the one of its name."""
        before = self.workers.pop(worker.name, None)
        worker.queues, worker.tasks = self._take(worker.queues), self._take(worker.tasks)
        self.workers[worker.name] = worker
        self.bytes += worker.own_bytes
        if before is not None:
            self._leave(before)

    def remove(self, worker: Worker) -> None:
        del self.workers[worker.name]
        self._leave(worker)

    def heard(self, worker: Worker) -> None:
        """Have a worker be the one that was heard of last."""
        self.workers[worker.name] = self.workers.pop(worker.name)

    def growth(self, worker: Worker) -> int:
        """Return by how many bytes the room would grow by a worker, at most."""
        before = self.workers.get(worker.name)
        lists = {tuple(each): each for each in (worker.queues, worker.tasks)}
        added = sum(_bytes_of(each) for key, each in lists.items() if key not in self._names)
        return worker.own_bytes + added - (0 if before is None else before.own_bytes)

    def _leave(self, worker: Worker) -> None:
        self.bytes -= worker.own_bytes
        self._drop(worker.queues)
        self._drop(worker.tasks)

    def _take(self, names: dict[str, None]) -> dict[str, None]:
        key = tuple(names)
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = Names(names, _bytes_of(names))
            self.bytes += found.bytes
        found.uses += 1
        return found.names

    def _drop(self, names: dict[str, None]) -> None:
        key = tuple(names)
        found = self._names[key]
        found.uses -= 1
        if not found.uses:
            del self._names[key]
            self.bytes -= found.bytes


def _bytes_of(names: dict[str, None]) -> int:
    return _size("".join(names)) + NAME_BYTES * len(names)


def _size(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
