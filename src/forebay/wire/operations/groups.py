"""Consumer groups: list, create, delete, seek."""

import msgspec
from msgspec import Struct

from forebay.core.api.principals import OWNER, POP, READ
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.queues import GroupSummary


class ListGroups(Request, tag="GROUPS", kw_only=True):
    """List the groups of a queue."""

    queue: str


class Groups(Answer, kw_only=True):
    """The groups of a queue."""

    queue: str
    groups: list[GroupSummary]


class GetGroup(Request, tag="GROUP", kw_only=True):
    """Return one group of a queue. A group that does not exist has all messages waiting or delayed."""

    queue: str
    group: str = DEFAULT


class PutGroup(Request, tag="GROUPPUT", kw_only=True):
    """Create a group that starts at ``all``, ``new`` or a time; an existing group stays as it is."""

    queue: str
    group: str
    start: int | str = msgspec.field(default="all", name="from")


class DeleteGroup(Request, tag="GROUPDELETE", kw_only=True):
    """Delete a group, with its leases, its schedule and its dead letters."""

    queue: str
    group: str


class Seek(Request, tag="SEEK", kw_only=True):
    """Move the cursors of a group: to ``all``, ``new``, a time, or an offset in one partition."""

    queue: str
    group: str = DEFAULT
    to: int | str | None = None
    partition: str | None = None
    offset: int | None = None


class Cursor(Struct, gc=False):
    """Cursor of a group in a partition."""

    partition: str
    cursor: int


class Sought(Answer, kw_only=True):
    """Cursors of the group after a seek."""

    partitions: list[Cursor]


ALL = "/v1/groups/{queue}"
ONE = "/v1/groups/{queue}/{group}"
TAG = "groups"

OPERATIONS = [
    Operation(ListGroups, Groups, READ, TAG, "List groups", (Route("GET", ALL),), {"queue": "emails"}),
    Operation(
        GetGroup,
        GroupSummary,
        READ,
        TAG,
        "Look at a group",
        (Route("GET", ONE),),
        {"queue": "emails", "group": "audit"},
    ),
    Operation(
        PutGroup,
        Groups,
        POP,
        TAG,
        "Make a group",
        (Route("PUT", ONE),),
        {"queue": "emails", "group": "audit", "from": "new"},
    ),
    Operation(
        DeleteGroup,
        Groups,
        OWNER,
        TAG,
        "Delete a group",
        (Route("DELETE", ONE),),
        {"queue": "emails", "group": "audit"},
    ),
    Operation(
        Seek,
        Sought,
        OWNER,
        TAG,
        "Read on from another place",
        (Route("POST", "/v1/queues/{queue}/seek"),),
        {"queue": "emails", "to": "all"},
    ),
]
