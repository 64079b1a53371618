"""Imports point one way, and the core imports nothing that acts."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "forebay"

MAY_IMPORT = {
    "core": set[str](),
    "store": {"core"},
    "broker": {"core", "store.base"},
    "cluster": {"core", "store.base", "broker"},
    "wire": {"core"},
    "server": {"core", "wire", "broker", "cluster", "store.base"},
    "client": {"core", "wire"},
    "spark": {"client", "core"},
    "dashboard": {"client"},
}
"""Layers by what they may import besides themselves; what stands beside the layers may import all."""

DOORS = {
    "api",
    "errors",
    "bounds",
    "ids",
    "words",
    "state",
    "keyvalue.keys",
    "log.bodies",
    "log.slices",
}
"""Modules of the core that the server may import."""
BROKER_DOORS = {
    *DOORS,
    "engine",
    "records",
    "log",
    "queries.payloads",
    "retention.merge",
    "retention.carve",
}
"""Modules of the core that the broker may import: it runs the engine, and reads and merges bodies."""

BESIDE = {"__init__", "__main__", "app", "cli", "config", "logs", "testing"}

CORE_STANDS_ON = {
    "__future__",
    "array",
    "bisect",
    "collections",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "msgspec",
    "operator",
    "re",
    "struct",
    "typing",
    "zlib",
}
"""All that the core uses besides itself: no clock, no chance, no threads, no input or output."""
ROOMS = (
    "errors",
    "bounds",
    "ids",
    "words",
    "structures",
    "state",
    "log",
    "records",
    "api",
    "shard",
    "tracks",
    "links",
    "delivery",
    "keyvalue",
    "push",
    "queries",
    "jobs",
    "stages",
    "retention",
    "queues",
    "event_log",
    "transact",
    "handlers",
    "tick",
    "routing",
    "loading",
    "engine",
)
"""The rooms of the core. Each imports only itself and rooms before it."""
CALENDAR = SOURCE / "core" / "jobs" / "calendar.py"
"""The one file that knows calendars and time zones. It is told the time like all others."""
CALENDAR_STANDS_ON = {"cronsim", "datetime", "importlib", "zoneinfo"}
NEAREST = SOURCE / "core" / "shard" / "nearest.py"
"""Compares names."""
DEFERRAL = SOURCE / "core" / "delivery" / "deferral.py"
"""Writes an instant that it is told as a date, and reads it back."""
OF_FILES = {CALENDAR: CALENDAR_STANDS_ON, DEFERRAL: {"datetime"}, NEAREST: {"difflib", "string"}}

FILES = sorted(SOURCE.rglob("*.py"))
TOPS = ("src", "tests", "docs", "bench", "examples", "tools", "requirements", "*.md", "*.toml", "Makefile*")
"""Everything that is part of the project, and nothing that is made from it."""


def layer(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """The modules a file imports, wherever in it that happens."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            assert node.module
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_what_its_layer_may(file: Path) -> None:
    mine = layer(file)
    if mine in BESIDE:
        return
    assert mine in MAY_IMPORT, f"{mine} is no layer"
    for module in imports(file):
        if module == "forebay" or module.startswith("forebay."):
            inside = module.removeprefix("forebay").removeprefix(".")
            allowed = {mine, "__version__", *MAY_IMPORT[mine]}
            assert any(inside == each or inside.startswith(f"{each}.") for each in allowed), module


@pytest.mark.parametrize(
    "file", [file for file in FILES if layer(file) == "core"], ids=lambda file: str(file.relative_to(SOURCE))
)
def test_the_core_stands_on_pure_modules_only(file: Path) -> None:
    outside = {module.partition(".")[0] for module in imports(file)} - {"forebay"}
    assert outside <= CORE_STANDS_ON | OF_FILES.get(file, set())


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if layer(file) in ("server", "broker")],
    ids=lambda file: str(file.relative_to(SOURCE)),
)
def test_the_server_and_the_broker_enter_the_core_by_its_doors(file: Path) -> None:
    doors = DOORS if layer(file) == "server" else BROKER_DOORS
    inside = {name.removeprefix("forebay.core.") for name in of_core(file)}
    assert not [
        name for name in inside if not any(name == door or name.startswith(f"{door}.") for door in doors)
    ]


CORE = [file for file in FILES if layer(file) == "core" and file.parent.name + file.name != "core__init__.py"]


def module(name: str) -> str:
    """The module that an imported name is, or is in."""
    path = SOURCE.joinpath(*name.split(".")[1:])
    return name if path.is_dir() or path.with_suffix(".py").exists() else name.rpartition(".")[0]


