"""Functions of the core changed while a test runs: bugs planted in it."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Planted = tuple[Callable[..., Any], str, str]
"""A function, a text that it has once, and what stands there instead."""


@contextmanager
def planted(function: Callable[..., Any], old: str, new: str) -> Iterator[None]:
    """Change a function's text while the block runs, for everyone who already imported it."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} is not there exactly once"
    space: dict[str, Any] = {}
    exec(compile(source.replace(old, new), "<mutant>", "exec"), function.__globals__, space)
    original = function.__code__
    function.__code__ = space[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = original
