"""Do the documents tell the truth? Every name a user can meet is in them, and what they show runs."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from tools import make_places, make_protocol

from forebay import __version__, config
from forebay.cli.commands import Command
from forebay.cli.main import PROGRAM, cli
from forebay.core.errors import CODES
from forebay.core.state import Backoff, Event, QueueOptions
from forebay.core.words import EVENT_KINDS, WORKER_KINDS
from forebay.server.events.backlog import Lost
from forebay.server.events.workers import WorkerEvent
from forebay.server.http import routes as http_routes
from forebay.server.http.endpoint import Resource
from forebay.server.http.operation import View
from forebay.wire.operation import Operation
from forebay.wire.operations.pop import Delivered
from forebay.wire.operations.push import Options
from forebay.wire.table import OPERATIONS as DECLARED
from tests.server.http.streaming import Here, Stream, get
from tests.serving import Server, pop, push

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROTOCOL = (ROOT / "docs" / "PROTOCOL.md").read_text()
OPERATIONS = (ROOT / "docs" / "OPERATIONS.md").read_text()
COVERAGE = (ROOT / "docs" / "COVERAGE.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_tables_of_the_protocol_are_those_of_the_declarations() -> None:
    assert make_protocol.missing(PROTOCOL) == []
    assert make_protocol.with_tables(PROTOCOL) == PROTOCOL


@pytest.mark.parametrize("operation", DECLARED, ids=lambda each: each.name)
def test_every_command_and_each_of_its_fields_is_in_the_protocol(
    operation: Operation,
) -> None:
    (row,) = (line for line in PROTOCOL.splitlines() if line.startswith(f"| `{operation.name}`, "))
    for route in operation.routes:
        assert f"`{route.method} {route.path}`" in row
    shared = ("reqId", "tenant", *Options.__struct_fields__)
    for field in msgspec.structs.fields(operation.request):
        where = PROTOCOL if field.name in shared else row
        assert f"`{field.encode_name}`" in where, field.encode_name
    for field in msgspec.structs.fields(operation.answer):
        assert f"`{field.encode_name}`" in PROTOCOL, field.encode_name


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
    assert f"| `{name}` | `{config.default(name)}` |" in OPERATIONS


def commands(group: click.Group = cli, path: str = PROGRAM) -> dict[str, click.Command]:
    """Every command of the command line, those of groups too, by what is typed."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        typed = f"{path} {name}"
        found |= commands(command, typed) if isinstance(command, click.Group) else {typed: command}
    return found


COMMAND_ROWS = [
    re.match(r"\| `(forebay(?: [a-z]+)+)", line) for line in OPERATIONS.splitlines() if "| `forebay" in line
]


@pytest.mark.parametrize("path", commands())
def test_every_command_and_flag_of_the_command_line_is_in_operations(path: str) -> None:
    (row,) = (line for line in OPERATIONS.splitlines() if re.match(rf"\| `{path}[ `]", line))
    command = commands()[path]
    shown = set(re.findall(r"`(--[a-z-]+)`", row))
    everywhere = {"--help", "--server", "--json"}
    flags = {
        param.opts[0]
        for param in command.get_params(click.Context(command))
        if isinstance(param, click.Option) and not param.hidden and not (param.name or "").startswith("set_")
    }
    assert shown == flags - everywhere


def test_no_command_in_operations_is_made_up() -> None:
    assert sorted(row[1] for row in COMMAND_ROWS if row) == sorted(commands())


@pytest.mark.parametrize("path", commands())
def test_every_command_has_help_and_an_example_of_itself(path: str) -> None:
    command = commands()[path]
    assert isinstance(command, Command)
    assert command.help
    (example, *_) = re.split("    or    | >> ", command.example)
    assert example.startswith(path)
    with command.make_context(path, shlex.split(example.removeprefix(path))):
        pass  # it is taken as it is shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def blocks(kind: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


# HTTP.


def section(title: str) -> str:
    return PROTOCOL.split(f"\n## {title}\n")[1].split("\n## ")[0]


def stream(path: str) -> str:
    """What is said of a stream or a page."""
    return PROTOCOL.split(f"\n### `GET {path}`\n")[1].split("\n### ")[0].split("\n## ")[0]


EVENTS, HEALTH = map(section, ("Events", "Health and figures"))
LISTENING = stream("/v1/queues/{queue}/listen")


def test_no_route_in_the_protocol_is_made_up_and_none_is_missing() -> None:
    told = re.findall(r"`((?:GET|POST|PUT|DELETE) /[^\s`?]*)[^`]*`", PROTOCOL)
    made = {f"{each.route.method} {each.route.path}" for each in http_routes.ROUTES}
    with Here() as here:
        routes: list[Any] = list(filter(is_view, here.server.routes))
    shown = {f"GET {each.path.replace(':path', '')}" for each in routes}
    assert len(shown) == len(http_routes.VIEWS) + len(["/v1/events/ws", "/openapi.json", "/docs"])
    assert set(told) == made | shown


