"""Names like a mistyped one. What this costs hardly depends on how many names there are."""

import string
from collections.abc import Collection, Iterator
from difflib import get_close_matches

SHOWN_MAX = 3
COMPARED_MAX = 100
"""Names that are compared one by one: a millisecond."""
LENGTH_MAX = 40
"""Characters of a name that is tried with one typing error: 3,000 tries, a millisecond, too."""
CHARACTERS = string.ascii_lowercase + string.digits + "._-"


def nearest(name: str, names: Collection[str]) -> list[str]:
    """Return up to three names that may be meant; ``names`` is a set or a dict.

    >>> nearest("emials", {"emails", "orders"})
    ['emails']
    >>> nearest("invoices", {"emails", "orders"})
    []
    """
    if len(name) > LENGTH_MAX:
        return []
    if len(names) <= COMPARED_MAX:
        alike = [each for each in names if abs(len(each) - len(name)) <= max(len(name) // 3, 2)]
        return get_close_matches(name, alike, SHOWN_MAX, 0.7)
    found = sorted({each for each in _mistyped(name) if each in names})
    return found[:SHOWN_MAX]


def _mistyped(name: str) -> Iterator[str]:
    """Yield what becomes of a name by one typing error."""
    yield name.lower()
    yield name.capitalize()
    yield name.replace("_", "-")
    yield name.replace("-", "_")
    for at in range(len(name) + 1):
        before, after = name[:at], name[at:]
        yield before + after[1:]
        yield before + after[1:2] + after[:1] + after[2:]
        for character in CHARACTERS:
            yield before + character + after
            yield before + character + after[1:]
