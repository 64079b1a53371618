"""Generated from ``aio/transactions.py`` by tools/make_sync.py: change that, and run ``make sync``."""

from collections.abc import Sequence
from typing import Any, Unpack

from msgspec import Raw

from forebay.client.payloads import encode
from forebay.client.sync.requests import Asking
from forebay.client.translate import meant, message_of
from forebay.client.types import Key, Options, Settling, parts_of
from forebay.core.errors import Invalid
from forebay.wire.operations import transactions as wire
from forebay.wire.operations.pop import Ack, Nack
from forebay.wire.operations.push import Push
from forebay.wire.operations.values import AddValue, Check, Mutation, SetValue, WriteValues


class Transaction:
    """Commands that are committed together. Sent at the end of its block, unless that raises."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._ops: list[wire.AnyOp] = []
        self._repeatable = True
        """Whether it may be retried: a settle in it is refused the second time."""
        self._settles = False
        self.results: list[dict[str, Any]] = []
        """The results of the commands."""

    def push(self, queue: str, payload: Any, **options: Unpack[Options]) -> None:
        """Push a message."""
        known = {} if "idempotency_key" in options else self._asking._once()
        body, given = message_of(payload, options)
        self._ops.append(Push(queue=queue, payload=Raw(body), **given, **known))

    def ack(
        self, what: Settling | None = None, *, lease: str | None = None, results: Sequence[Any] | None = None
    ) -> None:
        """Ack messages, or a whole lease; all of them, or the transaction fails."""
        for each in meant(what, lease, None, results):
            self._ops.append(Ack(**each))
            self._settles = self._settles or each["lease"] is not None

    def nack(self, what: Settling | None = None, *, error: str = "", delay_ms: int | None = None) -> None:
        """Nack failed messages."""
        for each in meant(what, None, None):
            self._ops.append(Nack(**each, error=error, delay_ms=delay_ms))
            if each["lease"] is None:
                self._repeatable = False  # a retry could fail the next delivery
            else:
                self._settles = True

    def set(self, key: Key, value: Any, *, ttl_ms: int | None = None) -> None:
        """Set a key to a value."""
        self._ops.append(SetValue(key=parts_of(key), value=Raw(encode(value)), ttl_ms=ttl_ms))

    def add(self, key: Key, amount: float = 1) -> None:
        """Add to a number; a missing key counts as 0."""
        self._ops.append(AddValue(key=parts_of(key), by=amount))
        self._repeatable = False

    def delete(self, *keys: Key) -> None:
        """Delete keys."""
        self._ops.append(WriteValues(mutations=[Mutation("delete", parts_of(key)) for key in keys]))

    def check(self, key: Key, version: str | None) -> None:
        """Commit only if a key has this version; None: only if the key does not exist."""
        self._ops.append(WriteValues(checks=[Check(parts_of(key), version)]))
        self._repeatable = False

    def commit(self) -> list[dict[str, Any]]:
        """Send the transaction. The end of the block does so, too."""
        if not self._ops:
            raise Invalid("transaction", "something: it has nothing to do")
        again = self._repeatable or self._settles
        found = self._asking._ask(wire.Transact(ops=self._ops), again=again, kind=dict[str, Any])
        self.results, self._ops = found["results"], []
        return self.results

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._ops:
            self.commit()
