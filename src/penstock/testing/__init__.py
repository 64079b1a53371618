"""For tests of programs that use Penstock: tasks inline, a server whose time obeys, faults.

docs/TESTING.md shows how.
"""

from typing import TYPE_CHECKING, Any

from penstock.testing.inlining import Inline, inline
from penstock.testing.ran import Ran

if TYPE_CHECKING:
    from penstock.testing.server import Server

__all__ = ["Inline", "Ran", "Server", "inline"]


def __getattr__(name: str) -> Any:
    """The server is only loaded by those who use it."""
    if name != "Server":
        raise AttributeError(name)
    from penstock.testing.server import Server

    return Server
