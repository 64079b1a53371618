"""The cost of authentication: a server that requires tokens beside one that does not.

Both run the same program in one run, and are measured in turns on one core. What patterns of queues cost,
the rows of ``narrowed`` tell: such a token is for the queues that match one of ten patterns.
"""

import json
from contextlib import ExitStack
from urllib.request import Request, urlopen

from bench.http import Serving, posted, read_answer, serving
from bench.wire import CORES, PAYLOAD, Reader, framed, framed_reply, load

ADMIN = "of-the-admin-of-this-bench"
TURNS = 9
PUSH = framed({"cmd": "PUSH", "queue": "single", "payload": PAYLOAD})
POP = framed({"cmd": "POP", "queue": "single", "wait_ms": 0})
BATCH = framed({"cmd": "PUSH", "queue": "batch", "messages": [PAYLOAD] * 1_000})
PATTERNS = [f"queue-{number}-*" for number in range(8)] + ["single", "batch"]


def token(server: Serving, **fields: object) -> str:
    """A new token that may push and pop."""
    headers = {"authorization": f"Bearer {ADMIN}"}
    body = json.dumps({"role": "write", **fields}).encode()
    url = f"http://127.0.0.1:{server.http}/v1/tenants/default/tokens"
    with urlopen(Request(url, body, headers)) as answer:
        made: str = json.load(answer)["token"]
    return made


def ratio(
    name: str, ports: tuple[int, int], requests: tuple[bytes, bytes], read: Reader, first: bytes, rounds: int
) -> None:
    """Print what the second server does beside the first: the medians of both, taken in turns."""
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for port, request, hello, found in zip(ports, requests, (b"", first), rates, strict=True):
            found.append(load(port, request, 50, rounds, read, hello))
    without, asked = (sorted(each)[TURNS // 2] for each in rates)
    print(f"  {name}: {asked / without:.2f} ({asked:,.0f}/s, {without:,.0f}/s without)")


def main() -> None:
    print("authentication, in memory, on one core: a server that requires it, by one that does not")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(serving(CORES[-1], "memory:", *flags))
            for flags in ((), ("--admin-token", ADMIN))
        ]
        tcp, http = (servers[0].tcp, servers[1].tcp), (servers[0].http, servers[1].http)
        for name, fields in (("token", {}), ("narrowed", {"queues": PATTERNS})):
            shown = token(servers[1], **fields)
            auth = framed({"cmd": "AUTH", "token": shown})
            for what, request, rounds in (
                ("pushes", PUSH, 300),
                ("pops", POP, 200),
                ("batches of 1,000", BATCH, 4),
            ):
                ratio(f"{name}, TCP, {what}", tcp, (request, request), framed_reply, auth, rounds)
            bare = posted("/v1/queues/single/messages", json.dumps({"payload": PAYLOAD}).encode())
            header = f"\r\nAuthorization: Bearer {shown}\r\n".encode()
            asked = bare.replace(b"\r\n", header, 1)
            ratio(f"{name}, HTTP, pushes", http, (bare, asked), read_answer, b"", 50)


if __name__ == "__main__":
    main()
