"""docs/REFERENCE.md is what the code says."""

import re

from tools.make_reference import PLACE, methods_of, reference

import forebay


def test_the_reference_is_up_to_date() -> None:
    assert PLACE.read_text() == reference(), "run 'make reference'"


def test_every_public_name_and_every_method_of_the_clients_is_in_the_reference() -> None:
    page = PLACE.read_text()
    for name in forebay.__all__:
        assert name.startswith("_") or re.search(rf"\b{name}\b", page), name
    assert methods_of(forebay.Client).keys() == methods_of(forebay.SyncClient).keys()
    for kind in (forebay.SyncClient, forebay.App, forebay.Task, forebay.Job, forebay.Worker, forebay.Run):
        section = page.partition(f"### {kind.__name__}\n")[2].partition("\n### ")[0]
        for name in methods_of(kind):
            assert re.search(rf"`(await )?{name}[(:]", section), f"{kind.__name__}.{name}"
