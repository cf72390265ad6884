"""A provider in the standard library alone, right unless a fault is seeded: what the checks are tried on."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from emulator.task_provider import TaskDesk, refusal

from finch_gateway.emulator.checks import Bench
from finch_gateway.emulator.following import Patience
from finch_gateway.emulator.line import SocketLine
from finch_gateway.emulator.platform import Endpoint, Platform
from finch_gateway.emulator.receiver import CallbackKey, Receiver
from finch_gateway.emulator.signer import Credential

KEY_ID = "finch.agenton.7a0e7e0c-3c0e-4f43-9d39-0d6c3a2f1b10"
SECRET = b"0123456789abcdef0123456789abcdef"
CALLBACK_SECRET = b"fedcba9876543210fedcba9876543210"
MOUNT = "/finch/v2"
MAX_BODY_BYTES = 4096
FOUR_BACK = ("X-Agent-Key-Id", "X-Agent-Timestamp", "X-Agent-Nonce", "X-Agent-Signature")
FOUR = ("X-Platform-Key-Id", "X-Platform-Timestamp", "X-Platform-Nonce", "X-Platform-Signature")


def tag(method: str, target: str, timestamp: str, nonce: str, body: bytes, secret: bytes = SECRET) -> str:
    lines = [method, target, timestamp, nonce, hashlib.sha256(body).hexdigest()]
    return "v1=" + hmac.new(secret, "\n".join(lines).encode(), "sha256").hexdigest()


class Provider:
    """What the handler threads share: spent nonces, kept replies, tasks, and the seeded fault."""

    def __init__(self, fault: str, wire_protocol: str, modes: tuple[str, ...]) -> None:
        self.fault = fault
        self.modes = modes
        self.desk = TaskDesk(fault, self.callback_headers)
        self.wire_protocol = wire_protocol
        self.lock = threading.Lock()
        self.nonces: set[str] = set()
        self.replies: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.runs = 0

    def allows(self, request: Handler, body: bytes) -> bool:
        claims = [request.headers.get_all(name, []) for name in FOUR]
        wanted = 1 if self.fault != "first_header_wins" else max(map(len, claims))
        if not all(1 <= len(values) <= wanted for values in claims):
            return False
        key_id, timestamp, nonce, signature = (values[0].strip() for values in claims)
        if key_id != KEY_ID or not re.fullmatch(r"[1-9]\d{0,11}", timestamp, re.ASCII):
            return False
        age = time.time() - int(timestamp)
        if age > 301 or (age < -301 and self.fault != "future_accepted"):
            return False
        if nonce.startswith("mine-") and self.fault != "reflectable":
            return False
        if request.command == "GET" and body:
            return False
        signed_body = body
        if self.fault == "verifies_parsed_body" and body:
            signed_body = self.compact(body)
        if not hmac.compare_digest(tag(request.command, request.path, timestamp, nonce, signed_body), signature):
            return False
        return self.spend(nonce)

    def callback_headers(self, method: str, target: str, body: bytes) -> dict[str, str]:
        secret = SECRET if self.fault == "callback_with_request_secret" else CALLBACK_SECRET
        timestamp = str(int(time.time()))
        nonce = "mine-for-callbacks" if self.fault == "one_callback_nonce" else f"mine-{uuid.uuid4().hex}"
        signature = tag(method, target, timestamp, nonce, body, secret)
        return dict(zip(FOUR_BACK, (KEY_ID, timestamp, nonce, signature), strict=True))

    @staticmethod
    def compact(body: bytes) -> bytes:
        try:
            return json.dumps(json.loads(body), ensure_ascii=False, separators=(",", ":")).encode()
        except ValueError:
            return body

    def spend(self, nonce: str) -> bool:
        with self.lock:
            fresh = nonce not in self.nonces
            if self.fault != "forgets_nonces":
                self.nonces.add(nonce)
        return fresh

    def invoke(self, body: bytes) -> tuple[int, bytes]:
        envelope = read_strictly(body)
        if envelope is None:
            return refusal(400, "body_invalid")
        code = self.envelope_code(envelope)
        if code:
            return refusal(422, code)
        if "conversation" not in envelope:
            return self.desk.dispatch(envelope)
        identity = (envelope["invocation_id"], envelope["conversation"]["turn_id"])
        asked = json.dumps([envelope["input"], envelope["conversation"]], sort_keys=True)
        with self.lock:
            kept = self.replies.get(identity)
            if kept is None or self.fault == "reruns":
                self.runs += 1
                kept = self.replies[identity] = (asked, self.reply(envelope["invocation_id"]))
        if kept[0] != asked:
            return refusal(409, "idempotency_conflict")
        return (201 if self.fault == "answers_201" else 200), kept[1]

    def envelope_code(self, envelope: dict[str, Any]) -> str:
        if envelope.get("protocol_version", "2.0") != "2.0":
            return "protocol_version_unsupported"
        form = r"[0-9a-f-]{36}" if self.wire_protocol == "finch_v2" else r"ivk_[0-9a-f]{32}"
        mode = envelope if self.wire_protocol == "finch_v2" else envelope.get("agent", {})
        if not {"protocol_version", "invocation_id", "input"} <= set(envelope):
            return "envelope_invalid"
        if not re.fullmatch(form, envelope["invocation_id"]):
            return "envelope_invalid"
        return "" if mode.get("interaction_mode") in self.modes else "interaction_mode_unsupported"

    def task_call(self, request: Handler, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer a poll, an answer or a cancel; the task is looked up first, then the body is read."""
        task_id, _, action = path.removeprefix(f"{MOUNT}/tasks/").partition("/")
        if action not in ("", "messages", "cancel"):
            return refusal(404, "not_found")
        if request.command != ("POST" if action else "GET"):
            return refusal(405, "method_not_allowed")
        task = self.desk.find(task_id)
        if task is None:
            return refusal(404, "task_not_found")
        key = request.headers.get("Idempotency-Key", "")
        if not action:
            return self.desk.poll(task, key)
        if read_strictly(body) is None:
            return refusal(400, "body_invalid")
        return self.desk.answer(task, key, body) if action == "messages" else self.desk.cancel(task)

    def reply(self, invocation_id: str) -> bytes:
        completed: dict[str, Any] = {
            "protocol_version": "2.0",
            "invocation_id": str(uuid.uuid4()) if self.fault == "other_invocation_id" else invocation_id,
            "status": "completed",
            "message": {"role": "agent", "content": [{"type": "text", "text": f"I am useful, run {self.runs}."}]},
            "artifacts": [],
            "completed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        head = {name: completed[name] for name in ("protocol_version", "invocation_id")}
        shapes: dict[str, dict[str, Any]] = {
            "null_in_reply": {**completed, "error": None},
            "asks": {**head, "status": "input_required", "questions": [{"id": "scope", "question": "Which one?"}]},
            "fails": {**head, "status": "failed", "error": {"code": "agent_error"}},
            "added_field": {**completed, "usage": {"tokens": 3}},
            "local_time": {**completed, "completed_at": "2026-08-24 10:29:12"},
        }
        return json.dumps(shapes.get(self.fault, completed)).encode()


def read_strictly(body: bytes) -> dict[str, Any] | None:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items):
            raise ValueError
        return dict(items)

    def constant(name: str) -> Any:
        raise ValueError

    try:
        value = json.loads(body.decode(), object_pairs_hook=pairs, parse_constant=constant)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    provider: Provider

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base class says so
        pass

    def handle_any(self) -> None:
        provider, body = self.provider, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding"):
            return self.answer(*refusal(415, "encoding_unsupported"))
        if len(body) > MAX_BODY_BYTES and provider.fault != "unbounded":
            return self.answer(*refusal(413, "request_too_large"))
        if not provider.allows(self, body):
            reason = {"unsure": self.headers.get("X-Platform-Nonce", "none")} if provider.fault == "tells_why" else {}
            return self.answer(401, json.dumps({"code": "auth_failed", "message": "No.", **reason}).encode())
        path = self.path.partition("?")[0]
        if provider.fault == "slash_redirect" and path in (f"{MOUNT}/health/", f"{MOUNT}/invoke/"):
            return self.answer(307, b"{}", location=path.rstrip("/"))
        if path.startswith(f"{MOUNT}/tasks/") and "task" in provider.modes:
            status, answer = provider.task_call(self, path, body)
            return self.answer(status, answer, signed=status != 404 or provider.fault != "unsigned_task_404")
        if path not in (f"{MOUNT}/health", f"{MOUNT}/invoke"):
            return self.answer(*refusal(404, "not_found"), signed=provider.fault != "unsigned_404")
        if (self.command, path) not in (("GET", f"{MOUNT}/health"), ("POST", f"{MOUNT}/invoke")):
            return self.answer(*refusal(405, "method_not_allowed"))
        if path.endswith("/health"):
            return self.answer(200, b'{"status":"ready"}')
        return self.answer(*provider.invoke(body))

    do_GET = do_POST = do_HEAD = do_DELETE = handle_any

    def answer(self, status: int, body: bytes, *, signed: bool = True, location: str = "") -> None:
        fault = self.provider.fault
        body = b"" if self.command == "HEAD" else body
        over = self.provider.compact(body) if fault == "signs_reserialised" else body
        timestamp, nonce = str(int(time.time())), f"mine-{uuid.uuid4().hex}"
        headers = {
            "Content-Type": "application/json",
            "Cache-Control": "max-age=60" if fault == "cacheable" else "no-store, no-transform",
        }
        if fault == "compresses" and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        if location:
            headers["Location"] = location
        if signed:
            headers |= {
                "X-Agent-Key-Id": KEY_ID,
                "X-Agent-Timestamp": timestamp,
                "X-Agent-Nonce": "mine-always" if fault == "one_nonce" else nonce,
                "X-Agent-Signature": "",
            }
            headers["X-Agent-Signature"] = tag(self.command, self.path, timestamp, headers["X-Agent-Nonce"], over)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


