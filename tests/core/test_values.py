"""Keys and values: every change, versions and checks, times to live, lists in pages."""

import random
from typing import Any

import pytest

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.bounds import KV_LISTED_MAX, KV_WRITES_MAX, NEVER
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.core.keyvalue import store as kv_store
from forebay.core.keyvalue.keys import Part, pack, unpack
from forebay.core.state import OVERHEAD
from tests.core.harness import Core
from tests.sim.inside import values_of
from tests.sim.world import load

KEY = pack(("k",))
OTHER = pack(("other",))
T = "default"


@pytest.fixture
def core() -> Core:
    return Core()


def write(
    core: Core, *changes: job_commands.KvChange, checks: Any = (), tenant: str = T
) -> job_commands.KvWritten:
    return core.ask(job_commands.KvWrite(tenant, list(changes), list(checks)), job_commands.KvWritten)


def put(core: Core, data: bytes = b"1", key: bytes = KEY, ttl_ms: int | None = None) -> int:
    """Set a key; the version."""
    return write(core, job_commands.KvChange("set", key, data, ttl_ms)).version


def change(core: Core, kind: str, data: bytes = b"1", key: bytes = KEY, ttl_ms: int | None = None) -> Any:
    """Change a key; what is there now."""
    write(core, job_commands.KvChange(kind, key, data, ttl_ms))
    return get(core, key)


def found(core: Core, key: bytes = KEY, tenant: str = T) -> Any:
    (value,) = core.ask(queries.KvGet(tenant, [key]), queries.KvFound).values
    return value


def get(core: Core, key: bytes = KEY, tenant: str = T) -> bytes | None:
    value = found(core, key, tenant)
    return value.data if value is not None else None


def listed(core: Core, **fields: Any) -> list[tuple[Part, ...]]:
    return [unpack(key) for key, _ in core.ask(queries.KvList(T, **fields), queries.KvListed).entries]


# Changes.


@pytest.mark.parametrize(
    ("kind", "before", "given", "after"),
    [
        ("set", None, b'{"a":1}', b'{"a":1}'),
        ("set", b"1", b"null", b"null"),
        ("delete", b"1", b"null", None),
        ("delete", None, b"null", None),
        ("sum", None, b"5", b"5"),
        ("sum", b"null", b"5", b"5"),
        ("sum", b"5", b"-7", b"-2"),
        ("sum", b"1", b"0.5", b"1.5"),
        ("sum", b"9007199254740993", b"1", b"9007199254740994"),
        ("max", None, b"-5", b"-5"),
        ("max", b"3", b"7", b"7"),
        ("max", b"7", b"3", b"7"),
        ("min", b"3", b"7", b"3"),
        ("min", b"3", b"-0.5", b"-0.5"),
        ("append", None, b'"a"', b'["a"]'),
        ("append", b'["a"]', b'"b"', b'["a","b"]'),
        ("append", b"[1]", b"[2,3]", b"[1,2,3]"),
        ("append", b"[1]", b"[[2]]", b"[1,[2]]"),
        ("prepend", b"[1]", b"[2,3]", b"[2,3,1]"),
        ("prepend", b"[1]", b"0", b"[0,1]"),
        ("prepend", None, b"{}", b"[{}]"),
        ("expire", b"1", b"null", b"1"),
    ],
)
@pytest.mark.parametrize("reload", [False, True])
def test_a_change_leaves_what_it_says(
    core: Core, kind: str, before: bytes | None, given: bytes, after: bytes | None, reload: bool
) -> None:
    if before is not None:
        put(core, before)
    if reload:
        core.restart()
    change(core, kind, given)
    if reload:
        core.restart()
    assert get(core) == after


def test_several_changes_of_one_key_are_made_one_after_the_other(core: Core) -> None:
    written = write(
        core,
        job_commands.KvChange("sum", KEY, b"1"),
        job_commands.KvChange("sum", KEY, b"2"),
        job_commands.KvChange("set", OTHER, b"[]"),
        job_commands.KvChange("append", OTHER, b"1"),
        job_commands.KvChange("max", KEY, b"2"),
    )
    assert [value and value.data for value in written.values] == [b"3", b"[1]"]
    assert (get(core), get(core, OTHER)) == (b"3", b"[1]")


