"""Finch's callback receiver for tests: verifies every event by hand and holds the rules of wire 7 against it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .finch import body_hash, mac

Headers = dict[str, str]
FINAL = {"completed", "failed", "canceled", "expired"}


@dataclass(slots=True)
class Event:
    """An event as it came: when, over which target, and what it says."""

    at: float
    target: str
    body: dict[str, Any]
    raw: bytes
    status: int


@dataclass(slots=True)
class Receiver:
    """Listens on a free port. `answer` decides each answer's status: None hangs, a negative closes at once."""

    secret: bytes
    answer: Callable[[dict[str, Any]], int | None] = lambda body: 204
    port: int = 0
    events: list[Event] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    connections: int = 0
    _bodies: dict[str, bytes] = field(default_factory=dict)
    _accepted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _ended: set[str] = field(default_factory=set)
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def listening(self) -> Any:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    def url(self, path: str = "/callbacks/x") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def of(self, task_id: str, accepted: bool = True) -> list[dict[str, Any]]:
        """Return the events of a task in the order they came; only those that were taken, unless told otherwise."""
        found = [event for event in self.events if event.body["merchant_task_id"] == task_id]
        return [event.body for event in found if not accepted or 200 <= event.status < 300]

    def statuses(self, task_id: str) -> list[str]:
        return [event["status"] for event in self.of(task_id)]

    def terminal(self, task_id: str) -> str | None:
        return next((status for status in self.statuses(task_id) if status in FINAL), None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not await self._take(head, reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            self._open.discard(task)
            writer.close()

    async def _take(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line, *rest = head[:-4].decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
        raw = await reader.readexactly(int(headers["content-length"]))
        body = json.loads(raw)
        self._check(method, target, headers, raw, body)
        status = self.answer(body)
        if status is None:
            self.events.append(Event(time.time(), target, body, raw, 0))
            await asyncio.sleep(3600)
        assert status is not None
        self.events.append(Event(time.time(), target, body, raw, status))
        if status < 0:
            return False
        if 200 <= status < 300:
            self._accept(body)
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        return True

    def _check(self, method: str, target: str, headers: Headers, raw: bytes, body: dict[str, Any]) -> None:
        at, nonce = headers["x-agent-timestamp"], headers["x-agent-nonce"]
        expected = mac(self.secret, method.encode(), target.encode(), at.encode(), nonce.encode(), body_hash(raw))
        if headers["x-agent-signature"] != expected.decode():
            self.violations.append(f"bad signature for {body.get('event_id')}")
        if method != "POST" or headers.get("content-type") != "application/json":
            self.violations.append(f"{method} with {headers.get('content-type')}")
        if abs(int(at) - time.time()) > 300:
            self.violations.append("a stale timestamp")
        if body["event_id"] != f"evt-{body['merchant_task_id']}-{body['sequence']}":
            self.violations.append(f"a strange event id {body['event_id']}")
        if self._bodies.setdefault(body["event_id"], raw) != raw:
            self.violations.append(f"two bodies for {body['event_id']}")
        if body["sequence"] < self._accepted[body["merchant_task_id"]]:
            self.violations.append(f"{body['event_id']} came after a newer one was taken")
        if _has_null(body):
            self.violations.append(f"a null in {body['event_id']}")

    def _accept(self, body: dict[str, Any]) -> None:
        task_id = body["merchant_task_id"]
        if task_id in self._ended and body["sequence"] > self._accepted[task_id]:
            self.violations.append(f"{body['event_id']} came after the end")
        self._accepted[task_id] = max(self._accepted[task_id], body["sequence"])
        if body["status"] in FINAL:
            self._ended.add(task_id)


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_null(inner) for inner in value.values())
    if isinstance(value, list):
        return any(_has_null(inner) for inner in value)
    return value is None