TURNS = ("conversation_turn",)
BOTH = ("conversation_turn", "task")


@pytest.fixture
def start_provider() -> Iterator[Callable[..., str]]:
    """Start a provider with a fault, or none; returns its base URL."""
    servers: list[tuple[ThreadingHTTPServer, Provider]] = []

    def start(fault: str = "", wire_protocol: str = "finch_v2", modes: tuple[str, ...] = TURNS) -> str:
        provider = Provider(fault, wire_protocol, modes)
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("SeededHandler", (Handler,), {"provider": provider}))
        servers.append((server, provider))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, provider in servers:
        provider.desk.close()
        server.shutdown()
        server.server_close()


@pytest.fixture
def start_bench(start_provider: Callable[..., str]) -> Callable[..., Bench]:
    """Return a bench before a provider with a fault, or none."""

    def start(
        fault: str = "",
        wire_protocol: Any = "finch_v2",
        modes: tuple[str, ...] = TURNS,
        receiver: Receiver | None = None,
    ) -> Bench:
        endpoint = Endpoint("seeded", wire_protocol, Credential(KEY_ID, SECRET), MOUNT)
        platform = Platform(endpoint, SocketLine(start_provider(fault, wire_protocol, modes)))
        return Bench(
            platform,
            10,
            MAX_BODY_BYTES,
            modes,
            receiver,
            patience=Patience(max_poll_after_s=0.2, hurry_s=0.6, late_s=0.5),
        )

    return start


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Finch's receiver for the provider's callbacks."""
    key = CallbackKey(Credential(KEY_ID, CALLBACK_SECRET), Credential(KEY_ID, SECRET))
    async with Receiver([key]) as listening:
        yield listening


def displayed_secret() -> str:
    """Return the provider's secret as Finch displays it."""
    return base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode()
