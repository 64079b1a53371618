"""A client in JavaScript: fetch, a stream of events and a WebSocket, as flashQ's own SDK uses them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.flashq_http.talking import DoorServer

CLIENT = Path(__file__).parent / "client.mjs"
NODE = shutil.which("node")
PATIENCE_S = 60.0


@pytest.mark.skipif(NODE is None, reason="there is no node here")
def test_a_client_in_javascript_lives_a_whole_life(served: DoorServer, queue: str) -> None:
    assert NODE is not None
    ran = subprocess.run(
        [NODE, str(CLIENT), served.door, queue],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "done"), ran.stderr
