"""How an operation is declared: its request, its answer, and how HTTP carries it.

The same fields go over TCP, Unix sockets and HTTP. Over TCP a request has its name in ``cmd``; over HTTP a
route stands for the name, and the fields in its path need not be repeated.
"""

import re
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from forebay.core.api.principals import ANY, READ
from forebay.wire.types import RequestId

ADMINISTERED = ("dead letters", "queues", "groups", "crons", "limits", "webhooks", "tenants", "server")
"""Headings of operations that administer; the others are about messages, or keys and values."""


class Request(
    Struct, tag_field="cmd", forbid_unknown_fields=True, omit_defaults=True, gc=False, kw_only=True
):
    """Base class of requests."""

    reqId: RequestId | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    """The tenant that it is about, if that is not the caller's own: only an admin may name another."""


class Answer(Struct, omit_defaults=True, gc=False, kw_only=True):
    """Base class of answers. Only carriers without a status of their own say ``ok`` and repeat ``reqId``."""

    ok: bool | UnsetType = UNSET
    reqId: RequestId | UnsetType = UNSET


class Done(Answer, kw_only=True):
    """It was carried out."""


class Problem(Struct, gc=False, omit_defaults=True):
    """An error: ``code`` is stable, ``message`` is for people, ``details`` are for programs."""

    code: str
    message: str
    details: dict[str, Any] = {}


class Failed(Struct, omit_defaults=True, gc=False, kw_only=True):
    """The answer to a request that was refused."""

    ok: bool | UnsetType = UNSET
    error: Problem
    reqId: RequestId | UnsetType = UNSET


class Route(Struct, frozen=True):
    """How HTTP carries an operation."""

    method: str
    path: str
    fields: tuple[str, ...] | None = None
    """The fields that this route carries; all if None."""
    given: dict[str, Any] = {}
    """Fields that have another default here."""
    needs: tuple[str, ...] = ()
    """What this route needs, if that is less than the operation."""
    summary: str = ""
    """A title of its own."""
    name: str = ""
    """A name of its own, where an operation has several routes."""

    @property
    def places(self) -> list[str]:
        """The fields in the path."""
        return re.findall(r"\{(\w+)\}", self.path)

    @property
    def has_body(self) -> bool:
        return self.method in ("POST", "PUT")


class Operation(Struct, frozen=True):
    """One operation. Its description is the docstring of its request."""

    request: type[Struct]
    answer: type[Answer]
    needs: str | tuple[str, ...]
    """The role that it needs of its caller, or several, one of which is enough."""
    tag: str
    """The heading it stands under in documents."""
    summary: str
    routes: tuple[Route, ...]
    example: dict[str, Any]
    """Fields of a request that works once LEASE, ID and WEBHOOK are replaced."""

    @property
    def is_act(self) -> bool:
        """Whether it is an administrative act, of which the log tells: it changes more than messages do."""
        if self.name == "BULK":
            return True
        return (
            not {READ, ANY} & set(self.roles)
            and self.tag in ADMINISTERED
            and not self.request.__name__.startswith("List")
        )

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.needs,) if isinstance(self.needs, str) else self.needs

    @property
    def name(self) -> str:
        return str(self.request.__struct_config__.tag)
