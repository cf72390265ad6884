"""Finch's receiver for callbacks: proves each, judges it, answers it, and misbehaves on request (wire 7).

Plain HTTP on h11: it sees the target and the bytes as they were sent, and can break off at any point.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, TypeAlias

import h11

from .exchange import Headers, Request
from .signer import Credential, Distrust, verify_callback
from .timeline import MAX_NOTED, Arrival, Timeline

MAX_BODY_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_TRICKLE_S = 0.2
_HTTP_ERRORS = (h11.RemoteProtocolError, h11.LocalProtocolError, OSError)

Kind: TypeAlias = Literal["answer", "hang", "trickle", "drop", "forget", "endless"]


@dataclass(frozen=True, slots=True)
class Fault:
    """How a delivery is mistreated.

    `answer` refuses it with a status and headers; `hang` never answers; `trickle` sends the head of an answer
    byte by byte and never to its end; `drop` closes without an answer; `forget` accepts it and then closes
    without an answer; `endless` accepts it with a body that does not end.
    """

    kind: Kind = "answer"
    status: int = 500
    headers: Headers = ()


@dataclass(slots=True)
class _Seeded:
    """A fault that is left for `times` more deliveries (None: for ever) to one timeline, or to any."""

    fault: Fault
    times: int | None
    timeline: Timeline | None

    def takes(self, timeline: Timeline | None) -> bool:
        if self.times == 0 or self.timeline not in (None, timeline):
            return False
        self.times = self.times and self.times - 1
        return True


@dataclass(frozen=True, slots=True)
class CallbackKey:
    """What proves a callback: the credential under its key id, and the request secret it must not be signed with."""

    credential: Credential
    not_with: Credential | None = None


class Receiver:
    """Listens for the callbacks of every task that was opened here, while its block runs.

    `keys` are the callback credentials by key id. `base_url` is what callback URLs begin with, where the
    provider reaches this receiver under another name than its own; paths must arrive unchanged.
    """

    def __init__(
        self,
        keys: Iterable[CallbackKey],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        base_url: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys: Mapping[str, CallbackKey] = {key.credential.key_id: key for key in keys}
        self._host = host
        self._port = port
        self._base_url = base_url.rstrip("/")
        self._clock = clock
        self._timelines: dict[str, Timeline] = {}
        self._nonces: set[tuple[str, str]] = set()
        self._seeded: list[_Seeded] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.strays: list[Arrival] = []

    @property
    def base_url(self) -> str:
        return self._base_url or f"http://{self._host}:{self._port}"

    async def __aenter__(self) -> Receiver:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; raise `OSError` where that cannot be done."""
        self._server = await asyncio.start_server(self._connected, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and break off whatever is under way."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def open(self, invocation_id: str, query: str = "") -> Timeline:
        """Return the timeline of a task to be dispatched; its `url` goes into the dispatch."""
        path = f"/callbacks/{uuid.uuid4().hex}"
        url = self.base_url + path + query
        # What is signed is the target as it stands in the URL, prefix and all (wire 7.1).
        target = url[url.index("/", url.index("://") + 3) :]
        timeline = self._timelines[path.rpartition("/")[2]] = Timeline(url, target, invocation_id)
        return timeline

    def seed(self, fault: Fault, *, times: int | None = None, timeline: Timeline | None = None) -> None:
        """Mistreat the next `times` deliveries (None: all of them) to one timeline, or to any."""
        self._seeded.append(_Seeded(fault, times, timeline))

    def heal(self) -> None:
        """Mistreat nothing any more."""
        self._seeded.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        if connection is None:
            raise AssertionError("a connection is served by a task")
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        with suppress(asyncio.CancelledError, *_HTTP_ERRORS):
            await self._serve(h11.Connection(h11.SERVER), reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _serve(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await _read_request(http, reader)) is not None:
            if not await self._deliver(request, http, reader, writer) or http.our_state is not h11.DONE:
                return
            http.start_next_cycle()

    async def _deliver(
        self, request: Request, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Judge, note and answer one delivery; False when the connection must end."""
        timeline = self._timelines.get(request.path.rpartition("/")[2])
        arrival, status = self._judged(Arrival(self._clock(), request, None, ()), timeline)
        fault = next((seeded.fault for seeded in self._seeded if seeded.takes(timeline)), None)
        if fault is None:
            self._note(replace(arrival, answered=status), timeline)
            await _answer(http, writer, status, ())
            return True
        told = {"answer": fault.status, "forget": status, "endless": status}
        self._note(replace(arrival, answered=told.get(fault.kind, 0)), timeline)
        if fault.kind == "answer":
            await _answer(http, writer, fault.status, fault.headers)
            return True
        await _break_off(fault.kind, reader, writer)
        return False

    def _judged(self, arrival: Arrival, timeline: Timeline | None) -> tuple[Arrival, int]:
        """Return a delivery with all its faults, and the status that Finch would answer."""
        request = arrival.request
        if request.method != "POST":
            return replace(arrival, faults=(f"the method is {request.method}, not POST",)), 405
        if timeline is None:
            return replace(arrival, faults=("no dispatch named this target",)), 404
        if request.target != timeline.target:
            return replace(arrival, faults=("the target is not the URL's own, byte for byte",)), 404
        unproven = self._unproven(request)
        if unproven:
            return replace(arrival, faults=(unproven,)), 401
        judged = timeline.judge(replace(arrival, faults=tuple(_header_faults(request))))
        return judged, _status_for(judged)

    def _unproven(self, request: Request) -> str:
        named = request.values("X-Agent-Key-Id")
        key = self._keys.get(named[0]) if len(named) == 1 else None
        if key is None:
            return "unsigned: X-Agent-Key-Id is missing" if not named else "X-Agent-Key-Id names no callback key"
        try:
            nonce = verify_callback(key.credential, request, now=self._clock())
        except Distrust as error:
            return self._reason(request, key, error)
        if (key.credential.key_id, nonce) in self._nonces:
            return "X-Agent-Nonce was used for another delivery before"
        self._nonces.add((key.credential.key_id, nonce))
        return ""

    def _reason(self, request: Request, key: CallbackKey, error: Distrust) -> str:
        if key.not_with is None or key.not_with.secret == key.credential.secret:
            return str(error)
        try:
            verify_callback(key.not_with, request, now=self._clock())
        except Distrust:
            return str(error)
        return "signed with the request secret, though there is a callback secret"

    def _note(self, arrival: Arrival, timeline: Timeline | None) -> None:
        if timeline is not None:
            timeline.keep(arrival)
        elif len(self.strays) < MAX_NOTED:
            self.strays.append(arrival)


def _header_faults(request: Request) -> Sequence[str]:
    faults = []
    if request.values("Content-Type") != ("application/json",):
        faults.append("Content-Type is not application/json")
    if request.values("Content-Encoding"):
        faults.append("the callback carries a Content-Encoding")
    return faults


def _status_for(arrival: Arrival) -> int:
    if not arrival.faults:
        return 200
    return 422 if arrival.event is None else 409


async def _read_request(http: h11.Connection, reader: asyncio.StreamReader) -> Request | None:
    """Return the next whole request of a connection; None when there is none."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                return None
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
            return Request(head.method.decode("latin-1"), head.target.decode("latin-1"), headers, bytes(body))
        elif isinstance(event, h11.ConnectionClosed):
            return None


async def _answer(http: h11.Connection, writer: asyncio.StreamWriter, status: int, headers: Headers) -> None:
    response = h11.Response(status_code=status, headers=[("Content-Length", "0"), *headers])
    writer.write((http.send(response) or b"") + (http.send(h11.EndOfMessage()) or b""))
    await writer.drain()


async def _break_off(kind: Kind, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the other side wait for an answer that never is whole, until it hangs up; `drop` and `forget` hang up."""
    if kind == "hang":
        while await reader.read(_CHUNK_BYTES):
            pass
    if kind not in ("trickle", "endless"):
        return
    writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: " if kind == "trickle" else b"HTTP/1.1 200 OK\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"z")
        await writer.drain()
        await asyncio.sleep(_TRICKLE_S)
