"""Bytes to frames: a 4-byte big-endian length, then a body.

A frame over the limit is skipped and reported, so the stream goes on behind it. A length that no client of
ours would ever send means that the other side speaks something else; such a stream can't be followed.
"""

from collections.abc import Generator

HEAD = 4
"""Bytes of the length."""
ABSURD = 4
"""A length of more than this many times the limit is not a length."""


class TooLong:
    """A frame that is longer than the limit; its body is skipped."""

    __slots__ = ("begins", "length")

    def __init__(self, length: int, begins: bytes) -> None:
        self.length = length
        self.begins = begins
        """Its first byte: what form it has."""


class Lost(Exception):
    """The stream does not consist of frames."""


class Frames:
    """Cuts what arrives into frames.

    >>> frames = Frames(100)
    >>> frames.feed(bytes([0, 0, 0, 2]) + b"ab" + bytes([0, 0])); list(frames)
    [b'ab']
    >>> frames.feed(bytes([0, 1]) + b"c"); list(frames)
    [b'c']
    """

    __slots__ = ("_chunks", "_limit", "_size", "_skip", "_want")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        """Bytes in the chunks."""
        self._want = HEAD
        """Bytes needed before there is anything to cut."""
        self._skip = 0
        """Bytes of a skipped frame still to come."""

    @property
    def waiting(self) -> int:
        """Bytes that have come and are not taken yet."""
        return self._size

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return self._size > 0 or self._skip > 0

    def whole(self, data: bytes) -> bytes | None:
        """The body, if ``data`` is exactly one frame and nothing came before: the usual case, at once."""
        length = len(data) - HEAD
        if self._size or self._skip or not 0 <= length <= self._limit:
            return None
        return data[HEAD:] if int.from_bytes(data[:HEAD], "big") == length else None

    def feed(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if data:
            self._chunks.append(data)
            self._size += len(data)

    def __iter__(self) -> Generator[bytes | TooLong, None, None]:
        """The complete frames; stopping early loses nothing."""
        if self._size < self._want:
            return
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        at, size, want = 0, len(data), HEAD
        try:
            while size - at >= HEAD:
                length = int.from_bytes(data[at : at + HEAD], "big")
                end = at + HEAD + length
                if length > self._limit:
                    if length > ABSURD * self._limit:
                        raise Lost
                    begins = data[at + HEAD : at + HEAD + 1]
                    if not begins:
                        want = HEAD + 1
                        return
                    at, self._skip = min(end, size), max(end - size, 0)
                    yield TooLong(length, begins)
                elif end > size:
                    want = end - at
                    return
                else:
                    body = data[at + HEAD : end]
                    at = end
                    yield body
        finally:
            rest = data[at:]
            self._chunks = [rest] if rest else []
            self._size = len(rest)
            self._want = want


def frame(body: bytes) -> tuple[bytes, bytes]:
    """The two parts of a frame, to be written one after the other."""
    return len(body).to_bytes(HEAD, "big"), body
