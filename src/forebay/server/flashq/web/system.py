"""The server itself: health, figures of its process, its settings, and what can't be set over HTTP."""

import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from forebay.broker.node import Node
from forebay.core.api.principals import OWNER, READ
from forebay.server.flashq.web.calls import Call, Handler
from forebay.server.flashq.web.commands import Refused
from forebay.server.flashq.web.routes import Route

MB = 1024 * 1024
_encode = msgspec.json.Encoder().encode

BY_SIGNAL = "The server is stopped by SIGTERM and started by whoever runs it, not over HTTP"
AT_START = "This is set when the server is started, not over HTTP; see its settings"
NO_SQLITE = "There is no SQLite file here: jobs are kept in the server's own store"
NO_S3 = "Backups to S3 are not part of this server; it has a backup of its own"
REFUSED = {
    ("POST", "/server/shutdown"): BY_SIGNAL,
    ("POST", "/server/restart"): BY_SIGNAL,
    (
        "POST",
        "/server/reset",
    ): "Nothing forgets all jobs at once; clear-queues, clear-dlq and clear-completed do parts",
    ("POST", "/server/reset-metrics"): "Totals are counters, which start from 0 with the server only",
    ("POST", "/settings/auth"): AT_START,
    ("POST", "/settings/queue-defaults"): AT_START,
    ("POST", "/settings/cleanup"): AT_START,
    ("GET", "/sqlite/settings"): NO_SQLITE,
    ("POST", "/sqlite/settings"): NO_SQLITE,
    ("GET", "/sqlite/stats"): NO_SQLITE,
    ("GET", "/sqlite/export"): NO_SQLITE,
    ("GET", "/sqlite/download"): NO_SQLITE,
    ("POST", "/sqlite/restore"): NO_SQLITE,
    ("POST", "/sqlite/async-writer"): NO_SQLITE,
    ("GET", "/s3/settings"): NO_S3,
    ("POST", "/s3/settings"): NO_S3,
    ("POST", "/s3/test"): NO_S3,
    ("POST", "/s3/backup"): NO_S3,
    ("GET", "/s3/backups"): NO_S3,
    ("POST", "/s3/restore"): NO_S3,
}
"""Routes of flashQ that are refused, and why."""


def refusing(why: str) -> Handler:
    async def refuse(call: Call) -> Raw:
        raise Refused(501, why)

    return refuse


class Facts(Struct, frozen=True):
    """What does not change while the server runs."""

    version: str
    started_at: int
    tokens: int
    """How many there are of which a request must have one; 0 if it needs none."""


class System:
    """Answers questions about the server."""

    def __init__(
        self, node: Node, facts: Facts, clock: Callable[[], int], connections: Callable[[], Mapping[str, int]]
    ) -> None:
        self._node, self._facts, self._clock, self._connections = node, facts, clock, connections
        self._spent_before = _spent_s()
        self.places: dict[str, int] = {}
        """Ports of flashQ's doors that are open, by name."""

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/health", self.health, "Whether the server takes requests."),
            Route("HEAD", "/health", self.health, "The same without the body."),
            Route(
                "GET",
                "/settings",
                self.settings,
                "Settings that are shown; none are set here.",
                needs=(READ,),
                of_server=True,
            ),
            Route(
                "POST",
                "/settings/cleanup/run",
                self.clean,
                "Nothing to do: old jobs go by themselves.",
                needs=(OWNER,),
                of_server=True,
            ),
            Route(
                "GET",
                "/system/metrics",
                self.metrics,
                "Memory, CPU and disk of the process.",
                needs=(READ,),
                of_server=True,
            ),
            Route(
                "GET", "/debug/memory", self.memory, "Memory of the process.", needs=(READ,), of_server=True
            ),
            Route("GET", "/cluster/nodes", self.nodes, "The nodes: this one.", needs=(READ,), of_server=True),
            *(
                Route(*route, refusing(why), f"Refused: {why}.", needs=(READ,))
                for route, why in REFUSED.items()
            ),
        ]

    @property
    def uptime_ms(self) -> int:
        return max(self._clock() - self._facts.started_at, 0)

    async def health(self, call: Call) -> Raw:
        why = "The server is stopping" if self._node.draining else self._node.broken
        if why is not None:
            raise Refused(503, why)
        return _raw({"status": "healthy", "uptime_ms": self.uptime_ms, "sqlite_enabled": False})

    async def settings(self, call: Call) -> Raw:
        return _raw(
            {
                "version": self._facts.version,
                "tcp_port": self.places.get("tcp"),
                "http_port": self.places.get("http"),
                "sqlite": {"enabled": False},
                "s3_backup": {"enabled": False},
                "auth_enabled": bool(self._facts.tokens),
                "auth_token_count": self._facts.tokens,
                "uptime_seconds": self.uptime_ms // 1_000,
            }
        )

    async def clean(self, call: Call) -> Raw:
        return _raw("Old jobs are removed by themselves")

    async def nodes(self, call: Call) -> Raw:
        now = self._clock()
        node = {
            "node_id": str(os.getpid()),
            "is_leader": True,
            "started_at": self._facts.started_at,
            "last_heartbeat": now,
        }
        return _raw([node])

    async def metrics(self, call: Call) -> Raw:
        return _raw(self.figures())

    def figures(self) -> dict[str, float | int | str]:
        """Return flashQ's figures of the process, as far as the system tells them."""
        resident, virtual = memory_bytes()
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = self.uptime_ms / 1_000
        spent = _spent_s() - self._spent_before
        read, written = used.ru_inblock * 512, used.ru_oublock * 512
        return {
            "memory_used_mb": round(resident / MB, 2),
            "memory_total_mb": round(total / MB, 2),
            "memory_percent": round(resident * 100 / total, 2),
            "memory_rss_mb": round(resident / MB, 2),
            "memory_virtual_mb": round(virtual / MB, 2),
            "cpu_percent": round(spent * 100 / seconds, 2) if seconds else 0.0,
            "disk_read_bytes": read,
            "disk_written_bytes": written,
            "disk_read_mb": round(read / MB, 2),
            "disk_written_mb": round(written / MB, 2),
            "process_id": os.getpid(),
            "start_time_unix": self._facts.started_at // 1_000,
            "run_time_seconds": int(seconds),
            "process_status": "Run",
            "tcp_connections": sum(self._connections().values()),
            "uptime_seconds": int(seconds),
        }

    async def memory(self, call: Call) -> Raw:
        resident, virtual = memory_bytes()
        return _raw(
            {
                "memory_rss_bytes": resident,
                "memory_virtual_bytes": virtual,
                "payload_bytes": self._node.body_bytes,
            }
        )


def _spent_s() -> float:
    """Return the CPU time of the process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory_bytes() -> tuple[int, int]:
    """Return the resident and the virtual memory of the process."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        virtual, resident, *_ = map(int, Path("/proc/self/statm").read_text().split())
    except OSError:  # not Linux: only the most it ever had is known
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most, most
    return resident * page, virtual * page


def _raw(value: object) -> Raw:
    return Raw(_encode(value))
