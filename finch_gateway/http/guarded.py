"""Calls to URLs that came in a dispatch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from ..wire.destinations import Destination, Origin
from .dialling import Dialler
from .line import Line
from .outcome import FRAMING, HttpFailed, HttpHead, Sending


class GuardedClient:
    """Calls destinations over checked addresses only (wire 9.1); others wait while `max_connections` calls run.

    Small on purpose: one for each host that is called, so that no host holds up another.
    """

    def __init__(self, dialler: Dialler, *, max_connections: int = 4) -> None:
        self._dialler = dialler
        self._slots = asyncio.Semaphore(max_connections)
        self._most = max_connections
        self._resting: list[Line] = []
        self._is_closed = False

    async def send(
        self,
        method: str,
        destination: Destination,
        *,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        timeout_s: float,
        max_bytes: int,
    ) -> HttpHead:
        """Make one call, once; raise `HttpFailed`, and nothing else, when no status comes back.

        The target and the headers leave as they are given, with `Host` and `Content-Length` added. `timeout_s`
        bounds the call up to the answer's head: its status is the answer, whatever follows. The body is only
        read, and never unpacked, so that the line can be used again: at most `max_bytes` of it, for a second
        at most. Redirects are answers like any other. A cancelled call closes its connection at once.
        """
        if any(name.lower().decode("latin-1") in FRAMING for name, _ in headers):
            raise HttpFailed("protocol", sent=False, detail="the framing headers are not the caller's to set")
        framed = [(b"Host", destination.authority), *headers, (b"Content-Length", str(len(body)).encode())]
        sending = Sending()
        deadline = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s) as limit, self._slots:
                line = self._take(destination.origin) or await self._dialler.dial(destination)
                try:
                    # A process that was frozen meanwhile must not send late: somebody else may have the work by now.
                    if time.monotonic() >= deadline:
                        raise TimeoutError
                    line.send(method, destination.target, framed, body)
                    sending.sent = True
                    head = await line.read_head()
                    limit.reschedule(None)
                    await line.skip_body(max_bytes)
                finally:
                    self._put_back(line)
        except TimeoutError:
            raise HttpFailed("timeout", sent=sending.sent) from None
        return head

    async def close(self) -> None:
        """Close every idle connection; those of running calls close with them."""
        self._is_closed = True
        for line in self._resting:
            line.abort()
        self._resting.clear()
        await asyncio.sleep(0)  # the sockets close in the loop's next round

    def _take(self, origin: Origin) -> Line | None:
        """Return the line to this origin that rested last."""
        self._resting = [line for line in self._resting if line.is_open]
        for at in range(len(self._resting) - 1, -1, -1):
            if self._resting[at].origin == origin:
                return self._resting.pop(at)
        return None

    def _put_back(self, line: Line) -> None:
        if self._is_closed:
            line.abort()
        elif line.rest():
            self._resting.append(line)
        # A client that calls several origins keeps the lines it used last.
        while len(self._resting) > self._most:
            self._resting.pop(0).abort()
