"""The plugin of pytest: fixtures, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

from tests.test_docs import blocks

ROOT = Path(__file__).parent.parent.parent

TESTS = """
import sys

import pytest

import forebay

app = forebay.App("tests")


@app.task
def add(a: int, b: int) -> int:
    return a + b


def test_nothing_of_a_server_is_loaded_before_it_is_wanted() -> None:
    assert not {"forebay.server", "forebay.broker.node", "starlette", "uvicorn"} & sys.modules.keys()


def test_inline(forebay_inline) -> None:
    ran = forebay_inline(app)
    assert add.push(1, 2).result() == 3
    ran.assert_ran(add, 1, 2)
    with pytest.raises(TypeError):
        forebay_inline(app, nonsense=True)


def test_behind_it_all_is_as_before() -> None:
    assert type(app.backend) is forebay.client.tasks.app.Backend


def test_server(forebay_server, forebay_client) -> None:
    forebay_client.push("q", 1)
    assert forebay_server.pushed("q") == [1]


def test_tenants(forebay_secured, forebay_admin, forebay_tenant) -> None:
    acme, pops = forebay_tenant(), forebay_tenant("acme", "pop", ["mail*"])
    acme.push("mail", 1)
    assert pops.pop("mail").payloads == [1]
    with pytest.raises(forebay.Denied):
        pops.push("mail", 2)
    with pytest.raises(forebay.NotFound):
        forebay_tenant("other").queue("mail")
    assert [each.tenant for each in forebay_admin.tenants.list()][:2] == ["acme", "default"]
    with pytest.raises(forebay.Denied):
        forebay_secured.client(token="").stats()


def test_each_test_has_its_own(forebay_server) -> None:
    assert forebay_server.pushed("q") == []
"""


def run(directory: Path, *flags: str) -> str:
    """What pytest says of the tests there, alone with the plugin."""
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    flags = ("-p", "forebay.testing.plugin", "-p", "no:cacheprovider", "-W", "error", *flags)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, str(directory)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_the_fixtures_are_there_and_nothing_starts_by_itself(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    assert "5 passed" in run(tmp_path)


def test_fixtures_are_listed_with_what_they_are(tmp_path: Path) -> None:
    listed = run(tmp_path, "--fixtures")
    for name in ("forebay_server", "forebay_client", "forebay_inline"):
        assert name in listed


def test_installed_it_is_found_by_pytest() -> None:
    entry = '[project.entry-points.pytest11]\nforebay = "forebay.testing.plugin"\n'
    assert entry in (ROOT / "pyproject.toml").read_text()


def test_the_examples_of_the_page_run_as_they_are(tmp_path: Path) -> None:
    examples = blocks("python", (ROOT / "docs" / "TESTING.md").read_text())
    for number, each in enumerate(examples):
        (tmp_path / f"test_{number}.py").write_text(each)
    said = run(tmp_path, "-v")
    assert " failed" not in said, said
    assert " error" not in said.replace("-W error", ""), said
    assert said.count("PASSED") >= len(examples) > 5, said
