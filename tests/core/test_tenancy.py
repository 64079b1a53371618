"""Tenants and tokens, as the control records have them."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.api.jobs import CronPut, Job, PushJobs
from forebay.core.api.tenants import (
    TenantGet,
    TenantList,
    TenantsFound,
    Token,
    TokenDelete,
    TokenList,
    TokenPut,
    TokensFound,
    TokensUsed,
)
from forebay.core.bounds import TOKENS_MAX, Limits
from forebay.core.errors import Conflict, Damaged, Denied, Elsewhere, Invalid, NotFound
from forebay.core.records.keyspace import control_key, token_key
from tests.core.harness import NOW, Core
from tests.core.test_shards import change
from tests.sim.world import load

MINUTE_MS = 60_000


def a_token(id: str = "t1", tenant: str = "acme", role: str = "write", **fields: object) -> Token:
    given = {"name": "ci", "queues": (), "created_at": NOW, "expires_at": 0, "salt": b"s", "digest": b"d"}
    return Token(id=id, tenant=tenant, role=role, **(given | fields))  # type: ignore[arg-type]


def tokens(core: Core, tenant: str = "acme") -> list[str]:
    return [each.id for each in core.ask(TokenList(tenant), TokensFound).tokens]


@pytest.fixture
def core() -> Core:
    return Core()


def test_a_suspended_tenant_is_denied_everything_and_loses_nothing(core: Core) -> None:
    core.push(b"1", tenant="acme")
    core.ask(c.TenantPut("acme", suspended=True), c.TenantFound)
    for _ in range(2):
        for command in (c.Push("acme", "q", [b"2"]), c.Pop("acme", "q"), queries.ListQueues("acme")):
            with pytest.raises(Denied, match="tenant acme is suspended"):
                core.engine.apply(command, core.now)
        core.push(tenant="other")
        core.restart()
    found = core.ask(c.TenantPut("acme", suspended=False), c.TenantFound)
    assert not found.suspended
    assert core.popped(tenant="acme") == [b"1"]
    core.restart()
    assert not core.engine.control.is_suspended("acme")


def test_crons_of_a_suspended_tenant_wait_and_are_then_late(core: Core) -> None:
    for tenant in ("acme", "other"):
        core.ask(CronPut(tenant, "tick", "q", Job(b"1"), every_ms=MINUTE_MS), queries.CronsFound)
    core.ask(c.TenantPut("acme", suspended=True), c.TenantFound)
    core.now += 5 * MINUTE_MS
    core.engine.tick(core.now)
    core.restart()
    core.now += 5 * MINUTE_MS
    core.engine.tick(core.now)
    core.ask(c.TenantPut("acme", suspended=False), c.TenantFound)
    core.engine.tick(core.now)
    fired = [
        core.ask(queries.CronList(each), queries.CronsFound).crons[0].fired for each in ("acme", "other")
    ]
    assert fired == [1, 2]  # the last of what was missed, each time that it was


def test_a_cron_of_a_suspended_tenant_leaves_with_its_queue(core: Core) -> None:
    core.ask(CronPut("acme", "tick", "q", Job(b"1"), every_ms=MINUTE_MS), queries.CronsFound)
    core.ask(c.TenantPut("acme", suspended=True), c.TenantFound)
    core.ask(c.TenantPut("acme", suspended=True), c.TenantFound)
    core.ask(c.TenantPut("acme", suspended=False), c.TenantFound)
    core.ask(c.Obliterate("acme", "q"), c.Cleaned)
    core.now += 5 * MINUTE_MS
    core.engine.tick(core.now)
    assert core.ask(queries.CronList("acme"), queries.CronsFound).crons == []


def test_only_an_admin_makes_tenants_where_that_is_set() -> None:
    core = Core(Limits(use_creates_tenants=False))
    core.push(tenant="default")
    with pytest.raises(Denied, match="there is no tenant acme; here an admin creates them"):
        core.push(tenant="acme")
    core.ask(c.TenantPut("acme"), c.TenantFound)
    core.push(tenant="acme")


def test_tenants_are_listed_by_name_page_by_page(core: Core) -> None:
    for name in ("cc", "aa", "bb"):
        core.ask(c.TenantPut(name, spread=name == "bb"), c.TenantFound)
    first = core.ask(TenantList(count=2), TenantsFound)
    rest = core.ask(TenantList(after="bb"), TenantsFound)
    assert [[each.name for each in page.tenants] for page in (first, rest)] == [["aa", "bb"], ["cc"]]
    assert (first.more, rest.more) == (True, False)
    assert core.ask(TenantGet("bb"), c.TenantFound) == c.TenantFound("bb", True, False, NOW)
    with pytest.raises(NotFound, match="there is no tenant dd"):
        core.engine.apply(TenantGet("dd"), NOW)
    with pytest.raises(NotFound):
        core.engine.apply(c.TenantPut("dd", suspended=True, must_exist=True), NOW)


@pytest.mark.parametrize("name", ["", "_system.1", "_x", "a\0b", "a\nb", "x" * 256, "\ud800"])
def test_names_that_no_tenant_may_have(core: Core, name: str) -> None:
    for command in (c.TenantPut(name), TokenPut(a_token(tenant=name))):
        with pytest.raises(Invalid):
            core.engine.apply(command, NOW)
    assert core.engine.control.tenants == {}


def test_tokens_are_kept_listed_and_forgotten(core: Core) -> None:
    core.ask(TokenPut(a_token("t1", queues=("orders*",), expires_at=NOW + 1)), TokensFound)
    core.ask(TokenPut(a_token("t2", created_at=NOW - 1)), TokensFound)
    core.ask(TokenPut(a_token("t3", "other")), TokensFound)
    core.restart()
    assert tokens(core) == ["t2", "t1"]
    assert core.engine.control.tokens["t1"] == a_token("t1", queues=("orders*",), expires_at=NOW + 1)
    assert list(core.engine.control.tenants) == ["acme", "other"]
    for tenant, name in (("acme", "t3"), ("acme", "t9"), ("nobody", "t1")):
        with pytest.raises(NotFound, match=f"there is no token {name}"):
            core.engine.apply(TokenDelete(tenant, name), NOW)
    core.ask(TokenDelete("acme", "t1"), TokensFound)
    core.restart()
    assert tokens(core) == ["t2"]


def test_the_use_of_tokens_is_kept(core: Core) -> None:
    core.ask(TokenPut(a_token()), TokensFound)
    core.ask(TokensUsed({"t1": NOW + 5, "gone": NOW}), TokensFound)
    core.ask(TokensUsed({"t1": NOW + 3}), TokensFound)
    core.restart()
    assert core.engine.control.tokens["t1"].used_at == NOW + 5


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"role": "root"}, "role"),
        ({"queues": ("a b",)}, "queues"),
        ({"queues": ("",)}, "queues"),
        ({"queues": ("a",) * 101}, "queues"),
        ({"name": "a\nb"}, "name"),
        ({"name": "n" * 256}, "name"),
        ({"expires_at": NOW}, "expires_at"),
    ],
)
def test_a_token_that_is_not_right_is_refused(core: Core, fields: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        core.engine.apply(TokenPut(a_token(**fields)), NOW)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert core.engine.control.tokens == {}


def test_a_tenant_has_so_many_tokens_at_most(core: Core) -> None:
    for number in range(TOKENS_MAX):
        core.engine.apply(TokenPut(a_token(f"t{number}")), NOW)
    with pytest.raises(Conflict, match="revoke those that nobody uses"):
        core.engine.apply(TokenPut(a_token("more")), NOW)
    core.engine.apply(TokenPut(a_token("more", "other")), NOW)
    with pytest.raises(Conflict, match="a token with this id"):
        core.engine.apply(TokenPut(a_token("more", "third")), NOW)


def test_the_last_token_of_an_admin_can_be_kept(core: Core) -> None:
    core.ask(TokenPut(a_token("root", role="admin")), TokensFound)
    core.ask(TokenPut(a_token("soon", role="admin", expires_at=NOW + 1)), TokensFound)
    with pytest.raises(Invalid, match="an admin is for all queues"):
        core.engine.apply(TokenPut(a_token("some", role="admin", queues=("a*",))), NOW)
    with pytest.raises(Conflict, match="last token of an admin"):
        core.engine.apply(TokenDelete("acme", "root", keep_admin=True), NOW)
    core.ask(TokenPut(a_token("other", "else", role="admin")), TokensFound)
    core.ask(TokenDelete("acme", "root", keep_admin=True), TokensFound)
    core.ask(TokenDelete("else", "other"), TokensFound)


def test_an_engine_that_only_reads_the_control_records_changes_none() -> None:
    core = Core()
    core.ask(TokenPut(a_token()), TokensFound)
    core.commit()
    reader = load(core.store, core.limits, NOW)
    reader.control.epoch = None
    for command in (
        TokenPut(a_token("t2")),
        TokenDelete("acme", "t1"),
        TokensUsed({"t1": NOW}),
        c.TenantPut("new"),
        c.TenantPut("acme", suspended=True),
    ):
        with pytest.raises(Elsewhere):
            reader.apply(command, NOW)
    assert not reader.control.changed
    assert reader.apply(c.TenantPut("acme"), NOW) == c.TenantFound("acme", False, False, NOW)


@pytest.mark.parametrize("value", [b"", b"\x90", b"\x93\x02\x00\x00", b"\x93\x00\x00\x05", b"\x91\xa1x"])
@pytest.mark.parametrize("key", [control_key("acme"), token_key("t1"), control_key("") + b"\xff"])
def test_a_damaged_control_record_is_told(key: bytes, value: bytes) -> None:
    core = Core()
    core.push(tenant="acme")
    core.commit()
    change(core.store, key, value)
    with pytest.raises(Damaged):
        load(core.store, core.limits, NOW)


def test_what_tenants_had_before_they_were_suspended_still_ends(core: Core) -> None:
    core.ask(c.Configure("acme", "q", lease_ms=1_000), queries.QueueFound)
    core.engine.apply(PushJobs("acme", "q", [Job(b"1")]), NOW)
    core.ask(c.Pop("acme", "q"), c.Popped)
    core.ask(c.TenantPut("acme", suspended=True), c.TenantFound)
    core.now += 10_000
    core.engine.tick(core.now)
    core.ask(c.TenantPut("acme", suspended=False), c.TenantFound)
    assert core.popped(tenant="acme") == [b"1"]
