"""Finch's side for tests: signs by hand, speaks HTTP over a raw socket, so that every byte is the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer with its exact body bytes."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: str) -> str:
        values = [value for found, value in self.headers if found.lower() == name.lower().encode()]
        return values[0].decode("latin-1") if values else ""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error code, the turn's failure code, or the status of a reply."""
        body = self.json
        if "error" in body:
            return str(body["error"]["code"])
        return str(body.get("code") or body.get("status"))


def mac(secret: bytes, *lines: bytes) -> bytes:
    return b"v1=" + hmac.new(secret, b"\n".join(lines), hashlib.sha256).hexdigest().encode()


def body_hash(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class Finch:
    """A caller with one credential. `mount` is the listing's path prefix."""

    host: str
    port: int
    key_id: str
    secret: bytes
    mount: str = "/finch/v2"
    wire_protocol: str = "finch_v2"

    def signed(
        self,
        method: str,
        target: bytes,
        body: bytes = b"",
        *,
        timestamp: int | None = None,
        nonce: str | None = None,
    ) -> Headers:
        """Return the four headers over exactly this target and body."""
        at = str(int(time.time()) if timestamp is None else timestamp).encode()
        once = (nonce or uuid.uuid4().hex).encode()
        signature = mac(self.secret, method.encode(), target, at, once, body_hash(body))
        return [
            (b"X-Platform-Key-Id", self.key_id.encode()),
            (b"X-Platform-Timestamp", at),
            (b"X-Platform-Nonce", once),
            (b"X-Platform-Signature", signature),
        ]

    def verify(self, answer: HttpAnswer, method: str, target: bytes, key_id: str | None = None) -> str:
        """Return the nonce of an answer signed for this request; fail the test otherwise."""
        assert answer.header("X-Agent-Key-Id") == (key_id or self.key_id), answer
        at, once = answer.header("X-Agent-Timestamp").encode(), answer.header("X-Agent-Nonce").encode()
        expected = mac(self.secret, method.encode(), target, at, once, body_hash(answer.body))
        assert answer.header("X-Agent-Signature").encode() == expected, answer
        assert abs(int(at) - time.time()) < 300
        return once.decode()

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes = b"") -> HttpAnswer:
        """Send one request on a connection of its own and return the answer."""
        async with self.connection() as connection:
            return await connection.ask(method, target, headers, body)

    @contextlib.asynccontextmanager
    async def connection(self) -> Any:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def call(
        self, method: str, path: str, body: bytes = b"", *, extra: Headers | None = None, **signing: Any
    ) -> HttpAnswer:
        """Send a signed request to a path under the mount; the answer's signature is verified."""
        target = (self.mount + path).encode()
        headers = [*self.signed(method, target, body, **signing), *(extra or [])]
        answer = await self.send(method, target, headers, body)
        self.verify(answer, method, target)
        return answer

    async def health(self) -> HttpAnswer:
        return await self.call("GET", "/health")

    async def turn(self, text: str = "hello", **fields: Any) -> HttpAnswer:
        return await self.invoke(self.envelope(text, **fields))

    async def invoke(self, envelope: dict[str, Any], **signing: Any) -> HttpAnswer:
        extra = [(b"Content-Type", b"application/json"), (b"Idempotency-Key", uuid.uuid4().hex.encode())]
        return await self.call("POST", "/invoke", json.dumps(envelope).encode(), extra=extra, **signing)

    def envelope(
        self,
        text: str = "hello",
        *,
        invocation_id: str | None = None,
        turn_id: str | None = None,
        conversation_id: str | None = None,
        deadline_s: float = 60,
        **fields: Any,
    ) -> dict[str, Any]:
        """Return a P1 dispatch whose deadline is `deadline_s` seconds from now."""
        envelope = dispatch(self.wire_protocol, deadline_s, invocation_id)
        envelope["conversation"] = {
            "conversation_id": conversation_id or str(uuid.uuid4()),
            "turn_id": turn_id or str(uuid.uuid4()),
            "context_mode": "platform_managed",
            "messages": [],
        }
        envelope["input"] = {"content": [{"type": "text", "text": text}], "parameters": {}}
        return {**envelope, **fields}

    def task_envelope(
        self,
        text: str = "hello",
        *,
        callback: str | None = None,
        callback_key_id: str | None = None,
        invocation_id: str | None = None,
        deadline_s: float = 60,
        **fields: Any,
    ) -> dict[str, Any]:
        """Return a P2 dispatch; `callback` None leaves the callback out."""
        envelope = dispatch(self.wire_protocol, deadline_s, invocation_id)
        del envelope["callback"]
        if callback is not None:
            envelope["callback"] = {"url": callback, "callback_key_id": callback_key_id or self.key_id}
        envelope["input"] = {"content": [{"type": "text", "text": text}], "parameters": {}}
        if self.wire_protocol == "finch_v2":
            envelope["interaction_mode"] = "task"
        else:
            envelope["agent"]["interaction_mode"] = "task"
        return {**envelope, **fields}

    async def task(self, text: str = "hello", **fields: Any) -> str:
        """Dispatch a task and return its id."""
        answer = await self.invoke(self.task_envelope(text, **fields))
        assert answer.status == 202, answer
        return str(answer.json["merchant_task_id"])

    async def poll(self, task_id: str) -> HttpAnswer:
        return await self.call("GET", f"/tasks/{task_id}", extra=[(b"Idempotency-Key", uuid.uuid4().hex.encode())])

    async def message(self, task_id: str, text: str, key: str | None = None) -> HttpAnswer:
        content = [{"type": "text", "text": text}]
        body = {
            "protocol_version": "2.0",
            "task_id": str(uuid.uuid4()),
            "message": {"role": "user", "content": content},
        }
        extra = [(b"Idempotency-Key", (key or uuid.uuid4().hex).encode())]
        return await self.call("POST", f"/tasks/{task_id}/messages", json.dumps(body).encode(), extra=extra)

    async def cancel(self, task_id: str) -> HttpAnswer:
        body = b'{"protocol_version":"2.0","reason":"user_requested"}'
        return await self.call("POST", f"/tasks/{task_id}/cancel", body)

    async def until(self, task_id: str, *statuses: str, limit_s: float = 60) -> dict[str, Any]:
        """Poll until the task has one of these statuses and return its snapshot."""
        end = time.monotonic() + limit_s
        while True:
            snapshot: dict[str, Any] = (await self.poll(task_id)).json
            if snapshot["status"] in statuses:
                return snapshot
            assert time.monotonic() < end, snapshot
            await asyncio.sleep(0.05)

    def with_key(self, key_id: str, secret: bytes) -> Finch:
        return replace(self, key_id=key_id, secret=secret)


