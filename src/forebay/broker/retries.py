"""Commands that are applied again after a reload, because the store was too full for the group they were in.

A full disk fails a whole group. Only what makes the store larger is to blame: the rest is applied again to
the reloaded engine, without it. Nothing of the group was stored, so nothing is done twice.
"""

from forebay.broker.waiters import Asker, Ticket
from forebay.core.api.commands import Command, Reply
from forebay.core.api.growth import grows
from forebay.core.errors import Busy, ForebayError

Answer = tuple[Asker, Ticket, Reply | ForebayError]
Asked = list[tuple[int, Command]]
"""Places in a group of answers, and the commands that are answered there."""


class Retries:
    """Keeps commands until the store is reloaded."""

    def __init__(self) -> None:
        self.forming: Asked = []
        """Those of the forming group."""
        self.wanted = False
        """Whether the commands of failed groups are to be applied again."""
        self._kept: list[tuple[Asker, Ticket, Command]] = []

    def take_forming(self) -> Asked:
        """Return the commands of the forming group, which is over."""
        forming, self.forming = self.forming, []
        return forming

    def split(self, group: list[Answer], asked: Asked) -> list[Answer]:
        """Keep what is applied again of a failed group; return the rest, to be answered now."""
        if not self.wanted:
            return group
        again = {at: command for at, command in asked if not grows(command)}
        self._kept += [(group[at][0], group[at][1], command) for at, command in again.items()]
        return [answer for at, answer in enumerate(group) if at not in again]

    def take(self) -> list[tuple[Asker, Ticket, Command]]:
        """Return the commands to apply now, in order: the store is reloaded."""
        kept, self._kept, self.wanted = self._kept, [], False
        return kept

    def give_up(self) -> list[Answer]:
        """Return the places of all that waits: the store could not be reloaded."""
        why = Busy("the server's disk is full")
        return [(asker, ticket, why) for asker, ticket, _ in self.take()]

    def forget(self, asker: Asker) -> None:
        """Drop the commands of an asker: its connection is gone."""
        self._kept = [each for each in self._kept if each[0] is not asker]
