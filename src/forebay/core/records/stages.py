"""Keys and values of stages and adoptions."""

import struct

from msgspec import msgpack

from forebay.core.records.keyspace import NAME_BYTES
from forebay.core.state import Adopted, Attributes, Part, Stage

_NAMED = struct.Struct(">8scQ")

_encode = msgpack.Encoder().encode

PackedStaged = tuple[
    tuple[str, str | None, int, int, int],
    tuple[int, str, int, int],
    list[tuple[int, Attributes]],
    list[str | None],
    bytes | None,
]
"""Stage, part, its runs, unique keys of its messages, and its body if there are any."""


_unpack_staged = msgpack.Decoder(PackedStaged).decode
unpack_adopted = msgpack.Decoder(Adopted).decode


def staged_key(prefix: bytes, name: int) -> bytes:
    return prefix + b"n" + name.to_bytes(NAME_BYTES, "big")


def adopted_key(prefix: bytes, query: str, batch: int) -> bytes:
    return _NAMED.pack(prefix, b"z", batch) + query.encode()


def pack_staged(stage: Stage, part: Part) -> bytes:
    return _encode(
        (
            (stage.name, stage.query, stage.batch, stage.expires_at, stage.run),
            (part.at, part.partition, part.count, part.size),
            part.runs,
            part.keys,
            part.body if part.keys else None,
        )
    )


def unpack_staged(key: bytes, value: bytes) -> tuple[Stage, Part]:
    """A part, and a stage that has nothing else."""
    about, where, runs, keys, body = _unpack_staged(value)
    at, partition, count, size = where
    part = Part(at, partition, count, size, int.from_bytes(key[9:], "big"), runs, keys, body)
    return Stage(*about), part


def pack_adopted(adopted: Adopted) -> bytes:
    return _encode(adopted)


def adopted_by(key: bytes) -> tuple[str, int]:
    """Query and batch of an adoption."""
    return key[_NAMED.size :].decode(), _NAMED.unpack_from(key)[2]
