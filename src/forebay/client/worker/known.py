"""Whether the server knows a worker: asked before it begins, and whenever it is denied something."""

from contextlib import suppress

from forebay.client.aio.client import Client
from forebay.client.errors import Disconnected
from forebay.client.translate import body_of
from forebay.core.errors import Busy, Denied, ForebayError
from forebay.wire.operations.tenants import Auth


async def look(client: Client) -> None:
    """Raise unless the server answers, and knows who this is. Not retried, so that the log tells at once."""
    await client._link.ask(body_of(Auth()))


async def check_known(client: Client, error: ForebayError) -> None:
    """Raise ``Denied`` if that is the error, and the token is good no more: to go on would be of no use.

    A suspended tenant is known, and denied all the same: its workers wait until it may go on.
    """
    if isinstance(error, Denied):
        with suppress(Busy, Disconnected):
            await client.whoami()
