"""Settings come from flags, environment, file and defaults, in that order; what is wrong is said at once."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from forebay.client.access import VARIABLES
from forebay.client.address import SERVER_VARIABLE
from forebay.config import (
    LATER,
    OF_CLIENTS,
    PREFIX,
    BadSettings,
    Settings,
    about,
    address,
    default,
    load,
    names,
)
from forebay.store.memory import MemoryStore
from forebay.store.postgres.store import PostgresStore
from forebay.store.rocksdb.store import RocksStore

Load = Callable[..., Settings]

SAMPLES = {
    "data": "elsewhere",
    "store": "memory:",
    "http": "127.0.0.1:1",
    "tcp": "127.0.0.1:2",
    "unix": "./socket",
    "log_format": "json",
    "log_level": "debug",
    "pop_creates_queues": "on",
    "webhooks_private": "on",
    "webhook_secret": "s",
    "dialects": "flashq",
    "flashq": "127.0.0.1:1",
    "flashq_http": "127.0.0.1:2",
    "flashq_tokens": "a,b",
    "admin_token": "a-long-one-of-the-admin",
    "use_creates_tenants": "off",
    "memory_bytes_max": "1048577",
    "cors": "https://a.example, https://b.example",
    "jwt_keys": "https://id.example/keys",
    "jwt_secret": "x" * 32,
    "jwt_issuer": "https://id.example",
    "jwt_audience": "forebay",
    "jwt_tenant_claim": "t",
    "jwt_role_claim": "r",
    "jwt_queues_claim": "q",
    "jwt_role": "read",
    "jwt_admin": "on",
    "tls_cert": "./server.pem",
    "tls_key": "./server-key.pem",
    "tls_client_ca": "./ca.pem",
    "tls_principals": "*.jobs.example=*/write",
    "insecure": "on",
}
"""Settings that are no numbers, or must be large ones, with values that are good."""
TLS = ("tls_cert", "tls_key", "tls_client_ca", "tls_principals")
BESIDE = {name: {"jwt_keys": "keys.pem"} for name in names() if name.startswith("jwt_")}
BESIDE |= {name: {each: SAMPLES[each] for each in TLS} for name in TLS}
"""Flags that settings need beside them to be good, or to have an effect."""
UNSET = ("shards", "disk_free_min_bytes")
"""Numbers whose default depends on the store."""
NUMBERS = [name for name in names() if name in UNSET or isinstance(getattr(Settings(), name), int)]


@pytest.fixture
def settings(tmp_path: Path) -> Load:
    """Loads settings in a directory whose forebay.toml holds ``toml``, if any."""

    def loaded(
        flags: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        toml: str | None = None,
        file: Path | None = None,
    ) -> Settings:
        if toml is not None:
            (tmp_path / "forebay.toml").write_text(toml)
        return load(flags or {}, environment or {}, file, cwd=tmp_path)

    return loaded


@pytest.fixture
def problems(settings: Load) -> Callable[..., list[str]]:
    """What is wrong with settings, one line each."""

    def found(*given: object, **named: object) -> list[str]:
        with pytest.raises(BadSettings) as refused:
            settings(*given, **named)
        assert str(refused.value).splitlines() == refused.value.problems
        return refused.value.problems

    return found


Problems = Callable[..., list[str]]


def sources(problems: list[str]) -> set[str]:
    """The settings that problems are about, each as its source names it."""
    return {line.partition(":")[0] for line in problems}


def test_a_server_listens_where_clients_of_flashq_look_for_it(settings: Load) -> None:
    assert settings().door("flashq") == settings().door("flashq_http") == "off"
    opened = settings({"dialects": "flashq"})
    assert address(opened.door("flashq")) == ("127.0.0.1", 6789)
    assert address(opened.door("flashq_http")) == ("127.0.0.1", 6790)
    elsewhere = settings({"dialects": "flashq", "flashq": "127.0.0.1:0"})
    assert address(elsewhere.door("flashq")) == ("127.0.0.1", 0)
    one = settings({"dialects": "flashq", "flashq_http": "off"})
    assert (one.door("flashq"), one.door("flashq_http")) == ("127.0.0.1:6789", "off")


def test_without_any_setting_the_defaults_hold(settings: Load) -> None:
    assert settings() == Settings()
    assert settings(environment={"PATH": "/bin", "TCP": "nonsense"}) == Settings()


def test_flags_win_over_environment_over_file_over_defaults(settings: Load) -> None:
    flags = {"shards": "1"}
    environment = {"FOREBAY_SHARDS": "2", "FOREBAY_QUEUES_MAX": "2"}
    toml = "shards = 3\nqueues_max = 3\ngroups_max = 3"
    found = settings(flags, environment, toml)
    assert (found.shards, found.queues_max, found.groups_max) == (1, 2, 3)
    assert found.partitions_max == Settings().partitions_max


def test_what_a_stronger_source_overrides_need_not_be_good(settings: Load) -> None:
    assert settings({"tcp": "h:1"}, {"FOREBAY_TCP": "nonsense"}, "tcp = 5").tcp == "h:1"


def test_there_is_a_sample_of_every_setting() -> None:
    assert {*SAMPLES, *NUMBERS} == set(names())


@pytest.mark.parametrize("name", names())
def test_every_setting_can_be_set_by_flag_environment_and_file(name: str, settings: Load) -> None:
    value = SAMPLES.get(name, "77")
    wanted = int(value) if name in NUMBERS else value
    beside = {other: given for other, given in BESIDE.get(name, {}).items() if other != name}
    by_flag = settings({name: value, **beside})
    assert getattr(by_flag, name) == wanted
    assert settings(beside, {f"FOREBAY_{name.upper()}": value}) == by_flag
    assert settings(beside, {}, f"{name} = {wanted!r}") == by_flag


@pytest.mark.parametrize("name", [*NUMBERS, "store"])
def test_a_bad_value_is_reported_by_the_name_of_its_source(name: str, problems: Problems) -> None:
    flag, variable = f"--{name.replace('_', '-')}", f"FOREBAY_{name.upper()}"
    beside = BESIDE.get(name, {})
    for found, shown in (
        (problems({name: "many", **beside}), flag),
        (problems(beside, {variable: "many"}), variable),
        (problems(beside, {}, f"{name} = 'many'"), f"{name} in forebay.toml"),
    ):
        assert len(found) == 1
        assert sources(found) == {shown}


def test_limits_are_those_of_the_settings(settings: Load) -> None:
    given = {name: SAMPLES.get(name, str(number)) for number, name in enumerate(NUMBERS, 100)}
    found = settings({**given, "jwt_keys": "keys.pem"})
    limits, tcp = found.limits(), found.tcp_limits()
    for name in NUMBERS:
        for part in (limits, tcp):
            assert getattr(part, name, getattr(found, name)) == getattr(found, name)
    assert limits.batch_max == found.batch_max
    assert tcp.stall_ms == found.stall_ms


def test_every_setting_says_what_it_is_for() -> None:
    assert all(about(name).endswith(".") or ":" in about(name) for name in names())
    with pytest.raises(KeyError):
        about("colour")


def test_a_stranger_in_any_source_is_refused(problems: Problems) -> None:
    found = problems({"colour": "red"}, {"FOREBAY_SIZE": "9"}, "shape = 'round'")
    assert sorted(line.partition(":")[0] for line in found) == [
        "--colour",
        "FOREBAY_SIZE",
        "shape in forebay.toml",
    ]
    assert all("no such setting" in line and "log_format" in line for line in found)


def test_a_secret_that_is_not_utf_8_is_refused_and_not_shown(problems: Problems) -> None:
    secret = os.fsdecode(b"hush \xff")
    assert problems({}, {"FOREBAY_WEBHOOK_SECRET": secret}) == ["FOREBAY_WEBHOOK_SECRET: it is not UTF-8"]
    assert problems({"webhook_secret": secret}) == ["--webhook-secret: it is not UTF-8"]


def test_settings_of_tls_that_are_nothing_without_another_say_which(problems: Problems) -> None:
    assert problems({"tls_cert": "a"}, {"FOREBAY_TLS_PRINCIPALS": "*=default/read"}) == [
        "--tls-cert: tls_key has to be set, too: the key of the certificate",
        "FOREBAY_TLS_PRINCIPALS: tls_client_ca has to be set, too: the CA of the clients' certificates",
    ]
    assert problems({"tls_key": "a", "tls_client_ca": "b\0"}) == [
        "--tls-key: tls_cert has to be set, too: the certificate of the key",
        "--tls-client-ca: there is a NUL in it",
        "--tls-client-ca: tls_cert has to be set, too: a certificate of the server",
    ]


def test_principals_of_certificates_are_all_checked(problems: Problems) -> None:
    given = {name: SAMPLES[name] for name in TLS}
    given["tls_principals"] = "a=b, c=default/king, d=*/read, =default/read, e*=_own/read, *=*/read"
    found = problems(given)
    assert sources(found) == {"--tls-principals"}
    assert [line.split("'")[1] for line in found] == [
        "a=b",
        "c=default/king",
        "d=*/read",
        "=default/read",
        "e*=_own/read",
    ]
    assert "'king' is no role, those are read, push, pop, write, owner, admin" in found[1]
    assert "the tenant * needs a * in the pattern" in found[2]


def test_the_address_a_client_asks_is_no_setting_of_the_server(settings: Load) -> None:
    assert settings(environment={"FOREBAY_SERVER": "127.0.0.1:1"}) == Settings()
    of_clients = dict.fromkeys((SERVER_VARIABLE, *VARIABLES.values()), "of a client")
    assert settings(environment=of_clients) == Settings()
    assert {each.removeprefix(PREFIX) for each in of_clients} == OF_CLIENTS


def test_what_comes_later_is_refused_by_name(problems: Problems) -> None:
    found = problems({"grpc": ""}, {"FOREBAY_CAPNP": "x"}, "dialects = ['queen']")
    assert sorted(line.partition(":")[0] for line in found) == [
        "--grpc",
        "FOREBAY_CAPNP",
        "dialects in forebay.toml",
    ]
    for name in LATER.values():
        assert any(f"{name} is not part of this version yet" in line for line in found)


@pytest.mark.parametrize("store", ["postgresql:", "postgres:secret@db/x"])
def test_an_address_of_a_database_that_is_none_is_refused_and_not_shown(
    store: str, problems: Problems
) -> None:
    assert problems({"store": store}) == ["--store: an address begins with postgresql://"]
    assert problems({"store": "postgresql://a:se\0cret@db"}) == ["--store: it is no address of a database"]


def test_a_store_may_be_in_a_database(settings: Load) -> None:
    for database in ("postgresql://app:secret@db:5432/main", "postgres:///main?host=/run"):
        found = settings({"store": database})
        assert found.database() == database
        assert found.directory() is None
    assert settings().database() is None


@pytest.mark.parametrize("store", ["memory", "", "sqlite:x", "memory:x"])
def test_a_store_nobody_knows_is_refused(store: str, problems: Problems) -> None:
    assert problems({"store": store}) == [
        f"--store: {store!r} is not rocksdb:, rocksdb:DIR, postgresql://… or memory:"
    ]


def test_a_store_is_in_the_directory_it_names_or_else_in_data(settings: Load) -> None:
    assert settings().directory() == Path("forebay-data")
    assert settings({"data": "/srv/q"}).directory() == Path("/srv/q")
    assert settings({"data": "/srv/q", "store": "rocksdb:here"}).directory() == Path("here")
    assert settings({"store": "memory:"}).directory() is None


@pytest.mark.parametrize("given", [{"store": "rocksdb:a\0b"}, {"data": "a\0b"}, {"data": ""}])
def test_a_directory_that_can_not_be_is_refused(given: dict[str, str], problems: Problems) -> None:
    (name,) = given
    (line,) = problems(given)
    assert line == f"--{name}: {given[name]!r} is not the path of a directory"


def test_all_unacceptable_numbers_and_names_are_reported_together(problems: Problems) -> None:
    found = problems(
        {"shards": "0", "colour": "red", "grpc": ""},
        {"FOREBAY_BATCH_MAX": "lots", "FOREBAY_SIZE": "9"},
        "wait_ms_max = -1\nstall_ms = 1.5\ntcp = 5",
    )
    assert sources(found) == {
        "--shards",
        "--colour",
        "--grpc",
        "FOREBAY_BATCH_MAX",
        "FOREBAY_SIZE",
        "wait_ms_max in forebay.toml",
        "stall_ms in forebay.toml",
        "tcp in forebay.toml",
    }
    assert len(found) == 8


def test_all_unacceptable_words_are_reported_together(problems: Problems) -> None:
    found = problems(
        {"tcp": "nowhere", "store": "sqlite:x"},
        {"FOREBAY_HTTP": "localhost", "FOREBAY_LOG_FORMAT": "xml"},
        "log_level = 'loud'",
    )
    assert sources(found) == {
        "--tcp",
        "--store",
        "FOREBAY_HTTP",
        "FOREBAY_LOG_FORMAT",
        "log_level in forebay.toml",
    }
    assert len(found) == 5


def test_a_number_out_of_its_bounds_is_told_both(problems: Problems) -> None:
    for given in ("0", "257", "many"):
        assert problems({"shards": given}) == ["--shards: must be a number from 1 to 256"]


BOUNDS = {
    "jwt_leeway_s": (0, 3_600),
    "slow_ms": (1, None),
    "shards": (1, 256),
    "memory_bytes_max": (1 << 20, None),
    "disk_free_min_bytes": (0, None),
    "payload_bytes_max": (1, 1 << 28),
    "batch_max": (1, 10_000_000),
    "lease_ms_max": (1, None),
    "wait_ms_max": (0, None),
    "queues_max": (1, None),
    "partitions_max": (1, None),
    "groups_max": (1, None),
    "frame_bytes_max": (64, 1 << 31),
    "connections_max": (1, None),
    "stall_ms": (1, None),
    "idle_ms": (1, None),
    "metrics_queues_max": (0, 100_000),
    "events_bytes_max": (0, None),
    "events_retention_ms": (1, None),
}


def test_every_number_has_a_bound() -> None:
    assert list(BOUNDS) == NUMBERS


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_taken_at_its_bound_and_refused_past_it(
    name: str, settings: Load, problems: Problems
) -> None:
    low, high = BOUNDS[name]
    for value, past in ((low, low - 1), (high, (high or 0) + 1)):
        if value is not None:
            beside = BESIDE.get(name, {})
            assert getattr(settings({name: str(value), **beside}), name) == value
            assert len(problems({name: str(past), **beside})) == 1


@pytest.mark.parametrize("value", ["", "x", "0x10", "1_000", "٣", "true", "null", "None"])
def test_a_number_is_written_in_digits(value: str, problems: Problems) -> None:
    assert len(problems({"shards": value})) == 1


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("localhost:65535", ("localhost", 65535)),
        ("[::1]:6789", ("::1", 6789)),
        ("[::]:0", ("::", 0)),
        ("off", None),
    ],
)
def test_an_address_is_a_host_and_a_port_or_off(
    value: str, wanted: tuple[str, int] | None, settings: Load
) -> None:
    assert address(value) == wanted
    assert settings({"tcp": value, "http": value, "unix": "./socket"}).tcp == value


def test_a_server_has_to_listen_somewhere(problems: Problems) -> None:
    assert problems({"tcp": "off"}) == ["nothing to listen on: tcp and unix are both off"]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "localhost",
        "6789",
        ":6789",
        "localhost:",
        "localhost:http",
        "h:65536",
        "h:-1",
        "h:1 ",
        "h:٣",
        "OFF",
    ],
)
@pytest.mark.parametrize("name", ["tcp", "http"])
def test_anything_else_is_no_address(name: str, value: str, problems: Problems) -> None:
    with pytest.raises(ValueError):
        address(value)
    assert problems({name: value}) == [f"--{name}: {value!r} is not HOST:PORT or off"]


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("log_format", "text json"),
        ("log_level", "debug info warning error"),
        ("pop_creates_queues", "on off"),
        ("webhooks_private", "on off"),
    ],
)
def test_words_are_taken_from_a_list(name: str, good: str, settings: Load, problems: Problems) -> None:
    for word in good.split():
        assert getattr(settings({name: word}), name) == word
        assert len(problems({name: word.upper()})) == 1
    assert len(problems({name: ""})) == 1


def test_a_store_has_its_own_number_of_shards_unless_one_is_set(settings: Load) -> None:
    assert settings().shards is None
    assert (
        default("shards") == f"{MemoryStore.shards_default}, or {PostgresStore.shards_default} in PostgreSQL"
    )
    assert MemoryStore.shards_default == RocksStore.shards_default


def test_every_default_is_shown_as_it_is_written() -> None:
    for name in names():
        if name in ("flashq", "flashq_http"):
            assert default(name) == Settings().door(name) == "off"
        elif name not in UNSET:
            assert default(name) == str(getattr(Settings(), name))


# The file.


def test_a_file_given_by_name_is_read_instead(settings: Load, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("shards = 2")
    assert settings(toml="shards = 1\nqueues_max = 1", file=other) == Settings(shards=2)


def test_a_file_given_by_name_must_exist(problems: Problems, tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert problems(file=missing) == [f"{missing}: can't be read: No such file or directory"]
    assert len(problems(file=tmp_path)) == 1


@pytest.mark.parametrize("content", [b"shards =", b"shards = 1\nshards = 2", b"\xff\xfe"])
def test_a_broken_file_is_reported(content: bytes, problems: Problems, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_bytes(content)
    (line,) = problems(file=broken)
    assert line.startswith(f"{broken}: not TOML: ")


def test_a_broken_file_is_reported_with_everything_else(problems: Problems) -> None:
    found = problems({"shards": "0"}, {"FOREBAY_SIZE": "9"}, "what is this")
    assert len(found) == 3


def test_tables_and_lists_are_no_values(problems: Problems) -> None:
    assert len(problems(toml="tcp = ['off']\n[unix]\npath = 'x'\n[other]\nx = 1")) == 3


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("", ()),
        ("*", ("*",)),
        ("https://a.example", ("https://a.example",)),
        ("https://a.example, https://b.example,", ("https://a.example", "https://b.example")),
    ],
)
def test_origins_stand_with_commas_between_them(value: str, wanted: tuple[str, ...], settings: Load) -> None:
    assert settings({"cors": value}).http_limits().origins == wanted


# JWT.


def test_keys_come_from_a_file_over_https_or_from_this_machine(settings: Load, problems: Problems) -> None:
    for good in (
        "keys.pem",
        "/etc/keys.json",
        "https://id.example/keys",
        "http://127.0.0.1:1/k",
        "http://[::1]/k",
    ):
        assert settings({"jwt_keys": good}).jwt_keys == good
    for bad in (
        "http://id.example/keys",
        "http://10.0.0.1/keys",
        "http://127.0.0.1.example/keys",
        "http://localhost.example/",
        "http://127.0.0.1@id.example/keys",
        "https://user:hush@id.example/keys",
        "ftp://id.example/keys",
        "file:///etc/keys",
        "https://",
        "https://id.example/keys#a",
    ):
        (line,) = problems({"jwt_keys": bad})
        assert line.startswith("--jwt-keys: ")
        assert "hush" not in line


def test_a_secret_for_jwts_is_long_and_not_shown(settings: Load, problems: Problems) -> None:
    assert settings({"jwt_secret": "é" * 16}).jwt_secret == "é" * 16
    for short in ("x" * 31, "é" * 15):
        assert problems({"jwt_secret": short}) == ["--jwt-secret: at least 32 bytes are needed"]
    (line,) = problems({"jwt_secret": "-----BEGIN PUBLIC KEY-----" + "A" * 32})
    assert "jwt_keys" in line
    assert "AAAA" not in line
    secret = os.fsdecode(b"hush \xff") + "x" * 32
    (line,) = problems({}, {"FOREBAY_JWT_SECRET": secret})
    assert line == "FOREBAY_JWT_SECRET: it is not UTF-8, or has control characters"


def test_settings_for_jwts_without_a_key_are_refused_not_ignored(problems: Problems) -> None:
    found = problems({"jwt_issuer": "https://id.example"}, {"FOREBAY_JWT_ADMIN": "on"}, "jwt_leeway_s = 5")
    assert sources(found) == {"--jwt-issuer", "FOREBAY_JWT_ADMIN", "jwt_leeway_s in forebay.toml"}
    assert all("without jwt_keys or jwt_secret" in line for line in found)


def test_all_that_is_wrong_with_jwts_is_reported_together(problems: Problems) -> None:
    found = problems(
        {"jwt_keys": "http://id.example/", "jwt_secret": "short", "jwt_role": "root", "jwt_admin": "yes"},
        {"FOREBAY_JWT_TENANT_CLAIM": "", "FOREBAY_JWT_ISSUER": "a\0b"},
        "jwt_role_claim = ''\njwt_queues_claim = ''\njwt_leeway_s = -1",
    )
    assert len(found) == 9
    assert len(sources(found)) == 9


def test_the_role_of_a_jwt_without_one_is_admin_only_where_a_jwt_may_be(
    settings: Load, problems: Problems
) -> None:
    beside = {"jwt_keys": "keys.pem", "jwt_role": "admin"}
    assert problems(beside) == ["--jwt-role: it is admin only if jwt_admin is on"]
    assert settings({**beside, "jwt_admin": "on"}).jwt_rules().role == "admin"
