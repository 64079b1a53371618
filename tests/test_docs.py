"""Do the documents tell the truth? Every name a user can meet is in them, and what they show runs."""

import argparse
import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import __version__, config
from penstock.cli.main import build_parser
from penstock.core.errors import CODES
from penstock.core.model import Backoff, QueueOptions
from penstock.server.dialects.flashq import COMMANDS
from penstock.server.http import operations
from penstock.server.http.base import Operation
from tests.serving import Server

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROTOCOL = (ROOT / "docs" / "PROTOCOL.md").read_text()
OPERATIONS = (ROOT / "docs" / "OPERATIONS.md").read_text()
COVERAGE = (ROOT / "docs" / "COVERAGE.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_each_of_its_fields_is_in_the_protocol(name: str) -> None:
    assert f"### {name}\n" in PROTOCOL
    section = PROTOCOL.split(f"### {name}\n")[1].split("\n## ")[0]
    shared = {"lease", "id", "ids", "group", "partition", "queue", "timeout", "lease_ms", "from", "reqId"}
    for field in msgspec.structs.fields(COMMANDS[name]):
        where = PROTOCOL if field.encode_name in shared else section.split("\n### ")[0]
        assert f"`{field.encode_name}`" in where, field.encode_name


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_is_in_the_protocol(code: str) -> None:
    assert f"| `{code}` |" in PROTOCOL


@pytest.mark.parametrize("option", QueueOptions.__struct_fields__)
def test_every_queue_option_is_in_the_protocol_with_its_default(option: str) -> None:
    default = getattr(QueueOptions(), option)
    shown = f"{default:,}" if type(default) is int else f"`{default}`"
    if isinstance(default, bool):
        shown = f"`{str(default).lower()}`"
    elif default is None or default == ():
        shown = "`null`" if default is None else "`[]`"
    elif isinstance(default, Backoff):
        shown = f"`{default.base_ms}`"
        assert default == Backoff("exponential", default.base_ms, default.base_ms << 10)
    assert f"| `{option}` | {shown} |" in PROTOCOL


@pytest.mark.parametrize("name", config.names())
def test_every_setting_is_in_operations_with_its_default(name: str) -> None:
    assert f"| `{name}` | `{getattr(config.Settings(), name)}` |" in OPERATIONS


def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("name", commands())
def test_every_command_and_flag_of_the_command_line_is_in_operations(name: str) -> None:
    (row,) = (line for line in OPERATIONS.splitlines() if line.startswith(f"| `penstock {name}"))
    for action in commands()[name]._actions:
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        if action.help != argparse.SUPPRESS and flags and not action.dest.startswith("set_"):
            assert flags[0] in row or flags[0] in ("--help", "--server", "--json"), flags[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def blocks(kind: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


# HTTP.

HTTP = PROTOCOL.split("\n## HTTP\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("operation", operations.OPERATIONS, ids=lambda each: each.name)
def test_every_operation_and_each_of_its_fields_is_in_the_protocol(operation: Operation) -> None:
    heading = f"\n### `{operation.method} {operation.path}`\n"
    assert HTTP.count(heading) == 1
    section = HTTP.split(heading)[1].split("\n### ")[0]
    for field in msgspec.structs.fields(operation.request):
        assert f"`{field.encode_name}`" in section, field.encode_name
    for field in msgspec.structs.fields(operation.answer):
        assert re.search(rf'["`]{field.encode_name}["`]', HTTP), field.encode_name


def test_no_operation_in_the_protocol_is_made_up() -> None:
    told = set(re.findall(r"^### `([A-Z]+ /\S+)`$", HTTP, re.MULTILINE))
    assert told == {f"{each.method} {each.path}" for each in operations.OPERATIONS}


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_is_in_the_protocol_with_its_status(code: str) -> None:
    assert re.search(rf"^\| `{code}` \| {CODES[code].status}\b", HTTP, re.MULTILINE)


def curls(block: str) -> list[tuple[str, str]]:
    """The commands of a block, and what is shown behind each as its answer."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("# "):
            found[-1] = (found[-1][0], line.removeprefix("# "))
        else:
            assert "curl -s " in line, line
            found.append((line, ""))
    return found


CURL = "curl" if shutil.which("curl") else f"{sys.executable} -m tests.curl"


def curled(command: str, server: Server, lease: str = "", program: str = CURL) -> Any:
    """What a command of the pages answers, run by a shell as it is, but for the address."""
    said = command.replace("localhost:8080", server.http).replace("LEASE", lease)
    said = said.replace("curl -s ", f"{program} -s -S --fail-with-body ")
    done = subprocess.run(["sh", "-c", said], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return json.loads(done.stdout)


def alike(shown: Any, found: Any) -> bool:
    """Whether an answer is what is shown, where … is anything."""
    if shown == "\u2026":
        return True
    if isinstance(shown, dict) and isinstance(found, dict):
        return shown.keys() == found.keys() and all(alike(shown[name], found[name]) for name in shown)
    if isinstance(shown, list) and isinstance(found, list):
        return len(shown) == len(found) and all(map(alike, shown, found))
    return bool(shown == found)


@pytest.mark.parametrize(
    "program",
    sorted({CURL, f"{sys.executable} -m tests.curl"}),
    ids=lambda program: "curl" if program == "curl" else "ours",
)
def test_the_examples_of_http_are_answered_as_they_say(program: str) -> None:
    examples = [each for block in blocks("sh curl", HTTP) for each in curls(block)]
    assert len(examples) > 8
    lease = ""
    with Server() as server:
        for command, shown in examples:
            found = curled(command, server, lease, program)
            assert alike(json.loads(re.sub(r"(?<!\")\u2026", '"\u2026"', shown)), found), (command, found)
            lease = found.get("lease") or lease


def test_the_quick_start_runs_as_it_is_written() -> None:
    (serve,) = blocks("sh server")
    assert serve == "make serve\n"
    (shell,) = blocks("sh")
    (python,) = blocks("python")
    (over_http,) = blocks("sh curl")
    with Server() as server:
        environment = {**os.environ, "PENSTOCK_SERVER": server.tcp}
        shown = ""
        for line in shell.splitlines():
            program, *arguments = shlex.split(line)
            assert program == ".venv/bin/penstock"
            shown += run(["-m", "penstock", *arguments], environment)
        assert "alan@example.com" in shown
        assert run(["-c", python], environment) == "499500\n"
        told = [curled(command, server) for command, _ in curls(over_http)]
        assert [sorted(each) for each in told] == [
            ["durability", "id"],
            ["lease", "messages"],
            ["cursor", "messages", "total"],
        ]
        assert told[1]["messages"][0]["payload"] == {"to": "grace@example.com"}
        assert told[2]["messages"][0]["id"] == told[0]["id"]


def run(arguments: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_frames_have_the_lengths_they_say() -> None:
    for length, body in re.findall(
        r"^((?:[0-9a-f]{2} ){3}[0-9a-f]{2})  (\{.*?\})(?:   |$)", PROTOCOL, re.MULTILINE
    ):
        assert int(length.replace(" ", ""), 16) == len(body)


ROWS = re.findall(r"^\| ([A-Z]-\d+) \| [^|]* \| ([^|]*) \|", COVERAGE, re.MULTILINE)


def test_the_coverage_has_rows_and_none_twice() -> None:
    assert len(ROWS) > 50
    assert len({row for row, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("row", "shown"), ROWS, ids=[row for row, _ in ROWS])
def test_a_covered_row_names_a_test_or_a_page_that_exists(row: str, shown: str) -> None:
    places = re.findall(r"`([^`]+)`", shown)
    assert places, row
    for place in places:
        path, _, name = place.partition("::")
        assert (ROOT / path).exists(), place
        if name:
            tree = ast.parse((ROOT / path).read_text())
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, place


def test_the_version_is_the_same_everywhere() -> None:
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs" / "DEPENDENCIES.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    wanted = re.findall(r'"([a-z-]+)>=', project)
    assert wanted
    for package in wanted:
        assert package in reasons, package


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_document_has_a_place_left_to_fill_in(page: Path) -> None:
    assert not re.search(r"TODO|TBD|FIXME|^FIGURES$", page.read_text(), re.MULTILINE)