def test_a_write_says_how_many_keys_it_deleted(core: Core) -> None:
    put(core)
    deletes = [job_commands.KvChange("delete", key) for key in (KEY, OTHER)]
    written = write(core, *deletes, job_commands.KvChange("set", pack(("new",))))
    assert written.deleted == 1
    assert [value is None for value in written.values] == [True, True, False]


# What can't be.

REFUSED: dict[str, tuple[bytes | None, job_commands.KvWrite, type[ForebayError]]] = {
    "sum to a text": (b'"a"', job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b"1")]), Conflict),
    "sum to true": (b"true", job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b"1")]), Conflict),
    "sum of a text": (b"1", job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b'"1"')]), Invalid),
    "sum of true": (None, job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b"true")]), Invalid),
    "sum too large": (
        b"9223372036854775807",
        job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b"1")]),
        Conflict,
    ),
    "max of a list": (None, job_commands.KvWrite(T, [job_commands.KvChange("max", KEY, b"[]")]), Invalid),
    "min to a list": (b"[]", job_commands.KvWrite(T, [job_commands.KvChange("min", KEY, b"1")]), Conflict),
    "append to a number": (
        b"1",
        job_commands.KvWrite(T, [job_commands.KvChange("append", KEY, b"1")]),
        Conflict,
    ),
    "prepend to an object": (
        b"{}",
        job_commands.KvWrite(T, [job_commands.KvChange("prepend", KEY, b"1")]),
        Conflict,
    ),
    "unknown kind": (b"1", job_commands.KvWrite(T, [job_commands.KvChange("swap", KEY)]), Invalid),
    "expiry of nothing": (
        None,
        job_commands.KvWrite(T, [job_commands.KvChange("expire", KEY, ttl_ms=1)]),
        NotFound,
    ),
    "negative ttl": (
        b"1",
        job_commands.KvWrite(T, [job_commands.KvChange("expire", KEY, ttl_ms=-1)]),
        Invalid,
    ),
    "endless ttl": (
        b"1",
        job_commands.KvWrite(T, [job_commands.KvChange("set", KEY, b"1", 1 << 50)]),
        Invalid,
    ),
    "too long": (
        b"1",
        job_commands.KvWrite(T, [job_commands.KvChange("set", KEY, b"1" * 1_048_577)]),
        Invalid,
    ),
    "nothing": (b"1", job_commands.KvWrite(T, []), Invalid),
    "too many": (
        b"1",
        job_commands.KvWrite(T, [job_commands.KvChange("set", KEY)] * (KV_WRITES_MAX + 1)),
        Invalid,
    ),
    "no tenant": (None, job_commands.KvWrite("", [job_commands.KvChange("set", KEY)]), Invalid),
    "another version": (
        b"1",
        job_commands.KvWrite(T, [job_commands.KvChange("set", KEY)], [(KEY, 1)]),
        Conflict,
    ),
    "there": (b"1", job_commands.KvWrite(T, [job_commands.KvChange("set", KEY)], [(KEY, None)]), Conflict),
    "not there": (None, job_commands.KvWrite(T, [job_commands.KvChange("set", KEY)], [(KEY, 1)]), Conflict),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_write_that_is_refused_changes_nothing(core: Core, what: str) -> None:
    before, command, error = REFUSED[what]
    if before is not None:
        put(core, before)
    put(core, b"0", OTHER)
    core.commit()
    good = job_commands.KvChange("sum", OTHER, b"1")
    if command.changes and len(command.changes) < KV_WRITES_MAX:
        command = job_commands.KvWrite(command.tenant, [good, *command.changes, good], command.checks)
    with pytest.raises(error):
        core.ask(command, job_commands.KvWritten)
    assert not core.engine.seal(core.now)
    assert (get(core), get(core, OTHER)) == (before, b"0")


def test_the_first_number_may_be_no_further_from_0_than_the_others(core: Core) -> None:
    with pytest.raises(ForebayError):
        change(core, "sum", b"1e22")


def test_a_value_may_not_grow_too_long_by_and_by(core: Core) -> None:
    put(core, b'["' + b"x" * 1_048_568 + b'"]')
    with pytest.raises(Invalid, match=r"^value"):
        change(core, "append", b"22222222")


