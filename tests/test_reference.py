"""docs/REFERENCE.md is what the code says."""

import re
import subprocess
import sys

from tools import make_reference
from tools.make_reference import PLACE, methods_of

import forebay
from tests.serving import PATIENCE_S


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
