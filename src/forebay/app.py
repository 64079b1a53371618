"""Wires the parts together and runs them. The only place that reads a clock."""

import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
import socket
import stat
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
import uvloop

from forebay import __version__
from forebay.broker.auth import Auth
from forebay.broker.node import Node
from forebay.config import DOORS, OFF, ON, Settings, address, split
from forebay.core.errors import Damaged
from forebay.logs import set_up_logs
from forebay.server import exposure
from forebay.server.flashq.door import Door
from forebay.server.flashq.web.feeds import Noticing
from forebay.server.flashq.web.server import FlashqHttp
from forebay.server.http.listener import HttpListener
from forebay.server.http.server import HttpServer
from forebay.server.operations import codec
from forebay.server.sql_inbox import InboxReader
from forebay.server.tcp.server import TcpServer
from forebay.server.tls import BadFile, Tls
from forebay.store.base import CantOpen, Store, StoreError, TakesPushes
from forebay.store.memory import MemoryStore
from forebay.store.postgres.open import open_database
from forebay.store.rocksdb.reserve import size_bytes
from forebay.store.rocksdb.store import RocksStore

if TYPE_CHECKING:
    from forebay.broker.jwt import Jwt
    from forebay.server.jwks import Jwks

logger = logging.getLogger("forebay")

FREE_MIN_BYTES = 1 << 30
"""Free disk space below which nothing more is taken, unless 5 % of the disk are less."""
SPARE_FILES = 1_000
"""Open files besides connections: those of the store, mostly."""
ADMIN_TOKEN_MIN = 20
"""Characters of an admin token below which the log has a warning."""
STOP_S = 8.0
"""Time for connections to read their last responses on shutdown."""
DELIVERY_STOP_S = 3.0
"""Time for webhook deliveries to finish on shutdown."""


class CantStart(Exception):
    """The server can't start here, and why."""


class CantGoOn(Exception):
    """The server had to stop, and why."""


def clock() -> Callable[[], int]:
    """Return a clock in ms since 1970 that never goes back: wall clock now, time since boot from here on."""
    boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    read = time.clock_gettime_ns
    ahead = time.time_ns() - read(boot)

    def now() -> int:
        return (read(boot) + ahead) // 1_000_000

    return now


def serve(settings: Settings, out: TextIO) -> None:
    """Run a server until it is stopped; ``out`` gets one line of JSON when it is ready."""
    set_up_logs(settings.log_level, settings.log_format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, out))
    finally:
        gc.enable()


