"""A master and workers of Spark's own, each a process on this machine."""

import os
import socket
import subprocess
import time
from pathlib import Path

from forebay.spark.start import prepare
from tests.serving import PATIENCE_S
from tests.spark import processes
from tests.spark.driving import JAVA, environment

MEMORY = "700m"
"""Of an executor."""


class Cluster:
    """So many workers with one core each. Nothing of them is left when the block ends.

    ``given`` is the environment they are started in, instead of that of a session.
    """

    def __init__(self, home: Path, workers: int, given: dict[str, str] | None = None) -> None:
        self._given = given
        self._home = home
        self._workers = workers
        self._started: list[subprocess.Popen[bytes]] = []
        self._port = _free_port()
        self.master = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> "Cluster":
        if self._given is None:
            prepare()
            self._given = environment(self._home)
        try:
            here = ("--host", "127.0.0.1", "--webui-port", "0")
            self._start("master.Master", *here, "--port", str(self._port))
            self._wait_for_master()
            for number in range(self._workers):
                work = ("--work-dir", str(self._home / f"work-{number}"), "--cores", "1", "--memory", "1g")
                self._start("worker.Worker", *here, *work, self.master)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name: str, *arguments: str) -> None:
        assert self._given is not None
        given = {
            **self._given,
            "SPARK_DAEMON_JAVA_OPTS": f"{JAVA} -Dspark.master.rest.enabled=false",
        }
        with (self._home / "log").open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    [
                        f"{given.get('SPARK_HOME') or os.environ['SPARK_HOME']}/bin/spark-class",
                        f"org.apache.spark.deploy.{name}",
                        *arguments,
                    ],
                    env=given,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait_for_master(self) -> None:
        give_up_at = time.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1.0).close()
            except OSError:
                if time.monotonic() > give_up_at or self._started[0].poll() is not None:
                    raise AssertionError(f"there is no master:\n{self.log()}") from None
                time.sleep(0.05)
            else:
                return

    def log(self) -> str:
        return (self._home / "log").read_text(errors="replace")

    def __exit__(self, *_: object) -> None:
        for each in reversed(self._started):
            for found in processes.of_session(each.pid):
                processes.kill(found.pid)
            each.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