def test_a_write_may_have_as_many_changes_as_there_may_be(core: Core) -> None:
    write(core, *[job_commands.KvChange("sum", KEY, b"1")] * KV_WRITES_MAX)
    assert get(core) == str(KV_WRITES_MAX).encode()


# Versions.


def test_versions_rise_with_every_write_and_over_restarts(core: Core) -> None:
    versions = []
    for at in range(10):
        versions.append(put(core, b"%d" % at, KEY if at % 2 else OTHER))
        if at % 3:
            core.restart()
    assert versions == sorted(set(versions))
    assert found(core).version == versions[-1]
    assert found(core, OTHER).version == versions[-2]


def test_a_version_is_not_given_again_after_a_crash(core: Core) -> None:
    put(core)
    core.commit()
    lost = put(core, b"lost")
    core.engine = load(core.store, core.limits, core.now)
    assert get(core) == b"1"
    assert put(core, b"2") > lost


def test_a_key_that_was_deleted_and_made_again_has_another_version(core: Core) -> None:
    first = put(core)
    change(core, "delete")
    core.restart()
    assert put(core) > first


def test_checks_hold_for_versions_that_are_still_so(core: Core) -> None:
    version = put(core)
    write(core, job_commands.KvChange("sum", KEY, b"1"), checks=[(KEY, version), (OTHER, None)])
    with pytest.raises(Conflict, match="k has changed"):
        write(core, job_commands.KvChange("sum", KEY, b"1"), checks=[(KEY, version)])
    assert get(core) == b"2"


def test_checks_alone_are_a_write_that_changes_nothing(core: Core) -> None:
    version = put(core)
    core.restart()
    assert write(core, checks=[(KEY, version)]).values == []
    assert found(core).version == version


def test_checks_see_the_values_before_the_changes_of_their_own_write(core: Core) -> None:
    write(core, job_commands.KvChange("set", KEY, b"1"), checks=[(KEY, None)])
    assert get(core) == b"1"


# Times to live.


@pytest.mark.parametrize("reload", [False, True])
def test_a_value_goes_when_its_time_is_over(core: Core, reload: bool) -> None:
    put(core, ttl_ms=5_000)
    put(core, b"2", OTHER)
    if reload:
        core.restart()
    assert core.engine.next_due_at() <= core.now + 5_000
    core.wait(4_999)
    assert get(core) == b"1"
    core.wait(1)
    assert get(core) is None
    assert listed(core) == [("other",)]
    write(core, checks=[(KEY, None)])
    core.restart()
    assert values_of(core.engine)[T].entries.keys() == {OTHER}


def test_a_value_whose_time_was_over_while_no_server_ran_is_gone(core: Core) -> None:
    put(core, ttl_ms=5_000)
    core.restart(down_ms=5_000)
    assert get(core) is None


@pytest.mark.parametrize(
    ("kind", "data", "ttl_ms", "lives"),
    [
        ("set", b"1", None, True),
        ("set", b"1", 0, True),
        ("sum", b"1", None, False),
        ("sum", b"1", 0, True),
        ("sum", b"1", 60_000, True),
        ("max", b"1", None, False),
        ("expire", b"null", None, True),
        ("expire", b"null", 0, True),
        ("expire", b"null", 60_000, True),
        ("expire", b"null", 4_000, False),
    ],
)
def test_a_change_keeps_the_time_to_live_or_gives_another(
    core: Core, kind: str, data: bytes, ttl_ms: int | None, lives: bool
) -> None:
    put(core, ttl_ms=5_000)
    core.wait(1)
    change(core, kind, data, ttl_ms=ttl_ms)
    core.restart()
    core.wait(5_000)
    assert (get(core) is not None) == lives


def test_a_value_that_lives_again_does_not_go_with_the_old_one(core: Core) -> None:
    put(core, ttl_ms=1_000)
    change(core, "delete")
    put(core, b"2")
    core.wait(5_000)
    assert get(core) == b"2"


def test_a_value_whose_time_is_over_counts_as_none_for_sums(core: Core) -> None:
    put(core, b"5", ttl_ms=1_000)
    core.now += 1_000  # nobody ticked
    assert change(core, "sum", b"1") == b"1"
    assert found(core).expires_at == 0


