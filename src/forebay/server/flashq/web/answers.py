"""What a route shows of a command's answer, as the ``data`` of its envelope."""

from collections.abc import Callable

import msgspec
from msgspec import Raw

from forebay.server.flashq.web.commands import Fields

NULL = Raw(b"null")
FALSE = Raw(b"false")
_encode = msgspec.json.Encoder().encode
_list = msgspec.json.Decoder(list[Raw]).decode
_fields = msgspec.json.Decoder(Fields).decode

Show = Callable[[Fields], Raw]
"""Returns the data, as JSON."""


def nothing(answer: Fields) -> Raw:
    """Show that it worked, and no more."""
    return NULL


def field(name: str) -> Show:
    """Show one field."""
    return lambda answer: answer.get(name, NULL)


def everything(answer: Fields) -> Raw:
    """Show all fields."""
    return Raw(_encode({name: value for name, value in answer.items() if name not in ("ok", "reqId")}))


def count(answer: Fields) -> Raw:
    """Show how many it were. Over TCP, flashQ puts that number into a list of ids in some answers."""
    if "count" in answer:
        return answer["count"]
    found = _list(answer.get("ids", Raw(b"[]")))
    return found[0] if found else Raw(b"0")


def progress(answer: Fields) -> Raw:
    """Show progress as flashQ does over HTTP: a percentage and a message."""
    told = _fields(answer["progress"])
    return Raw(_encode([told["progress"], told.get("message", NULL)]))