def of_core(file: Path) -> set[str]:
    """The modules of the core that a file imports, but for those that only its types need."""
    tree = ast.parse(file.read_text())
    for block in [each for each in ast.walk(tree) if isinstance(each, ast.If)]:
        if ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = [ast.Pass()]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    assert "forebay.core" not in names, f"{file}: modules of the core are imported by name"
    return {module(name) for name in names if name.startswith("forebay.core.")}


@pytest.mark.parametrize("file", CORE, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_room_of_the_core_imports_only_rooms_before_it(file: Path) -> None:
    mine = ROOMS.index(file.relative_to(SOURCE / "core").parts[0].removesuffix(".py"))
    rooms = {name.split(".")[2] for name in of_core(file)}
    assert not [room for room in rooms if ROOMS.index(room) > mine]


def test_no_two_modules_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for file in FILES:
        mine = ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        at_start = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}.{alias.name}" for node in at_start for alias in node.names}
        graph[mine] = {module(name) for name in names if name.startswith("forebay.")} - {mine, "forebay"}
    del graph["forebay"]  # its face, which imports what users need
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_only_the_app_reads_a_clock(file: Path) -> None:
    if file in OF_FILES:
        assert not {"now", "utcnow", "today"} & {
            node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)
        }
    elif layer(file) not in ("app", "spark", "client", "cli"):  # those are no part of a server
        assert not {"time", "datetime"} & {module.partition(".")[0] for module in imports(file)}


def test_the_former_name_is_nowhere() -> None:
    """It is another project's on PyPI: whoever follows such a line would install a stranger's code."""
    former = "pen" + "stock"
    here = (file for top in TOPS for file in (ROOT.glob(top) if "*" in top else (ROOT / top).rglob("*")))
    files = [file for file in here if file.is_file() and "__pycache__" not in file.parts]
    assert len(files) > 500
    assert not [file for file in files if former in str(file.relative_to(ROOT)).lower()]
    assert not [file for file in files if former.encode() in file.read_bytes().lower()]


SEVERAL = {SOURCE / "core" / "engine.py", SOURCE / "core" / "loading" / "shards.py"}
"""The engine, and what loads shards for it: nothing else sees more than one."""


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if layer(file) == "core" and file not in SEVERAL],
    ids=lambda file: str(file.relative_to(SOURCE)),
)
def test_nothing_in_the_core_but_the_engine_takes_or_reaches_a_second_shard(file: Path) -> None:
    """A function takes one shard at most, and none is held, returned, collected or made by anybody else."""
    tree = ast.parse(file.read_text())
    allowed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            mine = [each for each in _parameters(node) if _is_shard(each.annotation)]
            assert len(mine) <= 1, f"{node.name} takes {len(mine)} shards"
            allowed |= {id(each.annotation) for each in mine}
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "shard":
            allowed.add(id(node.annotation))  # a push in progress works for one shard
        elif isinstance(node, ast.Attribute):
            assert node.attr != "peers", "a shard has no peers"
            assert node.attr != "shards", "nobody but the engine has shards"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "Shard" and isinstance(node.ctx, ast.Load):
            assert id(node) in allowed, f"line {node.lineno}: a shard elsewhere than as the one of a function"


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    found = function.args
    return [*found.posonlyargs, *found.args, *found.kwonlyargs]


def _is_shard(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "Shard"


VARIABLES = {
    "Shard": {"shard"},
    "Changes": {"changes"},
    "Names": {"names"},
    "Queue": {"queue"},
    "Partition": {"partition"},
    "Group": {"group"},
    "Track": {"track"},
    "Lease": {"lease"},
    "Log": {"log"},
    "Segment": {"segment", "forming"},
}
"""What the core calls the objects of its state."""


def test_no_class_of_the_core_is_a_table_that_others_write_to() -> None:
    """Of no class more than 20 attributes are assigned outside of it."""
    assigned: dict[str, set[str]] = {name: set() for name in VARIABLES}
    for file in CORE:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                holder = getattr(node.value, "id", getattr(node.value, "attr", ""))
                for name, variables in VARIABLES.items():
                    if holder in variables:
                        assigned[name].add(node.attr)
    assert all(assigned.values()), "these are still the names in use"
    assert not {name: attributes for name, attributes in assigned.items() if len(attributes) > 20}


def test_no_file_is_named_after_nothing_in_particular() -> None:
    banned = {"utils", "common", "helpers", "managers", "services", "misc"}
    assert not banned & {part for file in FILES for part in file.with_suffix("").parts}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_is_one_concept(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 600
