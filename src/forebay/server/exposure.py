"""Which listeners other machines can reach, and what these need: authentication and TLS."""

import socket
from asyncio import AbstractEventLoop
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address

from msgspec import Struct


class Place(Struct, frozen=True):
    """A listener that is about to open."""

    name: str
    where: str
    """Its address as it was set."""
    addresses: tuple[str, ...]
    """All that its host stands for."""
    knows_who: bool
    """Whether it requires authentication."""


async def resolve(loop: AbstractEventLoop, host: str, port: int) -> tuple[str, ...]:
    """Return the addresses that a host stands for; raise ``OSError`` if there are none."""
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return tuple(str(each[4][0]) for each in found)


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> [is_loopback(each) for each in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1")]
    [True, True, True, True]
    >>> [is_loopback(each) for each in ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "::ffff:0.0.0.0")]
    [False, False, False, False, False]
    """
    found = ip_address(address)
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_loopback


def exposed(places: Sequence[Place]) -> list[Place]:
    """Return the listeners that other machines reach."""
    return [each for each in places if not all(map(is_loopback, each.addresses))]


def problems(places: Sequence[Place], *, has_tls: bool) -> list[str]:
    """Return what is missing for listeners that other machines reach, one line for each thing missing."""
    reached = exposed(places)
    strangers = [each for each in reached if not each.knows_who]
    found = []
    if strangers:
        doors = " (for flashQ's clients also flashq_tokens)" if _has_flashq(strangers) else ""
        found.append(
            f"{_shown(strangers)}: other machines can connect there, and nobody is asked who he is: set "
            f"admin_token, jwt_keys, or tls_client_ca and tls_principals{doors}"
        )
    if reached and not has_tls:
        found.append(
            f"{_shown(reached)}: other machines can connect there, and tokens and messages would go over the "
            "network in clear: set tls_cert and tls_key (forebay certs makes some)"
        )
    return found


INSTEAD = "or listen on 127.0.0.1 only; --insecure starts the server anyway"


def _has_flashq(places: Sequence[Place]) -> bool:
    return any(each.name.startswith("flashq") for each in places)


def _shown(places: Sequence[Place]) -> str:
    return ", ".join(f"{each.name} on {each.where}" for each in places)
