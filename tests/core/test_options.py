"""Options of a queue: a value of the wrong type is refused by name, and changes nothing."""

from typing import Any

import pytest

from forebay.core.api import queries
from forebay.core.errors import Invalid
from forebay.core.state import QueueOptions, Rate
from tests.core.harness import Core


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lease_ms", None),
        ("lease_ms", "5"),
        ("max_attempts", 1.5),
        ("concurrency", True),
        ("backoff", None),
        ("dead_letters", None),
        ("rate_limit", 5),
        ("limits", ("a", 7)),
        ("ordering", 3),
    ],
)
def test_an_option_takes_only_values_of_its_type(option: str, value: Any) -> None:
    core = Core()
    core.configure(lease_ms=7)
    with pytest.raises(Invalid) as refused:
        core.configure(**{option: value})
    assert refused.value.field == option
    found = core.ask(queries.Describe("default", "q"), queries.QueueFound)
    assert found.options == QueueOptions(lease_ms=7)


def test_options_that_are_not_given_stay_as_they_are() -> None:
    core = Core()
    core.configure(rate_limit=Rate(3), limits=("a",), ordering="partition")
    core.configure(rate_limit=None)
    found = core.ask(queries.Describe("default", "q"), queries.QueueFound)
    assert found.options == QueueOptions(limits=("a",), ordering="partition")
