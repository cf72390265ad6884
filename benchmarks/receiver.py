"""A bare receiver of callbacks in a process of its own, on the generator's core: it answers, and at most remembers."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from . import servers

_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_END = re.compile(rb'"event_id":"([^"]+)".*"event_type":"task\.(?:completed|failed|canceled|expired)"')


@dataclass(frozen=True, slots=True)
class Received:
    """Every callback as it came, head and body, and the instant of the last end on `time.perf_counter`'s clock."""

    messages: tuple[bytes, ...]
    last_end_at: float


class Receiver:
    """The receiver's near side."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self.port: int = line.recv()

    def expect(self, ends: int) -> None:
        """Forget what came so far, and remember what comes until that many tasks have told their end."""
        self._line.send(ends)

    def received(self, timeout_s: float) -> Received:
        """Wait until the expected ends are there and return what came; raise `TimeoutError`."""
        if not self._line.poll(timeout_s):
            raise TimeoutError(f"not every task had told its end after {timeout_s:.0f} s")
        return Received(*self._line.recv())


@contextlib.contextmanager
def running() -> Iterator[Receiver]:
    """Run a receiver; it takes callbacks at once, whether or not any are expected."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        yield Receiver(here)
    finally:
        process.terminate()
        process.join()


class _Memory:
    """What the receiver remembers, and when it has it all."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._messages: list[bytes] = []
        self._ends: set[bytes] = set()
        self._expected = 0

    def begin(self) -> None:
        self._messages, self._ends, self._expected = [], set(), self._line.recv()

    def keep(self, message: bytes) -> None:
        if not self._expected:
            return
        self._messages.append(message)
        if end := _END.search(message):
            # A set: an end whose answer was lost is told again.
            self._ends.add(end[1])
            if len(self._ends) == self._expected:
                self._line.send((tuple(self._messages), time.perf_counter()))
                self._expected = 0


class _Caller(asyncio.Protocol):
    """One connection: 204 to every callback as soon as it is whole."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        held = self._held + data if self._held else data
        begin = answered = 0
        while end := _end_of_message(held, begin):
            self._memory.keep(held[begin:end])
            begin, answered = end, answered + 1
        self._held = held[begin:]
        if answered:
            self._transport.write(_ANSWER * answered)  # type: ignore[attr-defined]


def _end_of_message(data: bytes, begin: int) -> int:
    """Return where the message that begins there ends; 0 while it is not whole."""
    head_end = data.find(b"\r\n\r\n", begin)
    found = _LENGTH.search(data, begin, head_end) if head_end >= 0 else None
    end = head_end + 4 + int(found[1]) if found else 0
    return end if end <= len(data) else 0


def _receive(line: Connection) -> None:
    """Be the receiver until ended."""
    servers.pin_generator()

    async def serve() -> None:
        loop, memory = asyncio.get_running_loop(), _Memory(line)
        server = await loop.create_server(lambda: _Caller(memory), "0.0.0.0", 0)
        loop.add_reader(line.fileno(), memory.begin)
        line.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
