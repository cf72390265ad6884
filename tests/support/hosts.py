"""Receivers on addresses of their own, so that each counts as a host; and two kinds that never answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from .receiver import Receiver


@dataclass(slots=True)
class HostReceiver(Receiver):
    """A receiver on another loopback address."""

    host: str = "127.0.0.1"

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[HostReceiver]:
        server = await asyncio.start_server(self._serve, self.host, 0, limit=1 << 22)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    def url(self, path: str = "/callbacks/x") -> str:
        return f"http://{self.host}:{self.port}{path}"


@contextlib.asynccontextmanager
async def silent_host(host: str, *, trickles: bool) -> AsyncIterator[str]:
    """Listen without ever answering, or with a byte of an answer a second; yields the URL."""
    open_ones: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_ones.add(task)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            for byte in b"HTTP/1.1 204 No Content\r\nX-Slow: " + b"x" * 10_000:
                await asyncio.sleep(1)
                if trickles:
                    writer.write(bytes([byte]))
                    await writer.drain()
        open_ones.discard(task)
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}/callbacks/x"
    finally:
        server.close()
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
