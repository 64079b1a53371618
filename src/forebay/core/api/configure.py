"""The command that sets the options of a queue, or of one partition."""

from msgspec import UNSET

from forebay.core.state import QueueOptions


class Configure:
    """Create a queue if it is missing, and set the given options: fields of ``QueueOptions``."""

    __slots__ = ("completed_count", "options", "partition", "queue", "tenant")

    def __init__(
        self,
        tenant: str,
        queue: str,
        *,
        partition: str | None = None,
        completed_count: int = 0,
        **options: object,
    ) -> None:
        unknown = options.keys() - set(QueueOptions.__struct_fields__)
        assert not unknown, f"a queue has no options {unknown}"
        self.tenant = tenant
        self.queue = queue
        self.partition = partition
        """Only for this existing partition, which has retention options of its own."""
        self.completed_count = completed_count
        """completed_retention_count of the queue, if this creates it."""
        self.options = {name: value for name, value in options.items() if value is not UNSET}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configure) and self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Configure{self._fields()}"

    def _fields(self) -> tuple[str, str, str | None, int, dict[str, object]]:
        return self.tenant, self.queue, self.partition, self.completed_count, self.options
