"""Settings: one frozen value, from flags, environment, ``forebay.toml`` and defaults, in that order.

Every setting has one name: ``tcp`` is ``--tcp`` on the command line, ``FOREBAY_TCP`` in the environment and
``tcp`` in the file. All problems are reported together, unknown names included.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from forebay.broker.claims import Rules
from forebay.core.api.principals import ADMIN, ROLES
from forebay.core.bounds import Limits
from forebay.core.errors import Invalid
from forebay.server.certificates import read_grant
from forebay.server.http.connection import HttpLimits
from forebay.server.tcp.connection import TcpLimits
from forebay.server.tls import Files, Tls
from forebay.server.webhooks.post import target_of
from forebay.store.address import DATABASES
from forebay.store.base import SHARDS_EMBEDDED, SHARDS_SHARED

FILE = "forebay.toml"
PREFIX = "FOREBAY_"
OFF = "off"
"""Address of a listener that does not run; also switches other settings off."""
ON = "on"

OF_CLIENTS = frozenset({"SERVER", "TOKEN", "TENANT", "CA", "CERT", "KEY"})
"""Variables with our prefix that are for clients: a server does not take them for settings."""

LATER = {
    "grpc": "gRPC",
    "capnp": "Cap'n Proto",
}
"""Known settings whose features do not exist yet: refused by name."""

DOORS = {"flashq": {"flashq": "127.0.0.1:6789", "flashq_http": "127.0.0.1:6790"}}
"""Doors for clients of other systems: their listeners, and where these listen by default."""

SWITCHES = ("insecure",)
"""Settings whose flag may stand alone, and then means ``on``."""

_LIMITS = Limits()
_TCP = TcpLimits()
_HTTP = HttpLimits()


def _about(text: str, ge: int | None = None, le: int | None = None) -> Meta:
    return Meta(description=text, ge=ge, le=le)


class Settings(Struct, frozen=True, kw_only=True):
    """Everything an operator can set."""

    data: Annotated[str, _about("Directory for data, unless store names another.")] = "./forebay-data"
    store: Annotated[
        str,
        _about(
            "Where messages are kept: rocksdb: (in data), rocksdb:DIR, postgresql://USER@HOST/DATABASE, or "
            "memory: (lost at the end)."
        ),
    ] = "rocksdb:"
    http: Annotated[str, _about("HTTP address, HOST:PORT or off. Port 0 picks a free one.")] = (
        "127.0.0.1:8080"
    )
    tcp: Annotated[str, _about("TCP address, HOST:PORT or off. Port 0 picks a free one.")] = "127.0.0.1:6780"
    unix: Annotated[str, _about("Path of a Unix socket, or off.")] = OFF
    dialects: Annotated[
        str,
        _about(
            "Doors for clients of other systems, opened on their default ports, with commas between them: "
            f"{', '.join(DOORS)}."
        ),
    ] = ""
    flashq: Annotated[str, _about("TCP address for clients of flashQ, HOST:PORT or off.")] | None = None
    flashq_http: Annotated[str, _about("HTTP address for clients of flashQ, HOST:PORT or off.")] | None = None
    flashq_tokens: Annotated[
        str,
        _about(
            "Tokens that clients of flashQ's doors must have one of, with commas between them; empty takes "
            "any client. Better set in the environment."
        ),
    ] = ""
    admin_token: Annotated[
        str,
        _about(
            "Token of the first admin; once it is set, every request needs a token. Better set in the "
            "environment."
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        _about("File with the server's certificate chain, PEM: all listeners but the Unix socket speak TLS."),
    ] = ""
    tls_key: Annotated[str, _about("File with the key of that certificate, PEM without a password.")] = ""
    tls_client_ca: Annotated[
        str, _about("File with the CA that certificates of clients must come from, PEM; empty asks for none.")
    ] = ""
    tls_principals: Annotated[
        str,
        _about(
            "Who clients are by their certificates: SAN-PATTERN=TENANT/ROLE, with commas between them; * is "
            "any text, and as the tenant the text that the first * stood for."
        ),
    ] = ""
    insecure: Annotated[
        str, _about("`on`: listen to other machines even without tokens or TLS; `off`: refuse to start.")
    ] = OFF
    use_creates_tenants: Annotated[
        str, _about("`on`: a tenant exists from its first use; `off`: an admin creates it.")
    ] = ON
    jwt_keys: Annotated[
        str,
        _about(
            "Public keys for JWTs: a PEM or JWKS file, or the https:// URL of a JWKS (http:// on this "
            "machine only). Once there are keys, every request needs a token."
        ),
    ] = ""
    jwt_secret: Annotated[
        str,
        _about(
            "Secret of at least 32 bytes for JWTs (HS256; HS384 from 48 bytes, HS512 from 64). Better set in "
            "the environment."
        ),
    ] = ""
    jwt_issuer: Annotated[str, _about("What iss of a JWT must be; empty takes any.")] = ""
    jwt_audience: Annotated[
        str, _about("What must be in aud of a JWT; if empty, a JWT with an aud is refused.")
    ] = ""
    jwt_leeway_s: Annotated[
        int, _about("How far the clocks of issuer and server may be apart, in seconds.", ge=0, le=3_600)
    ] = 30
    jwt_tenant_claim: Annotated[str, _about("Claim of a JWT that names the tenant.")] = "tenant"
    jwt_role_claim: Annotated[str, _about("Claim of a JWT that names the role.")] = "role"
    jwt_queues_claim: Annotated[
        str, _about("Claim of a JWT that lists patterns of queues; without it, it is for all.")
    ] = "queues"
    jwt_role: Annotated[str, _about("Role of a JWT that names none; empty refuses it.")] = ""
    jwt_admin: Annotated[str, _about("`on`: a JWT may have the role admin; `off`: it is refused.")] = OFF
    log_format: Annotated[str, _about("Logs on standard error as text or json.")] = "text"
    log_level: Annotated[str, _about("Least level logged: debug, info, warning or error.")] = "info"
    slow_ms: Annotated[
        int, _about("Requests that take longer, but for the time they wait on purpose, are logged.", ge=1)
    ] = _HTTP.slow_ms
    shards: Annotated[int, _about("Shards of a new store, for good.", ge=1, le=256)] | None = None
    memory_bytes_max: Annotated[
        int, _about("Bytes of payloads kept in memory; the rest is read back when needed.", ge=1 << 20)
    ] = 1 << 28
    disk_free_min_bytes: (
        Annotated[int, _about("Free disk space below which nothing more is taken; 0 watches none.", ge=0)]
        | None
    ) = None
    payload_bytes_max: Annotated[int, _about("Bytes of one payload.", ge=1, le=1 << 28)] = (
        _LIMITS.payload_bytes_max
    )
    batch_max: Annotated[int, _about("Messages of one push, pop or ack.", ge=1, le=10_000_000)] = (
        _LIMITS.batch_max
    )
    lease_ms_max: Annotated[int, _about("How long a lease may last.", ge=1)] = _LIMITS.lease_ms_max
    wait_ms_max: Annotated[int, _about("How long a pop may wait.", ge=0)] = _LIMITS.wait_ms_max
    queues_max: Annotated[int, _about("Queues of one tenant.", ge=1)] = _LIMITS.queues_max
    partitions_max: Annotated[int, _about("Partitions of one queue.", ge=1)] = _LIMITS.partitions_max
    groups_max: Annotated[int, _about("Groups of one queue.", ge=1)] = _LIMITS.groups_max
    frame_bytes_max: Annotated[
        int,
        _about(
            "Bytes of one TCP frame or line, and of one HTTP body or line of a stream.", ge=64, le=1 << 31
        ),
    ] = _TCP.frame_bytes_max
    connections_max: Annotated[int, _about("Connections at a time, of each listener.", ge=1)] = (
        _TCP.connections_max
    )
    stall_ms: Annotated[
        int, _about("How long a client may take to finish a frame or to read an answer.", ge=1)
    ] = _TCP.stall_ms

    idle_ms: Annotated[int, _about("How long an HTTP connection may be idle.", ge=1)] = _HTTP.idle_ms
    cors: Annotated[
        str, _about("Origins whose pages may use the HTTP API, with commas between them; * is any.")
    ] = ""

    metrics_queues_max: Annotated[
        int,
        _about("Queues with metrics of their own; those of all others are summed.", ge=0, le=100_000),
    ] = _HTTP.metrics_queues_max

    webhooks_private: Annotated[
        str, _about("on: webhooks may lead to addresses that are not public, such as 127.0.0.1 or 10.0.0.1.")
    ] = OFF
    webhook_secret: Annotated[
        str,
        _about("What incoming webhooks must be signed with; empty takes any. Better set in the environment."),
    ] = ""

    events_bytes_max: Annotated[
        int, _about("Bytes of lifecycle events kept, of each shard; 0 keeps none.", ge=0)
    ] = 256 * 1024 * 1024
    events_retention_ms: Annotated[int, _about("How long events are kept at most.", ge=1)] = (
        _LIMITS.events_retention_ms
    )
    pop_creates_queues: Annotated[
        str, _about("`on`: a pop creates a missing queue; `off`: the answer is `not_found`.")
    ] = OFF

    def directory(self) -> Path | None:
        """Return the directory of the store, None if it has none."""
        kind, _, place = self.store.partition(":")
        return Path(place or self.data) if kind == "rocksdb" else None

    def database(self) -> str | None:
        """Return the URL of the store's database, None if it has none."""
        return self.store if self.store.startswith(DATABASES) else None

    def limits(self) -> Limits:
        return Limits(
            payload_bytes_max=self.payload_bytes_max,
            batch_max=self.batch_max,
            lease_ms_max=self.lease_ms_max,
            wait_ms_max=self.wait_ms_max,
            queues_max=self.queues_max,
            partitions_max=self.partitions_max,
            groups_max=self.groups_max,
            events_bytes_max=self.events_bytes_max,
            events_retention_ms=self.events_retention_ms,
            pop_creates_queues=self.pop_creates_queues == ON,
            use_creates_tenants=self.use_creates_tenants == ON,
        )

    def jwt_rules(self) -> Rules:
        return Rules(
            issuer=self.jwt_issuer,
            audience=self.jwt_audience,
            leeway_s=self.jwt_leeway_s,
            tenant_claim=self.jwt_tenant_claim,
            role_claim=self.jwt_role_claim,
            queues_claim=self.jwt_queues_claim,
            role=self.jwt_role,
            admin=self.jwt_admin == ON,
        )

    def door(self, name: str) -> str:
        """Return the address of a door's listener, or ``off``."""
        given: str | None = getattr(self, name)
        if given is not None:
            return given
        opened = (DOORS[each] for each in split(self.dialects))
        return next((places[name] for places in opened if name in places), OFF)

    def tls(self) -> Tls | None:
        """Read the certificates, None if there are to be none; raise ``BadFile`` if they don't do."""
        if not self.tls_cert:
            return None
        files = Files(self.tls_cert, self.tls_key, self.tls_client_ca)
        return Tls(files, tuple(map(read_grant, split(self.tls_principals))))

    def tcp_limits(self) -> TcpLimits:
        return TcpLimits(
            frame_bytes_max=self.frame_bytes_max,
            connections_max=self.connections_max,
            stall_ms=self.stall_ms,
        )

    def http_limits(self) -> HttpLimits:
        return HttpLimits(
            body_bytes_max=self.frame_bytes_max,
            connections_max=self.connections_max,
            stall_ms=self.stall_ms,
            idle_ms=self.idle_ms,
            slow_ms=self.slow_ms,
            origins=split(self.cors),
            webhooks_private=self.webhooks_private == ON,
            webhook_secret=self.webhook_secret,
            metrics_queues_max=self.metrics_queues_max,
        )


