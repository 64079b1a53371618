"""Acks, pushes and writes in one commit, or none of them."""

from collections.abc import Sequence
from typing import Any, Unpack

from msgspec import Raw

from forebay.client.aio.requests import Asking
from forebay.client.payloads import encode
from forebay.client.translate import meant, options_of
from forebay.client.types import Key, Options, Settling
from forebay.core.errors import Invalid


class Transaction:
    """Commands that are committed together. Sent at the end of its block, unless that raises."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._ops: list[dict[str, Any]] = []
        self._repeatable = True
        """Whether it may be retried: a settle in it is refused the second time."""
        self._settles = False
        self.results: list[dict[str, Any]] = []
        """The results of the commands."""

    def push(self, queue: str, payload: Any, **options: Unpack[Options]) -> None:
        known = {} if "idempotency_key" in options else self._asking._once()
        fields = {"queue": queue, "data": Raw(encode(payload)), **options_of(options), **known}
        self._add("PUSH", fields)

    def ack(
        self, what: Settling | None = None, *, lease: str | None = None, results: Sequence[Any] | None = None
    ) -> None:
        for each in meant(what, lease, None, results):
            self._add("ACKB", each)
            self._settles = self._settles or each["lease"] is not None

    def nack(self, what: Settling | None = None, *, error: str = "", delay_ms: int | None = None) -> None:
        for each in meant(what, None, None):
            self._add("FAIL", {**each, "error": error, "delay": delay_ms})
            if each["lease"] is None:
                self._repeatable = False  # a retry could fail the next delivery
            else:
                self._settles = True

    def set(self, key: Key, value: Any, *, ttl_ms: int | None = None) -> None:
        self._add("KVSET", {"key": key, "value": Raw(encode(value)), "ttl": ttl_ms})

    def add(self, key: Key, amount: float = 1) -> None:
        self._add("KVINCR", {"key": key, "by": amount})
        self._repeatable = False

    def delete(self, *keys: Key) -> None:
        self._add("KVDEL", {"keys": list(keys)})

    def check(self, key: Key, version: str | None) -> None:
        """Commit only if a key has this version; None: only if the key does not exist."""
        self._add("KVATOMIC", {"checks": [{"key": key, "version": version}], "mutations": []})
        self._repeatable = False

    def _add(self, cmd: str, fields: dict[str, Any]) -> None:
        given = {name: value for name, value in fields.items() if value is not None}
        if cmd == "KVATOMIC":
            given = fields
        self._ops.append({"cmd": cmd, **given})

    async def commit(self) -> list[dict[str, Any]]:
        """Send the transaction. The end of the block does so, too."""
        if not self._ops:
            raise Invalid("transaction", "something: it has nothing to do")
        again = self._repeatable or self._settles
        found = await self._asking._ask(dict[str, Any], "TX", {"ops": self._ops}, again=again)
        self.results, self._ops = found["results"], []
        return self.results

    async def __aenter__(self) -> "Transaction":
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None and self._ops:
            await self.commit()