def test_no_command_in_the_protocol_is_made_up() -> None:
    named = re.findall(r'"cmd": ?"(\w+)"', PROTOCOL)
    assert named
    assert set(named) <= {each.name for each in DECLARED}


def is_view(route: Any) -> bool:
    """Whether a route is a stream or a page, and no operation."""
    return not isinstance(route.endpoint, Resource)


@pytest.mark.parametrize("view", http_routes.VIEWS, ids=lambda view: view.name)
def test_every_field_of_a_stream_is_in_the_protocol(view: View) -> None:
    part = stream(view.path)
    for field in msgspec.structs.fields(view.request):
        assert f"| `{field.encode_name}` |" in part, field.encode_name


@pytest.mark.parametrize("kind", [*EVENT_KINDS, *WORKER_KINDS])
def test_every_kind_of_event_is_in_the_protocol(kind: str) -> None:
    assert f"\n| `{kind}` | " in EVENTS


def test_every_field_of_an_event_is_in_the_protocol_with_an_example() -> None:
    (example,) = blocks("json event", EVENTS)
    fields = {each.encode_name for each in msgspec.structs.fields(Event)}
    (progressed,) = blocks("json progressed", EVENTS)
    assert set(json.loads(example)) | set(json.loads(progressed)) == fields
    table = EVENTS.split("| field | |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|$", "", table, flags=re.MULTILINE))) == fields
    (worker,) = blocks("json worker", EVENTS)
    assert set(json.loads(worker)) == {each.encode_name for each in msgspec.structs.fields(WorkerEvent)}
    lost = {each.encode_name for each in msgspec.structs.fields(Lost)}
    (told,) = re.findall(r'^  `(\{"kind": "lost".*\})`', EVENTS, re.MULTILINE)
    assert set(json.loads(told)) == lost


def test_the_streams_that_are_shown_are_what_the_server_sends() -> None:
    for part, kind in ((EVENTS, Event), (LISTENING, Delivered)):
        shown = re.findall(r"^data: (\{.*)$", part, re.MULTILINE)
        assert shown
        for each in shown:
            known = {field.encode_name for field in msgspec.structs.fields(kind)}
            msgspec.json.decode(each, type=kind)
            assert set(json.loads(each)) <= known
    with Here() as here, here.connect() as client:
        with Stream(here.http, "/v1/events?queue=emails&from=all") as stream:
            client.ask({"cmd": "PUSH", "queue": "emails", "messages": [1, 2], "task": "send"})
            client.ask({"cmd": "ACK", "ids": [pop(client, "emails")["id"]]})
            *_, settled = stream.until("settled")
        (example,) = blocks("json event", EVENTS)
        assert settled.told.keys() == json.loads(example).keys()
        with Stream(here.http, "/v1/events?queue=emails&from=all") as stream:
            client.ask({"cmd": "SETPROGRESS", "id": pop(client, "emails")["id"], "progress": 50})
            *_, told = stream.until("progressed")
        (example,) = blocks("json progressed", EVENTS)
        assert told.told.keys() == json.loads(example).keys()
        assert told.told["progress"] == json.loads(example)["progress"]
        assert comments(here, "/v1/events") == ["listening"]
        assert comments(here, "/v1/events?from=all") == ["resuming", "caught up"]
        assert comments(here, "/v1/queues/emails/listen") == ["listening"]
    for word in (": listening", ": resuming", ": caught up"):
        assert f"`{word}`" in EVENTS


def comments(here: Here, path: str) -> list[str]:
    """The comments of a stream up to where it has told everything."""
    found = []
    with Stream(here.http, path) as stream:
        while (block := stream.block()) is not None:
            found += [block.comment] if block.comment else []
            if block.is_ready:
                break
    return found


def test_every_figure_is_in_the_protocol_with_its_labels() -> None:
    with Here() as here, here.connect() as client:
        client.ask({"cmd": "PUSH", "queue": "q", "payload": 1, "task": "send"})
        client.ask({"cmd": "ACK", "ids": [pop(client, "q")["id"]]})
        pop(client, "q", group="audit")
        push(client, "q", 1)
        client.ask(
            {"cmd": "RELEASE", "ids": [pop(client, "q")["id"]], "defer_ms": 60_000, "error": "unknown"}
        )
        client.ask({"cmd": "WORKER", "name": "w"})
        text = get(here.http, "/metrics")[1]
    labels: dict[str, set[str]] = {}
    for name in re.findall(r"^# TYPE (\w+)", text, re.MULTILINE):
        samples = re.findall(rf"^{name}(?:_bucket)?(?:\{{(.*)\}})? ", text, re.MULTILINE)
        labels[name] = {label for each in samples for label in re.findall(r'(\w+)="', each)}
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\| [^|]+ \|$", HEALTH, re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", given)) for name, given in rows}
    ours = {name: each for name, each in labels.items() if not name.startswith("flashq_")}
    assert {name: each for name, each in told.items() if name in labels} == ours
    assert all(name.startswith("process_") for name in told.keys() - labels.keys())


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_is_in_the_protocol_with_its_status(code: str) -> None:
    assert re.search(rf"^\| `{code}` \| {CODES[code].status}\b", PROTOCOL, re.MULTILINE)


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
    examples = [each for block in blocks("sh curl", PROTOCOL) for each in curls(block)]
    assert len(examples) > 8
    lease = ""
    with Server() as server:
        for command, shown in examples:
            found = curled(command, server, lease, program)
            assert alike(json.loads(re.sub(r"(?<!\")\u2026", '"\u2026"', shown)), found), (command, found)
            lease = found.get("lease") or lease


