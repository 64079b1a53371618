"""docs/REFERENCE.md is what the code says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tools import make_reference
from tools.make_reference import PLACE, methods_of
from tools.reference_examples import EXAMPLES

import forebay
from tests.serving import PATIENCE_S, Server


def test_the_reference_is_up_to_date() -> None:
    # In a process of its own: tests of workers put something around the constructor of apps.
    checked = subprocess.run([sys.executable, make_reference.__file__, "--check"], timeout=PATIENCE_S)
    assert checked.returncode == 0


def test_every_public_name_and_every_method_of_the_clients_is_in_the_reference() -> None:
    page = PLACE.read_text()
    for name in forebay.__all__:
        assert name.startswith("_") or re.search(rf"\b{name}\b", page), name
    assert methods_of(forebay.Client).keys() == methods_of(forebay.SyncClient).keys()
    for kind in (forebay.SyncClient, forebay.App, forebay.Task, forebay.Job, forebay.Worker, forebay.Run):
        section = page.partition(f"### {kind.__name__}\n")[2].partition("\n### ")[0]
        for name in methods_of(kind):
            assert re.search(rf"`(await )?{name}[(:]", section), f"{kind.__name__}.{name}"


def test_everything_in_the_reference_has_a_text() -> None:
    page = PLACE.read_text()
    assert re.findall(r"^- `(?:await )?[a-z]\w*\(.*\)(?: -> .*)?`$", page, re.MULTILINE) == []
    assert re.findall(r"^- \*\*`\w+`\*\*: $", page, re.MULTILINE) == []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_of_the_reference_runs(server: Server, name: str) -> None:
    assert f"```python\n{EXAMPLES[name]}```" in PLACE.read_text()
    environment = {**os.environ, "FOREBAY_SERVER": server.tcp, "PYTHONWARNINGS": "error"}
    ran = subprocess.run(
        [sys.executable, "-c", EXAMPLES[name]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    for told in re.findall(r"print\(.*\)  # (.*)$", EXAMPLES[name], re.MULTILINE):
        assert told in ran.stdout