def _allow_files(settings: Settings) -> int | None:
    """Raise the limit of open files as far as needed and allowed: each connection is one.

    Return the limit if it is lower than needed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * settings.connections_max + SPARE_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft if soft < wanted else None


async def _serve(settings: Settings, out: TextIO) -> None:
    files = _allow_files(settings)
    loop = asyncio.get_running_loop()
    jwt = _jwt(settings)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    failures: list[str] = []

    def lost(why: str) -> None:
        logger.critical("the store can't be written any more: %s; stopping", why)
        failures.append(why)
        stop.set()

    # Collected before anything is loaded, then not until all of it is frozen: to look through 10,000 queues,
    # none of which is garbage, took 0.7 s of the start.
    gc.collect()
    gc.disable()
    now = clock()
    tls = _read_certificates(settings)
    store = _open(settings)
    if files is not None:  # said only now: if the store can't be opened, nothing but that is said
        logger.info(
            "the system allows %d open files: with more than about %d connections, new ones are not answered "
            "(raise ulimit -n, or lower connections_max)",
            files,
            max(files - SPARE_FILES, 0),
        )
    shards = store.shards(settings.shards or store.shards_default)
    if settings.shards not in (None, shards):
        told = "--shards %d is ignored: the store was made with %d shards, and keeps them"
        logger.warning(told, settings.shards, shards)
    try:
        node = Node(
            store,
            loop,
            now,
            settings.limits(),
            shards=shards,
            memory_bytes_max=settings.memory_bytes_max,
            disk_free_min_bytes=_free_min_bytes(settings),
            lost=lost,
        )
    except (StoreError, Damaged) as error:
        hint = "; restore a backup" if isinstance(error, Damaged) else ""
        raise CantStart(f"{store.name} can't be loaded: {error}{hint}") from error

    def connections() -> dict[str, int]:
        open_ = {name: each.connections for name, each in {"tcp": server, **doors}.items()}
        return {**open_, "flashq_http": web.connections}

    http = HttpServer(
        node,
        loop,
        settings.http_limits(),
        __version__,
        connections,
        clock=now,
        admin_token=settings.admin_token,
        jwt=jwt,
        tls=tls,
    )
    jwks = await _fetch_keys(settings, loop, http.auth, jwt)
    server = TcpServer(node, loop, settings.tcp_limits(), codec, http.services, tls=tls)
    flashq = Door(http.workers, split(settings.flashq_tokens))
    web = FlashqHttp(
        node,
        loop,
        settings.http_limits(),
        flashq,
        http.services,
        tokens=len(split(settings.flashq_tokens)),
        version=__version__,
        clock=now,
        connections=connections,
        tls=tls,
    )
    noticing = Noticing(flashq, web.feeds)
    doors = {"flashq": TcpServer(node, loop, settings.tcp_limits(), noticing, http.services, "flashq", tls)}
    listeners: list[TcpServer | HttpListener] = [server, http, web, *doors.values()]
    if tls is not None:
        tls.takes_tokens = lambda: http.auth.has_tokens or bool(settings.flashq_tokens)

    def reload() -> None:
        """Reload what comes from files: certificates and keys."""
        logger.info("reloading")
        if tls is not None:
            tls.reload()
        http.auth.reload()

    loop.add_signal_handler(signal.SIGHUP, reload)
    if 0 < len(settings.admin_token) < ADMIN_TOKEN_MIN:
        logger.warning("admin_token is short, and could be guessed: use %d characters", ADMIN_TOKEN_MIN)
    if http.auth.has_tokens and http.auth.is_open:
        logger.warning(
            "there are tokens, and none of an admin: everybody needs one, and nobody is an admin until "
            "admin_token is set"
        )
        http.auth.keep_closed()
    try:
        await _check_exposure(settings, http.auth)
        ready = await _listen(settings, server, http, doors, web)
    except CantStart:
        node.close()
        raise
    http.webhooks.start()
    inbox = _read_inbox(store, node)
    ready["store"] = store.name
    # Everything alive now lives on: freeze it, and collect the rest seldom, to keep GC pauses short.
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)
    out.write(msgspec.json.encode(ready).decode() + "\n")
    out.flush()
    logger.info("ready")
    await stop.wait()
    logger.info("stopping")
    for listener in listeners:
        listener.stop_accepting()
        listener.end_all()
    http.webhooks.stop()
    if inbox is not None:
        await inbox.stop()
    if jwks is not None:
        jwks.stop()
    http.auth.close()
    await node.drain()
    closing = (each.close(STOP_S) for each in listeners)
    await asyncio.gather(*closing, http.webhooks.close(DELIVERY_STOP_S))
    await node.drain()
    node.close()
    if settings.unix != OFF:
        Path(settings.unix).unlink(missing_ok=True)
    logger.info("stopped")
    if failures:
        raise CantGoOn(f"{failures[0]}; start the server again, it will go on from what is kept")


def _open(settings: Settings) -> Store:
    directory, database = settings.directory(), settings.database()
    if directory is None and database is None:
        logger.warning("the store is memory: everything is lost when this process ends")
        return MemoryStore(first_epoch=secrets.randbits(31))
    # Next to a busy event loop, the commit thread gets the GIL back in 0.3 ms instead of 5.
    sys.setswitchinterval(1e-4)
    try:
        if directory is not None:
            store = RocksStore(directory.absolute(), _free_min_bytes(settings))
            logger.info("opened %s", directory)
            return store
        assert database is not None
        return open_database(database, node=f"{socket.gethostname()} {settings.tcp}")
    except CantOpen as error:
        raise CantStart(str(error)) from None


def _read_certificates(settings: Settings) -> Tls | None:
    try:
        return settings.tls()
    except BadFile as error:
        raise CantStart(str(error)) from None


def _jwt(settings: Settings) -> "Jwt | None":
    """Return what verifies JWTs, if there are keys for them. Its library is optional, so imported here."""
    if not settings.jwt_keys and not settings.jwt_secret:
        return None
    try:
        from forebay.broker.jwt import BadKeys, Jwt
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jwt", "cryptography"):
            raise
        raise CantStart("JWTs need their library: pip install 'forebay[auth]'") from None
    file = None if not settings.jwt_keys or "://" in settings.jwt_keys else Path(settings.jwt_keys)
    try:
        return Jwt(settings.jwt_rules(), secret=settings.jwt_secret, file=file)
    except BadKeys as error:
        raise CantStart(f"no keys for JWTs: {error}") from None


async def _fetch_keys(
    settings: Settings, loop: asyncio.AbstractEventLoop, auth: Auth, jwt: "Jwt | None"
) -> "Jwks | None":
    """Fetch the keys of JWTs, from now on, if they are at a URL."""
    if jwt is None or "://" not in settings.jwt_keys:
        return None
    from forebay.server.jwks import Jwks

    jwks = Jwks(settings.jwt_keys, loop, auth.take_keys)
    jwt.ask = jwks.ask
    await jwks.start()
    return jwks


def _free_min_bytes(settings: Settings) -> int:
    """Return the free disk space below which nothing more is taken; 0 without a directory."""
    directory, given = settings.directory(), settings.disk_free_min_bytes
    if directory is None or given is not None:
        return given if directory is not None and given is not None else 0
    there = next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())
    return min(FREE_MIN_BYTES, size_bytes(there) // 20)


def _read_inbox(store: Store, node: Node) -> InboxReader | None:
    """Start the inbox reader, if messages can come into the store by another way than commands."""
    if not isinstance(store, TakesPushes):
        return None
    reader = InboxReader(node, store.inbox())
    reader.start()
    return reader


async def _check_exposure(settings: Settings, auth: Auth) -> None:
    """Refuse to let other machines in without TLS, or without asking who they are."""
    loop = asyncio.get_running_loop()
    places = []
    for name in ("http", "tcp", "flashq", "flashq_http"):
        where = settings.door(name)
        place = address(where)
        if place is not None:
            has_tokens = name in DOORS["flashq"] and bool(split(settings.flashq_tokens))
            try:
                addresses = await exposure.resolve(loop, *place)
            except (OSError, UnicodeError) as error:
                raise CantStart(f"can't listen on {where}: {error}") from error
            places.append(exposure.Place(name, where, addresses, has_tokens or not auth.is_open))
    problems = exposure.problems(places, has_tls=bool(settings.tls_cert))
    if problems and settings.insecure != ON:
        raise CantStart("\n".join([*problems, exposure.INSTEAD]))
    for each in problems:
        logger.warning("insecure: %s", each)
    if exposure.exposed(places) and not auth.is_open:
        auth.keep_closed()


async def _listen(
    settings: Settings, server: TcpServer, http: HttpServer, doors: dict[str, TcpServer], web: FlashqHttp
) -> dict[str, object]:
    """Open the sockets and return the readiness line."""
    ready: dict[str, object] = {"ready": True, "http": None, "tcp": None, "unix": None}
    listeners: list[tuple[str, str, Callable[[str, int], Awaitable[str]]]] = [
        ("http", settings.http, http.listen),
        ("tcp", settings.tcp, server.listen_tcp),
        *((name, settings.door(name), door.listen_tcp) for name, door in doors.items()),
        ("flashq_http", settings.door("flashq_http"), web.listen),
    ]
    for name, where, listen in listeners:
        place = address(where)
        try:
            ready[name] = await listen(*place) if place is not None else None
        except (OSError, UnicodeError) as error:
            raise CantStart(f"can't listen on {where}: {error}") from error
    if isinstance(ready["flashq"], str):
        web.system.places["tcp"] = int(ready["flashq"].rpartition(":")[2])
    try:
        if settings.unix != OFF:
            _clear_socket(settings.unix)
            ready["unix"] = await server.listen_unix(settings.unix)
    except OSError as error:
        raise CantStart(f"can't listen on {settings.unix}: {error}") from error
    return ready


def _clear_socket(path: str) -> None:
    """Remove the stale socket of a dead server; raise if a live one listens on it."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise CantStart(f"{path} exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise CantStart(f"a server is already listening on {path}")
