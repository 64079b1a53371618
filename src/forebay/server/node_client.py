"""Asks the node, and awaits the answer."""

import asyncio
from asyncio import Future

from forebay.broker.node import Node
from forebay.core.api.commands import Command, Reply
from forebay.core.errors import ForebayError


class NodeClient:
    """Asks the node for everyone whose request is answered with one answer."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._loop = asyncio.get_running_loop()

    def ask(self, command: Command) -> "Future[Reply | ForebayError]":
        future = self._loop.create_future()
        self.node.ask(self, future, command)
        return future

    def answered(self, ticket: object, reply: Reply | ForebayError) -> None:
        assert isinstance(ticket, Future)
        if ticket.done():
            self.node.give_back(reply)
        else:
            ticket.set_result(reply)

    def flush(self) -> None:
        """Each answer leaves by itself."""
