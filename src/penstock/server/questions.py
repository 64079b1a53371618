"""Asks the node, and awaits the answer."""

import asyncio
from asyncio import Future

from penstock.broker.node import Node
from penstock.core.commands import Command, Reply
from penstock.core.errors import PenstockError


class Questions:
    """Asks the node for everyone whose request is answered with one answer."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._loop = asyncio.get_running_loop()

    def ask(self, command: Command) -> "Future[Reply | PenstockError]":
        future = self._loop.create_future()
        self.node.ask(self, future, command)
        return future

    def answered(self, ticket: object, reply: Reply | PenstockError) -> None:
        assert isinstance(ticket, Future)
        if ticket.done():
            self.node.give_back(reply)
        else:
            ticket.set_result(reply)

    def flush(self) -> None:
        """Each answer leaves by itself."""