def test_many_values_whose_time_is_over_go_in_slices_and_all_go(core: Core) -> None:
    count = 2 * kv_store.EXPIRED_AT_ONCE + 1
    for at in range(0, count, 500):
        some = range(at, min(at + 500, count))
        write(core, *(job_commands.KvChange("set", pack((each,)), b"1", 1_000) for each in some))
    core.wait(1_000)
    assert len(values_of(core.engine)[T].entries) == count - kv_store.EXPIRED_AT_ONCE
    assert listed(core) == []
    while core.engine.next_due_at() <= core.now:
        core.engine.tick(core.now)
    assert values_of(core.engine)[T].entries == {}
    assert core.engine.next_due_at() == NEVER


# Reading.


def test_several_keys_are_read_in_the_order_they_were_asked_for(core: Core) -> None:
    put(core, b"1")
    put(core, b"2", OTHER)
    reply = core.ask(queries.KvGet(T, [OTHER, pack(("none",)), KEY, OTHER]), queries.KvFound)
    assert [value and value.data for value in reply.values] == [b"2", None, b"1", b"2"]


TREE: list[tuple[Part, ...]] = [(b"raw",), ("a",), ("a", 1), ("a", 1, "x"), ("a", 2), ("a", 10), ("a\0",)]
TREE += [("ab",), ("b", -1), ("b", 0.5), (7,), (False,), (True, "t")]


@pytest.fixture
def tree(core: Core) -> Core:
    """Keys of every kind, put in no order."""
    for key in random.Random(1).sample(TREE, len(TREE)):
        put(core, b"1", pack(key))
    return core


def test_a_list_is_in_the_order_of_the_keys(tree: Core) -> None:
    assert listed(tree) == TREE
    assert listed(tree, reverse=True) == TREE[::-1]
    tree.restart()
    assert listed(tree) == TREE


def test_a_list_has_what_is_below_its_prefix(tree: Core) -> None:
    below = [("a",), ("a", 1), ("a", 1, "x"), ("a", 2), ("a", 10)]
    assert listed(tree, prefix=pack(("a",))) == below
    assert listed(tree, prefix=pack(("a",)), reverse=True) == below[::-1]
    assert listed(tree, prefix=pack(("a", 1))) == [("a", 1), ("a", 1, "x")]
    assert listed(tree, prefix=pack(("nobody",))) == []


def test_a_list_goes_from_one_key_to_another(tree: Core) -> None:
    low, high = pack(("a", 1)), pack(("b", 0))
    assert listed(tree, low=low, high=high) == TREE[2:9]
    assert listed(tree, low=low, high=high, reverse=True) == TREE[2:9][::-1]
    assert listed(tree, prefix=pack(("a",)), low=pack(("a", 2))) == [("a", 2), ("a", 10)]
    assert listed(tree, low=high, high=low) == []


def test_a_pattern_is_about_keys_of_one_text(tree: Core) -> None:
    assert listed(tree, pattern="a*") == [("a",), ("a\0",), ("ab",)]
    assert listed(tree, pattern="?b") == [("ab",)]
    assert listed(tree, pattern="*", reverse=True) == [("ab",), ("a\0",), ("a",)]


def pages(core: Core, between: Any = None, **fields: Any) -> list[tuple[Part, ...]]:
    """Everything that is listed page by page."""
    came: list[tuple[Part, ...]] = []
    edge = "high" if fields.get("reverse") else "low"
    while True:
        reply = core.ask(queries.KvList(T, **fields), queries.KvListed)
        came += [unpack(key) for key, _ in reply.entries]
        if reply.next is None:
            return came
        fields[edge] = reply.next
        if between is not None:
            between()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_pages_cover_everything_once(tree: Core, count: int, reverse: bool) -> None:
    assert pages(tree, count=count, reverse=reverse) == (TREE[::-1] if reverse else TREE)
    below = pages(tree, count=count, reverse=reverse, prefix=pack(("a",)))
    assert below == (TREE[1:6][::-1] if reverse else TREE[1:6])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_pages_cover_what_stays_once_while_keys_come_and_go(core: Core, seed: int, reverse: bool) -> None:
    rng = random.Random(seed)
    stays = set(range(0, 200, 2))
    write(core, *(job_commands.KvChange("set", pack((each,)), b"1") for each in stays))

    def between() -> None:
        for _ in range(5):
            write(
                core,
                job_commands.KvChange(
                    rng.choice(["set", "delete"]), pack((2 * rng.randrange(100) + 1,)), b"1"
                ),
            )
        if rng.random() < 0.2:
            core.restart()

    came = [key[0] for key in pages(core, between, count=7, reverse=reverse)]
    assert came == sorted(set(came), reverse=reverse)
    assert stays <= set(came)