def test_the_example_frames_have_the_lengths_they_say() -> None:
    for length, body in re.findall(
        r"^((?:[0-9a-f]{2} ){3}[0-9a-f]{2})  (\{.*?\})(?:   |$)", PROTOCOL, re.MULTILINE
    ):
        assert int(length.replace(" ", ""), 16) == len(body)


# Coverage.


def table(title: str) -> list[list[str]]:
    """The rows of a table of the coverage, cell by cell."""
    part = COVERAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


MET, FIGURES, SETTLED = map(table, ("Met", "Figures", "Settled otherwise, and why"))
LETTERS = {"Q": 147, "U": 157, "F": 166, "K": 83, "T": 98}
"""What rows begin with, in order, and how many there are of each."""


@cache
def functions(path: str) -> set[str]:
    """What is defined in a file, inside of classes too."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def named(cell: str) -> list[tuple[str, str]]:
    """Files that are named, and which function of each, if any."""
    return [(path, name) for path, _, name in (each.partition("::") for each in re.findall("`(.+?)`", cell))]


def is_test(path: str, name: str) -> bool:
    return path.startswith("tests/") and (name or Path(path).name).startswith("test_")


def test_the_rows_of_the_coverage_are_well_formed() -> None:
    for rows, width in ((MET, 3), (FIGURES, 4), (SETTLED, 3)):
        for row in rows:
            assert len(row) == width, row
            assert all(row), row
            letter, number = row[0][0], row[0][2:]
            assert row[0] == f"{letter}-{int(number):02}", row
            assert 1 <= int(number) <= LETTERS[letter], row
    assert len(re.findall(r"^\| *\w+-\d", COVERAGE, re.MULTILINE)) == len(MET + FIGURES + SETTLED)


def test_no_row_of_the_coverage_is_there_twice_and_each_table_is_in_order() -> None:
    rows = [row[0] for row in MET + FIGURES + SETTLED]
    assert len(MET) > 200
    assert [row for row in rows if rows.count(row) > 1] == []
    for each in (MET, FIGURES, SETTLED):
        places = [([*LETTERS].index(row[0][0]), int(row[0][2:])) for row in each]
        assert places == sorted(places)


@pytest.mark.parametrize(("row", "shown"), [(row[0], row[-1]) for row in MET], ids=[row[0] for row in MET])
def test_a_row_that_is_met_names_a_test_and_all_that_it_names_is_there(row: str, shown: str) -> None:
    places = named(shown)
    assert any(is_test(*place) for place in places), row
    for path, name in places:
        assert (ROOT / path).is_file(), path
        assert not name or (is_test(path, name) and name in functions(path)), f"{path}::{name}"


@pytest.mark.parametrize("row", FIGURES, ids=[row[0] for row in FIGURES])
def test_a_figure_of_the_coverage_is_one_that_make_bench_prints(row: list[str]) -> None:
    printed = re.findall(r"-m (bench\.\w+)", (ROOT / "Makefile").read_text())
    places = named(row[-1])
    assert places
    for path, _ in places:
        assert (ROOT / path).is_file(), path
        assert path.removesuffix(".py").replace("/", ".") in printed, path


VIEWS = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "POSTGRES.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("row", MET, ids=[row[0] for row in MET])
def test_a_row_that_rests_on_a_view_of_postgresql_says_so(row: list[str]) -> None:
    views = re.findall(r"PostgreSQL only, view `(\w+)`", row[1])
    assert bool(views) == any(path == "tests/store/test_views.py" for path, _ in named(row[-1]))
    assert set(views) <= set(VIEWS)


def test_the_pages_say_that_a_message_may_come_twice() -> None:
    delivery = PROTOCOL.split("\n**Delivery** ")[1].split("\n\n")[0]
    assert delivery.startswith("is at least once")
    python = (ROOT / "docs" / "PYTHON.md").read_text()
    for page in (delivery, python.split("\n**Failing.**")[1].split("\n\n")[0]):
        said = " ".join(page.split())
        assert "harmless when repeated" in said
        assert "dies after" in said


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


def test_the_picture_of_the_places_is_that_of_the_table() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    assert make_places.with_picture(page) == page
    assert "fresh --> leased: pop" in page


def test_the_architecture_is_explained_within_3_000_words() -> None:
    assert len((ROOT / "docs" / "ARCHITECTURE.md").read_text().split()) <= 3_000
