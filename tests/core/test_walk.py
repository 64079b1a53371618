"""The way of a command through the core is as short as docs/ARCHITECTURE.md says."""

import sys
from pathlib import Path
from types import FrameType

from forebay.core.api import commands as c
from tests.core.harness import Core
from tests.test_layers import SOURCE

DATA = ("structures", "state", "log", "records", "api", "ids.py", "bounds.py")
"""Rooms of data: what they hold and how it is laid out, and nothing that is decided."""
PARTS = {f"shard/{name}.py" for name in ("addresses", "change_log", "changes", "timers", "tracks")}
"""Parts of a shard."""
DOCS = SOURCE.parent.parent / "docs" / "ARCHITECTURE.md"


def test_an_ack_that_releases_a_dependency_goes_through_four_files() -> None:
    core = Core()
    first = core.push(b"1")
    second = core.push(b"2", depends_on=((first, 1),))
    lease = core.pop().lease
    core.commit()
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, more: object) -> None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(SOURCE / "core"):
            files[str(file.relative_to(SOURCE / "core"))] = None

    before = sys.gettrace()
    sys.settrace(note)
    try:
        core.engine.apply(c.Ack("default", lease), core.now)
    finally:
        sys.settrace(before)
    assert core.state(second) == "waiting"
    walk = [file for file in files if not file.startswith(DATA) and file not in PARTS]
    assert walk == ["engine.py", "delivery/settle.py", "shard/shard.py", "jobs/dependencies.py"]
    told = DOCS.read_text().partition("## One ack that releases a dependency")[2].partition("\n## ")[0]
    assert all(f"core/{file}" in told for file in walk)