def test_a_page_holds_only_so_many_bytes(core: Core) -> None:
    for at in range(20):
        put(core, b'"' + b"x" * 1_000_000 + b'"', pack((at,)))
    reply = core.ask(queries.KvList(T), queries.KvListed)
    assert 10 < len(reply.entries) < 20
    assert pages(core) == [(at,) for at in range(20)]


def test_a_pattern_that_finds_nothing_looks_at_only_so_many(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_store, "LOOKED_AT_MAX", 10)
    write(core, *(job_commands.KvChange("set", pack((f"{at:03}",)), b"1") for at in range(95)))
    put(core, b"1", pack(("x",)))
    reply = core.ask(queries.KvList(T, pattern="x"), queries.KvListed)
    assert (reply.entries, reply.next) == ([], pack(("010",)))
    assert pages(core, pattern="x") == [("x",)]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (queries.KvGet(T, []), "keys"),
        (queries.KvGet(T, [KEY] * (KV_LISTED_MAX + 1)), "keys"),
        (queries.KvList(T, count=0), "limit"),
        (queries.KvList(T, count=KV_LISTED_MAX + 1), "limit"),
        (queries.KvList(T, pattern="x" * 257), "pattern"),
        (queries.KvWatch(T, [KEY], []), "versions"),
        (queries.KvWatch(T, [KEY], [None], -1), "wait_ms"),
        (queries.KvWatch(T, [], []), "keys"),
    ],
)
def test_bad_questions_are_refused(core: Core, command: c.Command, named: str) -> None:
    with pytest.raises(Invalid) as refused:
        core.engine.apply(command, core.now)
    assert refused.value.field == named


def test_a_watch_tells_whether_anything_changed(core: Core) -> None:
    version = put(core)
    cases: list[tuple[list[int | None], bool]] = [
        ([version, None], False),
        ([None, None], True),
        ([version, 5], True),
    ]
    for known, changed in cases:
        reply = core.ask(queries.KvWatch(T, [KEY, OTHER], known), queries.KvFound)
        assert reply.changed == changed
        assert [value is not None for value in reply.values] == [True, False]


# Tenants and how much they keep.


def test_values_of_other_tenants_are_other_values(core: Core) -> None:
    put(core, b"1")
    write(core, job_commands.KvChange("set", KEY, b"2"), tenant="acme")
    core.restart()
    assert (get(core), get(core, tenant="acme"), get(core, tenant="nobody")) == (b"1", b"2", None)
    write(core, job_commands.KvChange("delete", KEY), tenant="acme")
    assert get(core) == b"1"
    assert core.ask(queries.KvList("nobody"), queries.KvListed).entries == []


def test_a_tenant_keeps_only_so_much(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 3 * (OVERHEAD + len(pack((0,))) + 100)
    monkeypatch.setattr(kv_store, "KV_BYTES_MAX", room)
    for at in range(3):
        put(core, b"1" * 100, pack((at,)))
    core.restart()
    for bad in (
        job_commands.KvChange("set", pack((3,)), b""),
        job_commands.KvChange("set", pack((0,)), b"1" * 101),
    ):
        with pytest.raises(Busy):
            write(core, bad)
        assert not core.engine.seal(core.now)
    write(core, job_commands.KvChange("set", KEY, b"1"), tenant="acme")
    put(core, b"2" * 100, pack((0,)))
    write(
        core,
        job_commands.KvChange("delete", pack((0,))),
        job_commands.KvChange("set", pack((3,)), b"1" * 100),
    )
    change(core, "delete", key=pack((1,)))
    put(core, b"1" * 100, pack((4,)))
