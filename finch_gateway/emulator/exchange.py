"""One request and its answer as they crossed the wire, and how they are shown to people."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]

_SHOWN_BODY_CHARS = 400
_QUIET_HEADERS = frozenset({"date", "connection", "host", "user-agent", "server"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request, byte for byte as it is sent; `target` is the request target below the base URL's host."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def values(self, name: str) -> tuple[str, ...]:
        """Return every value of a header, in order."""
        return values_of(self.headers, name)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, byte for byte as it arrived, and how long it took."""

    status: int
    headers: Headers
    body: bytes
    elapsed_s: float = 0.0

    def values(self, name: str) -> tuple[str, ...]:
        """Return every value of a header, in order."""
        return values_of(self.headers, name)

    def value(self, name: str) -> str:
        """Return a header's first value, or an empty text."""
        return next(iter(self.values(name)), "")


def values_of(headers: Headers, name: str) -> tuple[str, ...]:
    """Return every value of a header, in order."""
    return tuple(value for found, value in headers if found.lower() == name.lower())


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, its answer, and why the answer is not to be trusted (empty where its signature holds)."""

    request: Request
    answer: Answer
    distrust: str = ""

    @property
    def proven(self) -> bool:
        return not self.distrust


@dataclass(frozen=True, slots=True)
class Trace:
    """An exchange as it may be written down: signatures and nonces shortened, no text of user or agent.

    `distrust` says why the answer proves nothing, empty where its signature holds.
    """

    method: str
    target: str
    request_headers: Headers
    request_body: str
    status: int
    answer_headers: Headers
    answer_body: str
    elapsed_ms: int
    distrust: str = ""


def trace_of(exchange: Exchange) -> Trace:
    """Return what may be kept of an exchange."""
    request, answer = exchange.request, exchange.answer
    return Trace(
        request.method,
        request.target,
        redacted(request.headers),
        body_summary(request.body),
        answer.status,
        redacted(answer.headers),
        body_summary(answer.body),
        round(answer.elapsed_s * 1000),
        exchange.distrust,
    )


def redacted(headers: Headers) -> Headers:
    """Return the headers that matter, with signatures and nonces shortened beyond use."""
    return tuple((name, _shortened(name, value)) for name, value in headers if name.lower() not in _QUIET_HEADERS)


def _shortened(name: str, value: str) -> str:
    if name.lower().endswith(("-signature", "-nonce", "idempotency-key")) and len(value) > 14:
        return value[:11] + "…"
    return value if len(value) <= 120 else value[:119] + "…"


def body_summary(body: bytes) -> str:
    """Return a body's size, hash and outline; its texts are named by length only."""
    if not body:
        return "empty"
    size = f"{len(body)} bytes, sha256 {hashlib.sha256(body).hexdigest()[:12]}…"
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return f"{size}, not JSON"
    outline = json.dumps(_outline(value), ensure_ascii=False)
    return f"{size}: {outline if len(outline) <= _SHOWN_BODY_CHARS else outline[:_SHOWN_BODY_CHARS] + '…'}"


def _outline(value: object, name: str = "", depth: int = 0) -> object:
    if depth > 6 or name == "json":
        return "…"  # a json part is the agent's own document, its names included
    if isinstance(value, dict):
        return {key: _outline(child, key, depth + 1) for key, child in list(value.items())[:20]}
    if isinstance(value, list):
        return [_outline(child, name, depth + 1) for child in value[:3]]
    if isinstance(value, str) and name not in _SAFE_TEXTS:
        return f"<{len(value)} characters>"
    return value


_SAFE_TEXTS = frozenset(
    {"protocol_version", "invocation_id", "dispatch_id", "interaction_mode", "status", "code", "role", "type"}
    | {"completed_at", "deadline_at", "conversation_id", "turn_id", "quantity"}
    | {"event_id", "event_type", "merchant_task_id", "task_id"}
)
