"""Cut a byte stream into bodies: frames with a 4-byte big-endian length, or one JSON object per line.

The first byte of the stream decides which. A body over the limit is skipped and reported, and the stream
continues behind it. An absurd length means that the peer speaks another protocol; a framed stream can't
recover from that. A stream of lines always can, at the next line break.
"""

import re
from collections.abc import Generator

HEAD = 4
"""Bytes of the length prefix."""
ABSURD = 4
"""A length above this many times the limit is not a length but some other protocol."""


class TooLong:
    """A body over the limit; its bytes are skipped."""

    __slots__ = ("begins", "length")

    def __init__(self, length: int, begins: bytes) -> None:
        self.length = length
        self.begins = begins
        """First byte of a framed body, which tells JSON from MessagePack; empty for a line."""


class Lost(Exception):
    """The stream is not made of frames and can't be read further."""


class Frames:
    """Splits received data into frames.

    >>> frames = Frames(100)
    >>> frames.feed(bytes([0, 0, 0, 2]) + b"ab" + bytes([0, 0])); list(frames)
    [b'ab']
    >>> frames.feed(bytes([0, 1]) + b"c"); list(frames)
    [b'c']
    """

    takes = "one JSON object or MessagePack map"
    """Forms of a body that are accepted, for error messages."""
    packs = True
    """Whether a body may be MessagePack."""

    __slots__ = ("_chunks", "_limit", "_size", "_skip", "_want")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        """Bytes in ``_chunks``."""
        self._want = HEAD
        """Bytes needed before another frame can be cut."""
        self._skip = 0
        """Bytes of a skipped frame still to arrive."""

    @property
    def waiting(self) -> int:
        """Bytes received and not yet cut into frames."""
        return self._size

    @property
    def partial(self) -> bool:
        """Whether an incomplete frame has begun."""
        return self._size > 0 or self._skip > 0

    def whole(self, data: bytes) -> bytes | None:
        """Return the body if ``data`` is exactly one frame and nothing is buffered: the fast path."""
        length = len(data) - HEAD
        if self._size or self._skip or not 0 <= length <= self._limit:
            return None
        return data[HEAD:] if int.from_bytes(data[:HEAD], "big") == length else None

    def limit(self, bytes_max: int) -> None:
        """Take bodies of at most so many bytes from now on."""
        self._limit = bytes_max

    def feed(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if data:
            self._chunks.append(data)
            self._size += len(data)

    def end(self) -> None:
        """Mark the end of the stream; an incomplete frame is dropped."""

    @staticmethod
    def wrapped(body: bytes) -> tuple[bytes, bytes]:
        """Return the parts of a framed reply, to be written one after the other."""
        return len(body).to_bytes(HEAD, "big"), body

    def __iter__(self) -> Generator[bytes | TooLong, None, None]:
        """Yield the complete frames; a consumer that stops early loses none."""
        if self._size < self._want:
            return
        # Joined only when a whole frame has arrived (_want): a frame in many chunks is copied once.
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        at, size, want = 0, len(data), HEAD
        try:
            while size - at >= HEAD:
                length = int.from_bytes(data[at : at + HEAD], "big")
                end = at + HEAD + length
                if length > self._limit:
                    if length > ABSURD * self._limit:
                        raise Lost
                    # Wait for the first byte: the error reply has the same form as the body, JSON or
                    # MessagePack.
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
            # Also runs when the consumer stops early: keep all that was not yielded.
            rest = data[at:]
            self._chunks = [rest] if rest else []
            self._size = len(rest)
            self._want = want


class Lines:
    """Splits received data into lines. Blanks before a line, and blank lines, are dropped.

    >>> lines = Lines(100)
    >>> lines.feed(b"{}" + bytes([10, 13, 10]) + b" {"); list(lines)
    [b'{}']
    >>> lines.feed(b"}"); lines.end(); list(lines)
    [b'{}']
    """

    takes = "one JSON object a line"
    """Forms of a body that are accepted, for error messages."""
    packs = False
    """Whether a body may be MessagePack."""

    __slots__ = ("_chunks", "_ended", "_limit", "_size", "_skipped")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        """Begin at the first non-blank byte of a line, or at the line break that ends a skipped line."""
        self._size = 0
        """Bytes in ``_chunks``."""
        self._ended = False
        """Whether ``_chunks`` may hold a line break."""
        self._skipped = 0
        """Bytes seen so far of a line over the limit."""

    @property
    def waiting(self) -> int:
        """Bytes received and not yet cut into lines."""
        return self._size

    @property
    def partial(self) -> bool:
        """Whether an unfinished line has begun."""
        return self._size > 0 or self._skipped > 0

    def whole(self, data: bytes) -> bytes | None:
        """Return the line if ``data`` is exactly one line and nothing is buffered: the fast path."""
        length = len(data) - 1
        if self._size or self._skipped or length > self._limit or data[:1] <= b" ":
            return None
        return data[:length] if data.find(b"\n") == length else None

    def limit(self, bytes_max: int) -> None:
        """Take bodies of at most so many bytes from now on."""
        self._limit = bytes_max

    def feed(self, data: bytes) -> None:
        if not self._size:
            if self._skipped:
                end = data.find(b"\n")
                self._skipped += end if end >= 0 else len(data)
                data = data[end:] if end >= 0 else b""
            else:
                data = data.lstrip(_BLANKS)
        if data:
            self._chunks.append(data)
            self._size += len(data)
            self._ended = self._ended or b"\n" in data

    def end(self) -> None:
        """Mark the end of the stream, which also ends the last line."""
        self.feed(b"\n")

    @staticmethod
    def wrapped(body: bytes) -> tuple[bytes, bytes]:
        """Return the parts of a reply as one line, to be written one after the other.

        Payloads leave as they were pushed, and one pushed in a frame may hold line breaks between its values.
        """
        if b"\n" in body or b"\r" in body:
            body = body.translate(_ONE_LINE)
        return body, b"\n"

    def __iter__(self) -> Generator[bytes | TooLong, None, None]:
        """Yield the complete lines; a consumer that stops early loses none."""
        if not self._ended:
            # Bound the memory of a line that never ends: from here on its bytes are only counted.
            if self._size > self._limit:
                self._skipped, self._size, self._chunks = self._size, 0, []
            return
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        at, ended = 0, True
        try:
            while (end := data.find(b"\n", at)) >= 0:
                begin, length = at, end - at + self._skipped
                at, self._skipped = _blanks(data, end).end(), 0  # type: ignore[union-attr]
                yield data[begin:end] if length <= self._limit else TooLong(length, b"")
            ended = False
        finally:
            rest = data[at:]
            self._chunks = [rest] if rest else []
            self._size = len(rest)
            self._ended = ended


_BLANKS = b" \t\r\n"
_blanks = re.compile(rb"[ \t\r\n]*").match
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


def cutter(first: int, limit: int) -> Frames | Lines:
    """Return the splitter for a stream that begins with this byte."""
    return Lines(limit) if first in b"{\r\n" else Frames(limit)


FRAME_BYTES_MAX = 1 << 30
"""Longest reply that a client accepts."""


def framed(body: bytes, number: int = 0) -> bytes:
    """Return a request as a frame; its reply carries ``number`` as reqId, unless that is 0."""
    if number:
        body = b'{"reqId":%d,%b' % (number, body[1:])
    return len(body).to_bytes(HEAD, "big") + body


class Foreign(Exception):
    """What answers is not a Forebay server."""

    def __init__(self, begins: bytes) -> None:
        super().__init__(begins)
        self.begins = begins
        """The first bytes of what it said."""


BRACE = ord("{")
BEGINS_BYTES = 100
"""Most bytes of such an answer that are kept, to show them."""


class AnswerFrames:
    """Splits received data into replies in JSON, on the client."""

    def __init__(self) -> None:
        self._got = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the replies completed by ``data``; raise Foreign if the peer is not a Forebay server."""
        got = self._got
        got += data
        found = []
        at = 0
        while len(got) - at >= HEAD:
            end = at + HEAD + int.from_bytes(got[at : at + HEAD], "big")
            # The first byte tells text of another protocol from a long reply, without waiting for the end.
            if end - at > FRAME_BYTES_MAX or (len(got) > at + HEAD and got[at + HEAD] != BRACE):
                raise Foreign(bytes(got[at : at + BEGINS_BYTES]))
            if len(got) < end:
                break
            found.append(bytes(got[at + HEAD : end]))
            at = end
        del got[:at]
        return found