def split(text: str) -> tuple[str, ...]:
    """Return the values of a setting that takes several, with commas between them."""
    return tuple(filter(None, text.replace(" ", "").split(",")))


class BadSettings(Exception):
    """Everything that is wrong with the settings, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def about(name: str) -> str:
    """Return the description of a setting."""
    for field in msgspec.structs.fields(Settings):
        if field.name == name:
            _, meta = get_args(_type(field))
            return str(meta.description)
    raise KeyError(name)


def default(name: str) -> str:
    """Return the default of a setting, as it is shown to people."""
    if name == "shards":
        return f"{SHARDS_EMBEDDED}, or {SHARDS_SHARED} in PostgreSQL"
    if name == "disk_free_min_bytes":
        return "1 GiB, or 5 % of a smaller disk"
    value = getattr(Settings(), name)
    return OFF if value is None else str(value)


def names() -> list[str]:
    """Return the names of all settings."""
    return list(Settings.__struct_fields__)


def load(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None, *, cwd: Path
) -> Settings:
    """Return the settings in force, or raise ``BadSettings``. ``file`` must exist if it is given."""
    problems: list[str] = []
    given: dict[str, tuple[str, Any]] = {}
    path = file or cwd / FILE
    for source, values in (
        (str(file or FILE), _from_file(path, file is not None, problems)),
        (PREFIX, _from_environment(environment)),
        ("--", flags),
    ):
        for name, value in values.items():
            given[name] = (_shown(source, name), value)
    known: dict[str, Any] = {}
    for name, (shown, value) in given.items():
        problem = _refusal(name, shown)
        if problem:
            problems.append(problem)
        else:
            known[name] = value
    places = {name: shown for name, (shown, _) in given.items()}
    settings = _convert(known, places, problems)
    _check(settings, places, problems)
    if problems:
        raise BadSettings(problems)
    return settings


def address(value: str) -> tuple[str, int] | None:
    """Return host and port of HOST:PORT, or None for ``off``.

    >>> address("127.0.0.1:0"), address("[::1]:80"), address("off")
    (('127.0.0.1', 0), ('::1', 80), None)
    """
    if value == OFF:
        return None
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(value)
    return host, int(port)


def _shown(source: str, name: str) -> str:
    if source == PREFIX:
        return PREFIX + name.upper()
    return f"--{name.replace('_', '-')}" if source == "--" else f"{name} in {source}"


def _from_file(path: Path, must_exist: bool, problems: list[str]) -> dict[str, Any]:
    if not must_exist and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        problems.append(f"{path}: can't be read: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not TOML: {error}")
    return {}


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OF_CLIENTS
    }


def _refusal(name: str, shown: str) -> str | None:
    if name in LATER:
        return f"{shown}: {LATER[name]} is not part of this version yet; leave it out"
    if name not in Settings.__struct_fields__:
        return f"{shown}: there is no such setting; known are {', '.join(names())}"
    return None


def _convert(values: dict[str, Any], shown: dict[str, str], problems: list[str]) -> Settings:
    """Convert text or TOML values to settings; every bad value adds one problem."""
    good: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        if field.name in values:
            try:
                good[field.name] = msgspec.convert(values[field.name], _type(field), strict=False)
            except msgspec.ValidationError as error:
                problems.append(f"{shown[field.name]}: {_accepted(field) or error}")
    return Settings(**good)


def _accepted(field: msgspec.structs.FieldInfo) -> str:
    """Return what a number may be, if it has both bounds; the error of msgspec tells only one."""
    meta = next((each for each in getattr(_type(field), "__metadata__", ()) if isinstance(each, Meta)), None)
    if meta is None or meta.ge is None or meta.le is None:
        return ""
    return f"must be a number from {meta.ge} to {meta.le}"


def _type(field: msgspec.structs.FieldInfo) -> Any:
    """Return the type of a value that is given: None only stands for one that is not."""
    return field.type if get_origin(field.type) is Annotated else get_args(field.type)[0]


def _check(settings: Settings, shown: dict[str, str], problems: list[str]) -> None:
    """Check what types can't express."""

    def bad(name: str, accepted: str) -> None:
        problems.append(f"{shown.get(name, name)}: {getattr(settings, name)!r} is not {accepted}")

    for name in ("http", "tcp", "flashq", "flashq_http"):
        try:
            given = getattr(settings, name)
            address(OFF if given is None else given)
        except ValueError:
            bad(name, "HOST:PORT or off")
    if not set(split(settings.dialects)) <= DOORS.keys():
        bad("dialects", f"some of {', '.join(DOORS)}, with commas between them")
    if not settings.unix or "\0" in settings.unix:
        bad("unix", "a path or off")
    if settings.tcp == OFF and settings.unix == OFF:
        problems.append("nothing to listen on: tcp and unix are both off")
    if settings.log_format not in ("text", "json"):
        bad("log_format", "text or json")
    if settings.log_level not in ("debug", "info", "warning", "error"):
        bad("log_level", "debug, info, warning or error")
    for name in ("pop_creates_queues", "use_creates_tenants", "webhooks_private", "insecure"):
        if getattr(settings, name) not in (ON, OFF):
            bad(name, "on or off")
    if (
        not (settings.admin_token.isascii() and settings.admin_token.isprintable())
        or " " in settings.admin_token
    ):
        problems.append(f"{shown['admin_token']}: it is not printable ASCII without spaces")  # it is a secret
    _check_tls(settings, shown, problems)
    if not _is_text(settings.webhook_secret):
        problems.append(f"{shown['webhook_secret']}: it is not UTF-8")  # not shown: it is a secret
    _check_jwt(settings, shown, problems)
    if settings.store.startswith(DATABASES):
        if not _is_text(settings.store) or "\0" in settings.store:
            problems.append(f"{shown['store']}: it is no address of a database")  # it may have a password
    elif settings.store != "memory:" and not settings.store.startswith("rocksdb:"):
        if settings.store.startswith("postgres") or "://" in settings.store or "@" in settings.store:
            problems.append(f"{shown['store']}: an address begins with postgresql://")  # likewise
        elif "=" in settings.store:
            problems.append(f"{shown['store']}: an address is postgresql://USER@HOST/DATABASE")
        else:
            bad("store", "rocksdb:, rocksdb:DIR, postgresql://… or memory:")
    elif "://" in settings.data:
        problems.append(f"{shown['data']}: a directory; the address of a database goes to store")
    elif "\0" in settings.store or not settings.data or "\0" in settings.data:
        bad("data" if "\0" not in settings.store else "store", "the path of a directory")


