"""For tests of programs that use Forebay: tasks inline, a server whose time obeys, faults.

docs/TESTING.md shows how.
"""

from typing import TYPE_CHECKING, Any

from forebay.testing.inline_run import Ran
from forebay.testing.inline_tasks import Inline, inline

if TYPE_CHECKING:
    from forebay.testing.server import Server

__all__ = ["Inline", "Ran", "Server", "inline"]


def __getattr__(name: str) -> Any:
    """The server is only loaded by those who use it."""
    if name != "Server":
        raise AttributeError(name)
    from forebay.testing.server import Server

    return Server