def dispatch(wire_protocol: str, deadline_s: float, invocation_id: str | None) -> dict[str, Any]:
    deadline = datetime.fromtimestamp(time.time() + deadline_s, UTC).isoformat(timespec="milliseconds")
    common = {
        "protocol_version": "2.0",
        "limits": {"deadline_at": deadline.replace("+00:00", "Z")},
        "callback": {"url": "https://finch.example/callbacks/x", "callback_key_id": "finch.agenton.x"},
        "task_completed": False,
        "artifact_uploads": [],
    }
    if wire_protocol == "finch_v2":
        return {
            **common,
            "invocation_id": invocation_id or str(uuid.uuid4()),
            "dispatch_id": str(uuid.uuid4()),
            "service_version_id": str(uuid.uuid4()),
            "interaction_mode": "conversation_turn",
            "quantity": 1,
            "terms_hash": "0x" + "a" * 64,
        }
    return {
        **common,
        "invocation_id": invocation_id or f"ivk_{uuid.uuid4().hex}",
        "contract_test": True,
        "agent": {"agent_id": str(uuid.uuid4()), "version": "1", "interaction_mode": "conversation_turn"},
        "commercial": {"quantity": 1},
    }


@dataclass(slots=True)
class Connection:
    """One kept-alive connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answers: int = field(default=0)

    async def ask(self, method: str, target: bytes, headers: Headers, body: bytes = b"") -> HttpAnswer:
        self.writer.write(request_bytes(method, target, headers, body))
        await self.writer.drain()
        return await self.read(method)

    async def read(self, method: str = "GET") -> HttpAnswer:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)
        status, headers = parse_head(head)
        length = next((int(value) for name, value in headers if name.lower() == b"content-length"), 0)
        body = b"" if method == "HEAD" else await asyncio.wait_for(self.reader.readexactly(length), 60)
        self.answers += 1
        return HttpAnswer(status, headers, body)


def request_bytes(method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes = b"") -> bytes:
    """Return a request exactly as given; Host and, with a body, Content-Length are added where absent."""
    lines = [method.encode() + b" " + target + b" HTTP/1.1"]
    named = {name.lower() for name, _ in headers}
    if b"host" not in named:
        lines.append(b"Host: gateway.test")
    lines.extend(name + b": " + value for name, value in headers)
    if body and not named & {b"content-length", b"transfer-encoding"}:
        lines.append(b"Content-Length: " + str(len(body)).encode())
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def parse_head(head: bytes) -> tuple[int, Headers]:
    first, *rest = head[:-4].split(b"\r\n")
    headers = [(name.strip(), value.strip()) for name, _, value in (line.partition(b":") for line in rest)]
    return int(first.split(b" ")[1]), headers