JWT_SECRET_BYTES_MIN = 32
"""A shorter secret can be guessed from one token: RFC 7518, 3.2."""
LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")


def _check_jwt(settings: Settings, shown: dict[str, str], problems: list[str]) -> None:
    """Check how JWTs are verified: a mistake here would let strangers in, or nobody."""

    def bad(name: str, problem: str) -> None:
        problems.append(f"{shown.get(name, name)}: {problem}")

    names = [name for name in Settings.__struct_fields__ if name.startswith("jwt_")]
    unclean = [name for name in names if not _is_clean(str(getattr(settings, name)))]
    for name in unclean:
        bad(name, "it is not UTF-8, or has control characters")
    if not settings.jwt_keys and not settings.jwt_secret:
        for name in names:
            if shown.get(name) and name not in ("jwt_keys", "jwt_secret"):
                bad(name, "it has no effect without jwt_keys or jwt_secret")
    if "://" in settings.jwt_keys and (problem := _url_problem(settings.jwt_keys)):
        bad("jwt_keys", problem)
    if settings.jwt_secret and "jwt_secret" not in unclean:  # it is not shown: it is a secret
        if len(settings.jwt_secret.encode()) < JWT_SECRET_BYTES_MIN:
            bad("jwt_secret", f"at least {JWT_SECRET_BYTES_MIN} bytes are needed")
        elif "-----BEGIN" in settings.jwt_secret:
            bad("jwt_secret", "a key is no secret: write it to a file, and name that in jwt_keys")
    for name in ("jwt_tenant_claim", "jwt_role_claim", "jwt_queues_claim"):
        if not getattr(settings, name):
            bad(name, "it names a claim")
    if settings.jwt_role and settings.jwt_role not in ROLES:
        bad("jwt_role", f"{settings.jwt_role!r} is not one of {', '.join(ROLES)}")
    if settings.jwt_admin not in (ON, OFF):
        bad("jwt_admin", f"{settings.jwt_admin!r} is not on or off")
    elif settings.jwt_role == ADMIN and settings.jwt_admin == OFF:
        bad("jwt_role", "it is admin only if jwt_admin is on")


