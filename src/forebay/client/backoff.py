"""How long to wait before something is tried again."""

from random import uniform

FIRST_S = 0.05
LONGEST_S = 2.0


def wait_s(attempt: int) -> float:
    """Seconds to wait after this many failures before; a little chance keeps many from coming at once."""
    return min(FIRST_S * 2.0 ** min(attempt, 10), LONGEST_S) * uniform(0.5, 1.0)
