"""Backups of the store while the node runs, and the reply to changes while it is held."""

import logging
from functools import partial
from pathlib import PurePath

from forebay.broker.committer import Committer
from forebay.broker.waiters import Asker, Ticket
from forebay.core.api.commands import BackedUp, Backup, Reply
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid
from forebay.store.base import Store, StoreError

logger = logging.getLogger("forebay.node")

HELD = "the server is held while its data are copied, and answers questions only"


def back_up(store: Store, committer: Committer, asker: Asker, ticket: Ticket, command: Backup) -> None:
    """Copy the store in the background, and reply when that is done."""

    def answer(reply: Reply | ForebayError) -> None:
        asker.answered(ticket, reply)
        asker.flush()

    def done(outcome: Exception | None) -> None:
        if outcome is None:
            logger.info("backed up to %s", command.directory)
            answer(BackedUp(command.directory))
        elif isinstance(outcome, StoreError):
            answer(Conflict(str(outcome)))
        else:
            logger.error("backup failed: %s", outcome)
            answer(Busy(f"the backup failed: {outcome}"))

    if not store.blocking:
        done(StoreError("a store in memory has nothing to back up"))
    elif not PurePath(command.directory).is_absolute():
        answer(Invalid("directory", "an absolute path on the server's machine"))
    else:
        committer.aside(partial(store.backup, command.directory), done)
