"""``forebay copy``: everything to another store. ``forebay hold``: a server that changes nothing."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from forebay.cli.commands import Command, asks_server, connected, prints_json
from forebay.cli.errors import DAMAGE, DONE, CliError
from forebay.cli.files import BACKUP_S, on_disk
from forebay.cli.output import Stopwatch, note, print_json, progress

if TYPE_CHECKING:
    from forebay.store.base import Store
    from forebay.store.copy import Figures, Readable


@click.command(cls=Command, example="forebay copy rocksdb:./forebay-data postgresql://forebay@db/queue")
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@click.option(
    "--server",
    metavar="ADDRESS",
    help="The server that runs on SOURCE: from now on it answers questions only. Run this on its machine.",
)
@prints_json
def copy(source: str, target: str, server: str | None, as_json: bool) -> int:
    """Copy everything to another, empty store, and compare the two.

    SOURCE and TARGET are rocksdb:DIR or postgresql://USER@HOST/DATABASE. No server may run on either, unless
    --server names the one on SOURCE.
    """
    from forebay.store.base import StoreError
    from forebay.store.copy import Different, copy as copy_all, count

    _check(source)
    _check(target)
    watch = Stopwatch()
    with (
        on_disk(),
        _held(server, source) as held,
        _source(source, server) as (reader, shards),
        _target(target) as store,
    ):
        try:
            with progress("copying", lambda: 2 * count(reader), show=not as_json) as advance:
                figures = copy_all(reader, shards, store, lambda what, done: advance(done))
        except StoreError as error:
            raise CliError(str(error), code=DAMAGE if isinstance(error, Different) else 1) from None
        held.append(True)
    _tell(figures, watch, target, server, as_json)
    return DONE


def _tell(figures: "Figures", watch: Stopwatch, target: str, server: str | None, as_json: bool) -> None:
    from forebay.store.address import shown_place

    where = shown_place(target)
    if as_json:
        print_json({"target": where, **msgspec.structs.asdict(figures), "seconds": watch.seconds})
        return
    if server is not None:
        note(f"the server at {server} is held: stop it, and start one with --store {where}")
        note(f"or have it go on as it was, and drop the copy: forebay hold --off --server {server}")
    else:
        note(f"start a server on it: forebay serve --store {where}")
    parts = f"{figures.records:,} records and {figures.bodies:,} bodies, all the same"
    print(f"copied to {where} and compared, {parts}: {watch.summary(figures.messages, figures.bytes)}")


def _check(place: str) -> None:
    from forebay.store.address import DATABASES, ROCKS

    if not place.startswith((ROCKS, *DATABASES)) or place == ROCKS:
        raise CliError("SOURCE and TARGET are rocksdb:DIR or postgresql://USER@HOST/DATABASE")


@contextmanager
def _held(server: str | None, source: str) -> Iterator[list[bool]]:
    """Hold the server during the copy; release it if the copy fails."""
    done: list[bool] = []
    if server is None:
        yield done
        return
    with connected(server) as client:
        kept_in = client.hold()
        try:
            _check_same(kept_in, source)
            yield done
        finally:
            if not done:
                client.hold(False)


def _check_same(kept_in: str, source: str) -> None:
    """Raise unless the held server is the one on SOURCE."""
    from forebay.store.address import ROCKS, shown_place

    if source.startswith(ROCKS):
        same = kept_in == f"{ROCKS}{Path(source.removeprefix(ROCKS)).absolute()}"
    else:
        same = _place_of(kept_in) == _place_of(shown_place(source))
    if not same:
        raise CliError(f"that server keeps its data in {kept_in}: name that as SOURCE, or another server")


def _place_of(address: str) -> str:
    """Return host, port and database of an address without a password."""
    return address.partition("://")[2].rpartition("@")[2]


@contextmanager
def _source(place: str, server: str | None) -> "Iterator[tuple[Readable, int]]":
    from forebay.store.address import ROCKS, looking_at_place
    from forebay.store.base import TakesPushes

    if server is None or not place.startswith(ROCKS):
        with looking_at_place(place, alone=server is None) as found:
            if isinstance(found[0], TakesPushes) and (left := found[0].left_behind()) != (0, 0):
                raise CliError(
                    f"{left[0]} messages that were pushed from SQL wait in forebay.inbox, {left[1]} are in"
                    " forebay.refused; they are not copied: have a server take them over, or delete them"
                )
            yield found
        return
    # The server has its directory to itself; a backup is made of hard links and takes no space.
    directory = Path(place.removeprefix(ROCKS)).absolute()
    linked = directory.with_name(f"{directory.name}.copying-{os.getpid()}")
    try:
        with connected(server, timeout_s=BACKUP_S) as client:
            client.backup(str(linked))
        with looking_at_place(str(linked)) as found:
            yield found
    finally:
        shutil.rmtree(linked, ignore_errors=True)


@contextmanager
def _target(place: str) -> "Iterator[Store]":
    from forebay.store.address import ROCKS
    from forebay.store.postgres.open import open_database
    from forebay.store.rocksdb.store import RocksStore

    store: Store
    if not place.startswith(ROCKS):
        store = open_database(place)
        try:
            yield store
        finally:
            store.close()
        return
    directory = Path(place.removeprefix(ROCKS)).absolute()
    if directory.exists() and any(directory.iterdir()):
        raise CliError(f"{directory} is not empty; name another")
    store = RocksStore(directory)
    try:
        yield store
    except BaseException:
        store.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    store.close()


@click.command(cls=Command, example="forebay hold --off")
@click.option("--off", is_flag=True, help="Let it go on.")
@asks_server
def hold(off: bool, server: str | None, as_json: bool) -> int:
    """Have a server answer questions only: nothing it keeps changes, not even with time."""
    with connected(server) as client:
        store = client.hold(not off)
    if as_json:
        print_json({"held": not off, "store": store})
    else:
        print("it goes on" if off else "held: it answers questions only")
    return DONE
