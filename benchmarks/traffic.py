"""The requests that are sent: pre-signed turns and tasks of 1.1 KB, and the same text for the A2A reference."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence

from finch_gateway.wire.signing import SigningKey, canonical

KEY_ID = "finch.agenton.00000000-0000-4000-8000-0000000be7c4"
SECRET = bytes(range(32))
DISPLAYED_SECRET = base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode()
TARGET = b"/finch/v2/invoke"
TEXT = "Summarise the attached quarterly report in three sentences: what changed, why, and what to do next. ".ljust(
    204, "."
)
"""What the turn says; echoed, it makes a reply of about 424 bytes."""

CALLBACK_TARGET = b"/api/callbacks/agenton?task=7f%2F1"

_OPENING = (
    b'{"protocol_version":"2.0","invocation_id":"%(invocation)s","dispatch_id":"%(dispatch)s",'
    b'"service_version_id":"0b6f3f0e-5d3c-4a44-9a55-0f1b8f3f6a01","offer_id":"5f0c2a10-6a77-4c55-8a0e-6f0a6f0b7c02",'
    b'"offer_revision":3,"interaction_mode":"%(mode)s","quantity":1,'
    b'"terms_hash":"0x2a6d1f6f0c2b4e8f9a1b3c5d7e9f00112233445566778899aabbccddeeff0011",'
    b'"limits":{"deadline_at":"2099-08-24T10:30:00.000Z"},'
)
_CLOSING = (
    b'"input":{"content":[{"type":"text","text":"' + TEXT.encode() + b'"}],"parameters":{}},"task_completed":false,'
    b'"output_contract":{"artifacts":{"min_items":0,"max_items":0,"allowed_media_types":[],'
    b'"max_bytes_per_asset":0,"max_total_bytes":0}},"artifact_uploads":[]}'
)
_TURN_BODY = (
    _OPENING + b'"conversation":{"conversation_id":"%(conversation)s","turn_id":"%(turn)s",'
    b'"context_mode":"platform_managed","messages":[]},' + _CLOSING
)
_TASK_BODY = (
    _OPENING + b'"callback":{"url":"http://127.0.0.1:%(port)d%(target)s","callback_key_id":"%(key_id)s"},' + _CLOSING
)
_HEAD = (
    b"POST " + TARGET + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Idempotency-Key: %(dispatch)s\r\nX-Platform-Key-Id: " + KEY_ID.encode() + b"\r\n"
    b"X-Platform-Timestamp: %(timestamp)s\r\nX-Platform-Nonce: %(nonce)s\r\n"
    b"X-Platform-Signature: %(signature)s\r\nContent-Length: %(length)d\r\n\r\n"
)
_A2A_BODY = (
    b'{"jsonrpc":"2.0","id":"%(invocation)s","method":"SendMessage","params":{"message":{"messageId":"%(turn)s",'
    b'"role":"ROLE_USER","parts":[{"text":"' + TEXT.encode() + b'"}]}}}'
)
_A2A_HEAD = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\n"
    b"Content-Length: %(length)d\r\n\r\n"
)

Maker = Callable[[int], list[bytes]]
"""Makes that many requests, each a whole HTTP message with identities of its own."""


def signed_turns(count: int) -> list[bytes]:
    """Return `count` P1 turns, signed now: they are good for 300 seconds."""
    return _signed(count, _TURN_BODY, {b"mode": b"conversation_turn"})


def signed_tasks(count: int, callback_port: int) -> list[bytes]:
    """Return `count` P2 dispatches, signed now, whose events go to that port of this machine."""
    fields = {b"mode": b"task", b"port": callback_port, b"target": CALLBACK_TARGET, b"key_id": KEY_ID.encode()}
    return _signed(count, _TASK_BODY, fields)


def a2a_messages(count: int) -> list[bytes]:
    """Return `count` unsigned A2A messages with the turns' text."""
    requests = []
    for _ in range(count):
        body = _A2A_BODY % _identities()
        requests.append(_A2A_HEAD % {b"length": len(body)} + body)
    return requests


def is_good_answer(request: bytes, answer: bytes) -> bool:
    """Whether an answer carries a good signature over its own bytes and belongs to that request (wire 2.1)."""
    asked = json.loads(request.partition(b"\r\n\r\n")[2])["invocation_id"]
    return is_signed(answer, TARGET) and json.loads(answer.partition(b"\r\n\r\n")[2])["invocation_id"] == asked


def is_signed(message: bytes, target: bytes) -> bool:
    """Whether an answer or a callback carries our agent's good signature over POST, the target and its body."""
    head, _, body = message.partition(b"\r\n\r\n")
    headers = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    signed = canonical(
        b"POST", target, headers.get(b"x-agent-timestamp", b""), headers.get(b"x-agent-nonce", b""), body
    )
    return headers.get(b"x-agent-key-id") == KEY_ID.encode() and (
        SigningKey(SECRET).sign(signed) == headers.get(b"x-agent-signature")
    )


def sample_body() -> bytes:
    """Return the body of one turn."""
    return _TURN_BODY % {**_identities(), b"mode": b"conversation_turn"}


def _signed(count: int, body: bytes, fields: Mapping[bytes, bytes | int]) -> list[bytes]:
    key, timestamp = SigningKey(SECRET), str(int(time.time())).encode()
    return [_signed_request(key, timestamp, body, fields) for _ in range(count)]


def _signed_request(key: SigningKey, timestamp: bytes, form: bytes, given: Mapping[bytes, bytes | int]) -> bytes:
    fields: dict[bytes, bytes | int] = {**given, **_identities(), b"timestamp": timestamp}
    body = form % fields
    nonce = os.urandom(16).hex().encode()
    fields |= {
        b"nonce": nonce,
        b"signature": key.sign(canonical(b"POST", TARGET, timestamp, nonce, body)),
        b"length": len(body),
    }
    return _HEAD % fields + body


def _identities() -> dict[bytes, bytes]:
    digits = os.urandom(64).hex().encode()
    names: Sequence[bytes] = (b"invocation", b"dispatch", b"conversation", b"turn")
    return {name: _uuid(digits[at * 32 : at * 32 + 32]) for at, name in enumerate(names)}


def _uuid(digits: bytes) -> bytes:
    return b"-".join((digits[:8], digits[8:12], b"4" + digits[13:16], b"a" + digits[17:20], digits[20:]))
