"""Compare an answer with a recorded one: names, types, nulls, and every value that is fixed."""

from collections.abc import Iterator
from typing import Any

TIMES = frozenset(
    {"created_at", "run_at", "started_at", "last_heartbeat", "completed_at", "next_run", "timestamp"}
)
"""Times in ms: 0 where the recording has 0, a time of this century otherwise."""
CENTURY = range(1_600_000_000_000, 4_100_000_000_000)
PAYLOADS = frozenset({"data", "result"})


def differences(recorded: Any, got: Any, loose: frozenset[str] = frozenset(), at: str = "") -> Iterator[str]:
    """Yield how an answer differs; of fields named in ``loose`` only the type is compared."""
    name = at.rpartition(".")[2].partition("[")[0]
    if type(recorded) is not type(got):
        yield f"{at}: {type(recorded).__name__} was recorded, not {got!r}"
    elif name in loose:
        return
    elif name in TIMES:
        if (recorded == 0) != (got == 0) or (got and got not in CENTURY):
            yield f"{at}: {recorded} was recorded, not {got}"
    elif name in PAYLOADS or not isinstance(recorded, dict | list):
        if recorded != got:
            yield f"{at}: {recorded!r} was recorded, not {got!r}"
    elif isinstance(recorded, dict):
        for key in [key for key in recorded if key not in got]:
            yield f"{at}.{key}: is missing"
        for key in [key for key in got if key not in recorded]:
            yield f"{at}.{key}: was not recorded"
        for key in [key for key in recorded if key in got]:
            yield from differences(recorded[key], got[key], loose, f"{at}.{key}")
    else:
        if len(recorded) != len(got):
            yield f"{at}: {len(recorded)} were recorded, not {len(got)}"
        for number, (one, other) in enumerate(zip(recorded, got, strict=False)):
            yield from differences(one, other, loose, f"{at}[{number}]")
