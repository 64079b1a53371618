"""What the log tells of a server that is lost, and of its return."""

import logging

from forebay.client.address import shown

logger = logging.getLogger("forebay.client")


class Reach:
    """Whether a server can be reached. The log is told when that changes, and not of each request."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._is_away = False

    def lose(self, why: object) -> None:
        """Log that the server can't be reached, once until it can be."""
        if not self._is_away:
            self._is_away = True
            logger.info("disconnected from %s: %s", shown(self._server), why)

    def find(self) -> None:
        """Log that the server answers again: something may accept connections and close them at once."""
        if self._is_away:
            self._is_away = False
            logger.info("connected to %s again", shown(self._server))
