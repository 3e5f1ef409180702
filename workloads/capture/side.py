"""One end of the proxy: a connection whose HTTP framing h11 reads and writes."""

import asyncio
from contextlib import suppress
from typing import Any

import h11

READ_BYTES = 1 << 16
HEAD_BYTES = 1 << 18
"""Longest head of a message; h11's own 16 KiB are too few for some cookies."""


class Side:
    """The bytes of a connection, as h11's events."""

    def __init__(
        self, role: type[h11.CLIENT] | type[h11.SERVER], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)
        self.reader = reader
        self._writer = writer

    async def event(self) -> Any:
        """Wait for the next event.

        Raises:
            h11.RemoteProtocolError: the other end broke HTTP, or left in the midst of a message.
            OSError: the connection broke.
        """
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(READ_BYTES))
        return event

    async def events(self) -> list[Any]:
        """Wait for the next event; return it with those that came with it, up to the end of the message."""
        found = [await self.event()]
        while not isinstance(found[-1], h11.EndOfMessage | h11.ConnectionClosed):
            event = self.http.next_event()
            if event in (h11.NEED_DATA, h11.PAUSED):
                break
            found.append(event)
        return found

    async def send(self, *events: Any) -> None:
        """Send events in one write, which keeps the bounds of their chunks.

        Raises:
            OSError: the connection broke.
        """
        self._writer.write(b"".join(self.http.send(event) or b"" for event in events))
        await self._writer.drain()

    async def left(self) -> None:
        """Wait until the other end closes the connection; requests that it sends ahead are kept."""
        with suppress(OSError):
            while data := await self.reader.read(READ_BYTES):
                self.http.receive_data(data)

    @property
    def is_open(self) -> bool:
        return not self.reader.at_eof() and not self._writer.is_closing()

    def next_cycle(self) -> bool:
        """Get ready for another request; False when this connection takes none."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True

    def close(self) -> None:
        """Close the connection after what was written."""
        self._writer.close()
