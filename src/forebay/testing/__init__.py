"""For tests of programs that use Forebay: tasks inline, a server whose time obeys, faults.

docs/TESTING.md shows how.
"""

from typing import TYPE_CHECKING, Any

from forebay.testing.inlining import Inline, inline
from forebay.testing.ran import Ran

if TYPE_CHECKING:
    from forebay.testing.server import Server

__all__ = ["Inline", "Ran", "Server", "inline"]


def __getattr__(name: str) -> Any:
    """The server is only loaded by those who use it."""
    if name != "Server":
        raise AttributeError(name)
    from forebay.testing.server import Server

    return Server
