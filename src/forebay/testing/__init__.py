"""The kit for tests of programs that use Forebay: inline tasks, a server with a controlled clock, faults.

docs/TESTING.md shows how.
"""

from typing import TYPE_CHECKING, Any

from forebay.testing.inline_run import Ran
from forebay.testing.inline_tasks import Inline, inline

if TYPE_CHECKING:
    from forebay.testing.server import Server

__all__ = ["Inline", "Ran", "Server", "inline"]


def __getattr__(name: str) -> Any:
    """Import the server only when it is used."""
    if name != "Server":
        raise AttributeError(name)
    from forebay.testing.server import Server

    return Server
