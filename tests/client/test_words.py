"""The client has the words of the wire: the same options, and a method for every operation."""

import ast
import inspect
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from forebay import client
from forebay.client.aio.client import Client
from forebay.client.aio.tenants import Tenants, Tokens
from forebay.client.aio.transactions import Transaction
from forebay.client.aio.values import Values
from forebay.client.tasks.app import Backend
from forebay.client.types import Options
from forebay.wire.operation import Request
from forebay.wire.operations import push
from forebay.wire.operations.transactions import AnyOp
from forebay.wire.table import OPERATIONS

HOME = Path(inspect.getfile(client)).parent
REQUESTS = {each.request for each in OPERATIONS}
NAMED = {each.request.__name__: each.request for each in OPERATIONS}
WITHOUT_A_METHOD = (
    ("MESSAGES", "message() is asked for each id"),
    ("FIND", "a push with a job_id answers the id"),
    ("PARTIAL", "tasks have results and progress"),
    ("PARTIALS", "tasks have results and progress"),
    ("CHILDREN", "message() says what a message waits for"),
    ("GROUPS", "groups() takes them from QUEUE"),
    ("GROUP", "groups() has them all"),
    ("KVMGET", "get() is asked for each key"),
    ("KVDELETE", "delete() takes many keys, with KVWRITE"),
    ("WORKER", "of the worker, which tells of itself"),
    ("STAGE", "of the Spark sink"),
    ("ADOPT", "of the Spark sink"),
    ("UNSTAGE", "of the Spark sink"),
    ("WEBHOOKS", "for those who run the server: HTTP"),
    ("WEBHOOKPUT", "for those who run the server: HTTP"),
    ("WEBHOOKDELETE", "for those who run the server: HTTP"),
)
"""Operations that only ``ask`` reaches, and why."""


def requests_in(path: Path) -> set[str]:
    """The names of request classes that a module makes."""
    calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in calls}
    return names & {each.__name__ for each in every_request()}


def every_request() -> set[type[msgspec.Struct]]:
    """Everything of the wire that is a request by its form, whether the table has it or not."""

    def below(kind: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    found = {each for base in (Request, push.RunOptions) for each in below(base)}
    return {each for each in found if is_request(each) and each.__module__.startswith("forebay.wire.")}


def is_request(kind: type[msgspec.Struct]) -> bool:
    return kind.__struct_config__.tag_field == "cmd" and kind.__struct_config__.tag != kind.__name__


def made_by(*kinds: type) -> set[str]:
    """The commands that the methods of classes ask for, those of their bases included."""
    files = {inspect.getfile(each) for kind in kinds for each in kind.__mro__ if each is not object}
    names = {name for file in files for name in requests_in(Path(file))}
    pusher = requests_in(HOME / "aio" / "push_batcher.py")
    return {str(NAMED[name].__struct_config__.tag) for name in names | pusher}


def test_the_options_of_a_message_are_those_of_the_wire() -> None:
    of_messages = {each.encode_name for each in msgspec.structs.fields(push.Options)}
    assert set(Options.__annotations__) == of_messages | {"durability", "idempotency_key"}
    assert not of_messages & {"durability", "idempotency_key"}


MAKERS = (Client, Tenants, Tokens, Values, Transaction, Backend)


def test_every_operation_has_a_method_or_a_reason_for_having_none() -> None:
    without = [name for name, _ in WITHOUT_A_METHOD]
    assert len(set(without)) == len(without)
    assert made_by(*MAKERS) | {*without} == {each.name for each in OPERATIONS}
    assert not made_by(*MAKERS) & {*without}


@pytest.mark.parametrize("path", sorted(HOME.rglob("*.py")), ids=lambda path: str(path.relative_to(HOME)))
def test_every_request_that_the_client_makes_is_of_the_table(path: Path) -> None:
    for name in requests_in(path):
        assert name in NAMED


def test_the_table_has_every_request_of_the_wire() -> None:
    assert every_request() == REQUESTS
    assert set(get_args(AnyOp)) <= REQUESTS
