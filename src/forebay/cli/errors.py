"""Exit codes, and what ends a command early.

0 done, 1 wrong usage or input, 2 no server, 3 denied, 4 nothing to do, 5 damage found.
"""

from forebay.core.errors import ForebayError

DONE, USAGE, SERVER, DENIED, NOTHING, DAMAGE = range(6)

ABOUT = "Exit codes: 0 done, 1 wrong usage or input, 2 no server, 3 denied, 4 nothing to do, 5 damage found."

CODES = {"busy": SERVER, "disconnected": SERVER, "denied": DENIED, "damaged": DAMAGE}
"""Exit codes by error code; all others are 1."""


LOG_IN = (
    (
        "Authentication required",
        "Authentication required",
        "log in: forebay login, or give --token (FOREBAY_TOKEN)",
    ),
    ("this token is not", "", "log in again: forebay login; or forebay logout, if the server needs no token"),
    ("the token of this connection", "", "log in again: forebay login"),
)
"""How what a server says to those whom it does not know begins, what is said of it here, and what to do."""


class CliError(Exception):
    """An error, and what to do about it, one line each, with the exit code."""

    def __init__(self, *lines: str, code: int = USAGE) -> None:
        super().__init__(*lines)
        self.lines = lines
        self.code = code


def told(error: ForebayError) -> CliError:
    """Return an error of the server or the client, as shown to people.

    >>> told(ForebayError("it broke")).lines
    ('error: it broke',)
    """
    speaks_for_itself = error.code == "disconnected"
    line = error.message if speaks_for_itself else f"{error.code}: {error.message}"
    for begins, said, hint in LOG_IN if error.code == "denied" else ():
        if error.message.startswith(begins):
            return CliError(f"denied: {said or error.message}", hint, code=DENIED)
    return CliError(line, *getattr(error, "__notes__", ()), code=CODES.get(error.code, USAGE))
