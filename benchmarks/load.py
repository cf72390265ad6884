"""The load generator: one process, raw keep-alive sockets, one epoll loop, requests made beforehand."""

from __future__ import annotations

import gc
import re
import select
import socket
import time
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

SAMPLE_EVERY = 500
STALL_S = 30.0
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run saw; `latencies` in seconds and sorted, `statuses` with 0 for a request that was never answered.

    `samples` are whole answers by the index of their request. `own_cpu` is the generator's share of one core.
    """

    seconds: float
    latencies: array[float]
    statuses: Counter[int]
    samples: tuple[tuple[int, bytes], ...]
    own_cpu: float

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that `percent` of the answers did not exceed, in milliseconds."""
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * percent / 100))] * 1000


class _Line:
    """One keep-alive connection with at most one request under way."""

    __slots__ = ("buffer", "closing", "index", "port", "sock", "started")

    def __init__(self, port: int) -> None:
        self.port, self.index, self.started, self.buffer, self.closing = port, -1, 0.0, b"", False
        self.connect()

    def connect(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=STALL_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.closing = False

    def send(self, request: bytes, index: int, started: float) -> None:
        self.index, self.started, self.buffer = index, started, b""
        try:
            sent = self.sock.send(request)
        except ConnectionError:
            return  # the server hung up while the connection was idle: the next receive says so
        if sent != len(request):
            raise RuntimeError("a request did not fit into an empty socket buffer")

    def receive(self) -> int:
        """Return the status of a whole answer, 0 for a closed connection, -1 while more is to come."""
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return -1
        except ConnectionError:
            data = b""
        if not data:
            self.closing = True
            return 0
        self.buffer = data = self.buffer + data if self.buffer else data
        end = data.find(b"\r\n\r\n")
        found = _LENGTH.search(data, 0, end) if end > 0 else None
        if found is None or len(data) < end + 4 + int(found[1]):
            return -1
        status = int(data[9:12])
        # After an exception uvicorn hangs up without having said so.
        self.closing = status == 500 or (status >= 400 and b"connection: close" in data[:end].lower())
        return status


def drive(port: int, requests: Sequence[bytes], connections: int, rate: float | None = None) -> Outcome:
    """Send every request once and return what came back.

    Without `rate` the loop is closed: each connection sends its next request when it has its answer. With it
    the loop is open: request n is due at n/rate seconds, and its latency counts from then, also when it had
    to wait for a free connection.
    """
    lines = {line.sock.fileno(): line for line in (_Line(port) for _ in range(min(connections, len(requests))))}
    gc.collect()
    gc.disable()  # a collection here would show as the server's latency
    try:
        return _Loop(lines, requests, rate).run()
    finally:
        gc.enable()
        for line in lines.values():
            line.sock.close()


class _Loop:
    def __init__(self, lines: dict[int, _Line], requests: Sequence[bytes], rate: float | None) -> None:
        self.lines, self.requests, self.rate = lines, requests, rate
        self.idle = deque(lines.values())
        self.epoll = select.epoll()
        for fd in lines:
            self.epoll.register(fd, select.EPOLLIN)
        self.sent = 0
        self.latencies = array("d")
        self.statuses: Counter[int] = Counter()
        self.samples: list[tuple[int, bytes]] = []

    def run(self) -> Outcome:
        cpu = time.process_time()
        self.start = self.last_progress = time.perf_counter()
        while len(self.latencies) < len(self.requests):
            self.feed(time.perf_counter())
            self.wait()
            self.collect()
        seconds = time.perf_counter() - self.start
        own_cpu = (time.process_time() - cpu) / seconds
        self.epoll.close()
        latencies = array("d", sorted(self.latencies))
        return Outcome(seconds, latencies, self.statuses, tuple(self.samples), own_cpu)

    def feed(self, now: float) -> None:
        """Send what is due on connections that are free."""
        while self.idle and self.sent < len(self.requests):
            due = now
            if self.rate is not None:
                due = self.start + self.sent / self.rate
                if due > now:
                    return
            self.idle.popleft().send(self.requests[self.sent], self.sent, due)
            self.sent += 1

    def wait(self) -> None:
        timeout = 1.0
        if self.rate is not None and self.idle and self.sent < len(self.requests):
            timeout = max(0.0, self.start + self.sent / self.rate - time.perf_counter())
        # select() waits by the microsecond, epoll_wait only by the millisecond.
        if not select.select((self.epoll,), (), (), timeout)[0]:
            self.check_stall()

    def collect(self) -> None:
        for fd, _ in self.epoll.poll(0):
            line = self.lines[fd]
            status = line.receive()
            if status < 0:
                continue
            now = self.last_progress = time.perf_counter()
            self.latencies.append(now - line.started)
            self.statuses[status] += 1
            if line.index % SAMPLE_EVERY == 0:
                self.samples.append((line.index, line.buffer))
            if line.closing:
                self.reconnect(fd)
            self.idle.append(line)
            self.feed(now)

    def reconnect(self, fd: int) -> None:
        line = self.lines.pop(fd)
        self.epoll.unregister(fd)
        line.sock.close()
        line.connect()
        self.lines[line.sock.fileno()] = line
        self.epoll.register(line.sock.fileno(), select.EPOLLIN)

    def check_stall(self) -> None:
        if time.perf_counter() - self.last_progress > STALL_S:
            under_way = self.sent - len(self.latencies)
            raise TimeoutError(f"{under_way} requests had no answer for {STALL_S:.0f} s")
