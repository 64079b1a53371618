"""Contexts: the servers that a user has logged in to, in one file that only this user can read.

What a command uses comes from its flags, then from the environment, then from the current context, and from
defaults at last. A context that is named by a flag counts as a flag. What a context holds is only for its own
server: another one that is named must not get its token.
"""

import os
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from forebay.cli.errors import CliError
from forebay.client.access import Access, of_environment
from forebay.client.address import DEFAULT_SERVER, SERVER_VARIABLE, is_tls, shown

FILE = "contexts.json"


class Context(Struct, omit_defaults=True):
    """A server, and how to get in."""

    server: str
    token: str | None = None
    tenant: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def access(self) -> Access:
        fields = asdict(self)
        del fields["server"]
        return Access(**fields)


class Contexts(Struct):
    """All contexts, and the name of the current one."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        if name not in self.contexts:
            known = f"; there are {', '.join(self.contexts)}" if self.contexts else ""
            raise CliError(
                f"there is no context {name!r}{known}", "make it: forebay login ADDRESS --name NAME"
            )
        return self.contexts[name]


def path() -> Path:
    """Return the file that contexts are kept in."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "forebay" / FILE


def load() -> Contexts:
    """Return the contexts of this user. Raise if others can read them."""
    file = path()
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode & 0o777
            text = opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    if mode & 0o077:
        raise CliError(f"others can read the tokens in {file}", f"keep it to yourself: chmod 600 {file}")
    try:
        return msgspec.json.decode(text, type=Contexts)
    except msgspec.DecodeError:
        raise CliError(f"{file} is damaged", "delete it, and log in again: forebay login") from None


def save(contexts: Contexts) -> None:
    """Keep the contexts: the file is whole at any time, and never readable by others."""
    file = path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(file.parent, 0o700)
    handle, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{FILE}-")  # with mode 0600
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(msgspec.json.format(msgspec.json.encode(contexts)) + b"\n")
            opened.flush()
            os.fsync(handle)
        os.replace(draft, file)
    except BaseException:
        os.unlink(draft)
        raise


def selected(
    server: str | None, given: Access, name: str | None, own: Access | None = None
) -> tuple[str, Access]:
    """Return the server that a command asks, and how it gets in.

    ``server``, ``given`` and ``name`` are its flags, ``own`` is what its program says: above the environment.
    """
    contexts = load()
    rest = of_environment()
    if name is not None:
        context = contexts.named(name)
        if server not in (None, context.server):
            raise CliError(
                f"the context {name} is for {shown(context.server)}: leave out --server or --context"
            )
        place, rest = context.server, context.access.over(rest)
    else:
        kept = contexts.contexts.get(contexts.current or "")
        asked = server or os.environ.get(SERVER_VARIABLE) or None
        place = asked or (kept.server if kept else DEFAULT_SERVER)
        if kept is not None and place == kept.server:
            rest = rest.over(kept.access)
    if not is_tls(place):
        rest = replace(rest, ca="", cert="", key="")  # meant for other servers than this
    return place, given.over(own or Access()).over(rest)
