"""One HTTP/1.1 connection, used by one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

import h11

from ..wire.destinations import Origin
from .outcome import KEEP_ALIVE_S, HttpFailed, HttpHead

MAX_HEAD_BYTES = 32 * 1024
MAX_INTERIM = 8
"""How many 1xx answers may come before the real one."""

SKIP_S = 1.0
"""How long the rest of an answered call's body may take before the line is given up."""


class Line(asyncio.Protocol):
    """Writes a request, reads the answer's head, skips its body, and may then be used again.

    Each instance belongs to one client. Anything that arrives while no call is under way ends the line: it
    could only be taken for the answer to the next call.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._is_resting = False
        self._has_ended = False
        self._bytes_in = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._is_resting:
            self.abort()
            return
        self._bytes_in += len(data)
        self._http.receive_data(data)
        self._wake()

    def eof_received(self) -> None:
        self._end()
        self._http.receive_data(b"")
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        self._end()
        self._wake()

    @property
    def is_open(self) -> bool:
        """False from the moment at which the line is known to have ended."""
        return not self._has_ended

    def send(self, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Hand a whole request to the network; raise `HttpFailed`, with nothing sent, when it has no form."""
        assert self._transport is not None
        self._is_resting = False
        self._bytes_in = 0
        if self._expiry is not None:
            self._expiry.cancel()
        try:
            head = self._http.send(h11.Request(method=method, target=target, headers=list(headers)))
            rest = (self._http.send(h11.Data(data=body)) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        except (h11.LocalProtocolError, UnicodeError):
            # Without its cause: the library's text can hold a header's value.
            detail = "the request's target or headers cannot be sent as they are"
            raise HttpFailed("protocol", sent=False, detail=detail) from None
        self._transport.write((head or b"") + rest)

    async def read_head(self) -> HttpHead:
        """Wait for the answer to what was sent; raise `HttpFailed`."""
        for _ in range(MAX_INTERIM + 1):
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return HttpHead(event.status_code, tuple(_text(*pair) for pair in event.headers))
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                break
        raise HttpFailed("dropped" if self._has_ended else "protocol", sent=True)

    async def skip_body(self, max_bytes: int) -> None:
        """Read the answer's body away; give up beyond `max_bytes` on the wire, `SKIP_S`, or where it is broken."""
        limit = self._bytes_in + max_bytes
        try:
            if not self._skip(limit):
                async with asyncio.timeout(SKIP_S):
                    while not self._skip(limit):
                        await self._arrival()
        except (TimeoutError, h11.RemoteProtocolError):
            self.abort()

    def rest(self) -> bool:
        """Keep the line for another call, for `KEEP_ALIVE_S`; False, and it is closed, where that can't be."""
        is_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if self._has_ended or not is_done or self._http.trailing_data[0]:
            self.abort()
            return False
        self._http.start_next_cycle()
        self._is_resting = True
        self._expiry = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self.abort)
        return True

    def abort(self) -> None:
        """Close the line at once."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _skip(self, limit: int) -> bool:
        """Read what is there; True when nothing more is to be waited for."""
        while True:
            if self._bytes_in > limit:
                return True
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                return self._has_ended
            if not isinstance(event, h11.Data):
                return True

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                raise HttpFailed("dropped" if self._has_ended else "protocol", sent=True) from None
            if event is not h11.NEED_DATA:
                return event
            if self._has_ended:
                raise HttpFailed("dropped", sent=True)
            await self._arrival()

    async def _arrival(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self) -> None:
        self._has_ended = True
        if self._expiry is not None:
            self._expiry.cancel()


def _text(name: bytes, value: bytes) -> tuple[str, str]:
    return name.decode("latin-1"), value.decode("latin-1")