def _url_problem(url: str) -> str:
    """Return why keys may not come from a URL; empty if they may."""
    try:
        target = target_of(url)
    except Invalid as error:
        return error.message
    if target.scheme == "http" and not LOOPBACK.fullmatch(target.host):
        return "keys come over https: whoever is between could send others"
    return ""


def _is_clean(value: str) -> bool:
    return _is_text(value) and all(each.isprintable() or each.isspace() for each in value)


NEEDS = (
    ("tls_cert", "tls_key", "the key of the certificate"),
    ("tls_key", "tls_cert", "the certificate of the key"),
    ("tls_client_ca", "tls_cert", "a certificate of the server"),
    ("tls_principals", "tls_client_ca", "the CA of the clients' certificates"),
)
"""Settings of TLS that are nothing without another, and what that is."""


def _check_tls(settings: Settings, shown: dict[str, str], problems: list[str]) -> None:
    for name, needed, what in NEEDS:
        if "\0" in getattr(settings, name):
            problems.append(f"{shown[name]}: there is a NUL in it")
        if getattr(settings, name) and not getattr(settings, needed):
            problems.append(f"{shown[name]}: {needed} has to be set, too: {what}")
    for each in split(settings.tls_principals):
        try:
            read_grant(each)
        except Invalid as error:
            problems.append(f"{shown['tls_principals']}: {each!r} is not {error.accepted}")


def _is_text(value: str) -> bool:
    """Return whether a value was UTF-8: other bytes of the environment come as surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
