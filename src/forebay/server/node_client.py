"""Send commands to the node and await its replies."""

import asyncio
from asyncio import Future

from forebay.broker.node import Node
from forebay.core.api.commands import Command, Reply
from forebay.core.errors import ForebayError


class NodeClient:
    """Sends commands to the node, each with a future for its reply."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._loop = asyncio.get_running_loop()

    def ask(self, command: Command) -> "Future[Reply | ForebayError]":
        future = self._loop.create_future()
        self.node.ask(self, future, command)
        return future

    def answered(self, ticket: object, reply: Reply | ForebayError) -> None:
        assert isinstance(ticket, Future)
        # The caller was cancelled: return the lease of its reply now, not when it expires.
        if ticket.done():
            self.node.give_back(reply)
        else:
            ticket.set_result(reply)

    def flush(self) -> None:
        """Do nothing: each reply is set on its own future, there is no batch to write."""
