"""HTTP/1.1's chunked framing, taken off read by read."""

import re

_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
_LONGEST_LINE = 16_384


class Chunked:
    """Takes the framing off one body (RFC 9112, section 7.1); chunk extensions and trailers are passed over."""

    def __init__(self) -> None:
        self.ended = False
        self.left_over = b""
        """What was fed beyond the body's end."""
        self._left = 0
        self._line = b""
        self._after_data = False
        self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """The body's bytes in ``data``, the wire's next bytes.

        Raises:
            ValueError: illegal framing.
        """
        body = []
        at = 0
        while at < len(data) and not self.ended:
            if self._left:
                piece = data[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._after_data = not self._left
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                if len(self._line) > _LONGEST_LINE:
                    raise ValueError("a chunk's size line without an end")
                break
            line = (self._line + data[at:end]).removesuffix(b"\r")
            self._line = b""
            at = end + 1
            self._take_line(line)
        if self.ended:
            self.left_over += data[at:]
        return body[0] if len(body) == 1 else b"".join(body)

    def _take_line(self, line: bytes) -> None:
        if self._after_data:
            if line:
                raise ValueError(f"a chunk longer than its size says: {line[:40]!r}")
            self._after_data = False
        elif self._in_trailers:
            self.ended = not line
        else:
            size = line.partition(b";")[0].strip()
            if not _SIZE.fullmatch(size):
                raise ValueError(f"an illegal chunk size: {line[:40]!r}")
            self._left = int(size, 16)
            self._in_trailers = not self._left


def one_chunk(body: bytes) -> bytes:
    """A whole body in chunked framing."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
