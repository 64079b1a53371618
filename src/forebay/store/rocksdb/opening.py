"""Opening the database: plainly, for reading, after damage, or with next to no room on the disk."""

import os
from pathlib import Path

from rocksdict import AccessType, DBRecoveryMode, Rdict

from forebay.store.base import Broken, CantOpen
from forebay.store.rocksdb import lock, wal_check
from forebay.store.rocksdb.format import sync_directory
from forebay.store.rocksdb.options import NEVER_BYTES, NEVER_FILES, body_options, record_options

BODIES = "bodies"

REFUSE_DAMAGE = DBRecoveryMode.tolerate_corrupted_tail_records()
"""A record cut off at the end of the WAL was never confirmed; any other error is damage."""
DROP_AFTER_DAMAGE = DBRecoveryMode.point_in_time()
"""RocksDB's default: opens a damaged WAL silently, with the records before the damage."""


def open_db(
    path: Path,
    *,
    new: bool = False,
    read_only: bool = False,
    recovery: DBRecoveryMode = REFUSE_DAMAGE,
    compacts: bool = True,
    log_bytes: int = NEVER_BYTES,
    thrifty: bool = False,
) -> tuple[Rdict, Rdict]:
    """Open the database and its bodies. Raise CantOpen with the reason.

    ``thrifty``: write as little as an open can: what is in the log stays there, and no file is compacted.
    """
    access = AccessType.read_only(False) if read_only else AccessType.read_write()
    for log in sorted([*path.glob("*.log"), *path.glob("MANIFEST-*")]):
        at = wal_check.damaged_at(log)
        if at is not None:
            raise Broken(_why(path, f"Corruption: {log.name} is not a log at byte {at}"))
    try:
        if thrifty:
            _sync_logs(path)
        options, of_bodies = record_options(new, log_bytes, thrifty=thrifty), body_options()
        of_bodies.set_enable_blob_gc(not thrifty)
        options.set_wal_recovery_mode(recovery)
        if thrifty or not compacts:
            for each in (options, of_bodies):
                each.set_disable_auto_compactions(True)
                each.set_level_zero_slowdown_writes_trigger(NEVER_FILES)
                each.set_level_zero_stop_writes_trigger(NEVER_FILES)
        db = Rdict(str(path), options, {BODIES: of_bodies}, access)
        return db, db.get_column_family(BODIES)
    except Exception as error:
        kind = Broken if str(error).startswith("Corruption") else CantOpen
        raise kind(_why(path, str(error))) from None


def _sync_logs(path: Path) -> None:
    """Sync the logs to the disk.

    A plain open writes their contents to files. A thrifty one goes on in a new log, and a power loss must
    not take the end of an older one.
    """
    for log in path.glob("*.log"):
        with log.open("rb") as file:
            os.fsync(file.fileno())
    sync_directory(path)


def _why(path: Path, said: str) -> str:
    where = path.parent
    if "/LOCK" in said or "lock hold" in said:
        return f"{lock.in_use(where, here='lock hold' in said)}, or use another directory"
    if said.startswith("Corruption"):
        return (
            f"{where} is damaged and was left as it is: {said}. Nothing was dropped. "
            f"Restore a backup; or, to go on without what came after the damage, copy {where}, then:"
            f" forebay repair {where} --accept-loss"
        )
    if "does not exist" in said:
        return f"{where} has lost its database: {said}. Restore a backup"
    return f"{where} can't be opened: {said}"
