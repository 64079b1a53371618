"""Bytes to bodies: frames of a 4-byte big-endian length and a body, or one body a line.

The first byte of a stream decides. A body over the limit is skipped and reported, so the stream goes on
behind it. A length that no client of ours would ever send means that the other side speaks something else;
such a stream can't be followed. A stream of lines always can.
"""

import re
from collections.abc import Generator

HEAD = 4
"""Bytes of the length."""
ABSURD = 4
"""A length of more than this many times the limit is not a length."""


class TooLong:
    """A body that is longer than the limit; it is skipped."""

    __slots__ = ("begins", "length")

    def __init__(self, length: int, begins: bytes) -> None:
        self.length = length
        self.begins = begins
        """Its first byte, if it came in a frame: what form it has."""


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

    takes = "one JSON object or MessagePack map"
    """What a body has to be."""
    packs = True
    """Whether it may be MessagePack."""

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

    def end(self) -> None:
        """Nothing more comes: a frame that is not complete never will be."""

    @staticmethod
    def wrapped(body: bytes) -> tuple[bytes, bytes]:
        """The parts of an answer, to be written one after the other."""
        return len(body).to_bytes(HEAD, "big"), body

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


class Lines:
    """Cuts what arrives into lines. Blanks before a line, and lines of nothing else, are passed over.

    >>> lines = Lines(100)
    >>> lines.feed(b"{}" + bytes([10, 13, 10]) + b" {"); list(lines)
    [b'{}']
    >>> lines.feed(b"}"); lines.end(); list(lines)
    [b'{}']
    """

    takes = "one JSON object a line"
    """What a body has to be."""
    packs = False
    """Whether it may be MessagePack."""

    __slots__ = ("_chunks", "_ended", "_limit", "_size", "_skipped")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        """They begin with a line, and not with a blank; with the end of one if some of it was skipped."""
        self._size = 0
        """Bytes in the chunks."""
        self._ended = False
        """Whether a line may end in the chunks."""
        self._skipped = 0
        """Bytes of a line that is too long, so far."""

    @property
    def waiting(self) -> int:
        """Bytes that have come and are not taken yet."""
        return self._size

    @property
    def partial(self) -> bool:
        """Whether a line has begun and has not ended."""
        return self._size > 0 or self._skipped > 0

    def whole(self, data: bytes) -> bytes | None:
        """The line, if ``data`` is exactly one and nothing came before: the usual case, at once."""
        length = len(data) - 1
        if self._size or self._skipped or length > self._limit or data[:1] <= b" ":
            return None
        return data[:length] if data.find(b"\n") == length else None

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
        """Nothing more comes: that is the end of the last line, too."""
        self.feed(b"\n")

    @staticmethod
    def wrapped(body: bytes) -> tuple[bytes, bytes]:
        """The parts of an answer, to be written one after the other.

        Payloads go out as they came in, and what came in a frame may have line breaks between its values.
        """
        if b"\n" in body or b"\r" in body:
            body = body.translate(_ONE_LINE)
        return body, b"\n"

    def __iter__(self) -> Generator[bytes | TooLong, None, None]:
        """The complete lines; stopping early loses nothing."""
        if not self._ended:
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
    """What cuts a stream that begins with this byte."""
    return Lines(limit) if first in b"{\r\n" else Frames(limit)


FRAME_BYTES_MAX = 1 << 30
"""No answer is longer."""


def framed(body: bytes, number: int = 0) -> bytes:
    """A request as a frame, with a number for the answer to come back to."""
    if number:
        body = b'{"reqId":%d,%b' % (number, body[1:])
    return len(body).to_bytes(HEAD, "big") + body


class AnswerFrames:
    """Cuts what comes into answers."""

    def __init__(self) -> None:
        self._got = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The answers that are complete with this; raises if these are none of a Forebay server."""
        got = self._got
        got += data
        found = []
        at = 0
        while len(got) - at >= HEAD:
            end = at + HEAD + int.from_bytes(got[at : at + HEAD], "big")
            if end - at > FRAME_BYTES_MAX:
                raise ConnectionError("what answers there does not speak as a Forebay server does")
            if len(got) < end:
                break
            found.append(bytes(got[at + HEAD : end]))
            at = end
        del got[:at]
        return found
