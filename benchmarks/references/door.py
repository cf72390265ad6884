"""What B, C, D and S share: verify, sign, and the reply of 424 bytes. The wire functions are the gateway's own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from benchmarks.traffic import KEY_ID, SECRET, TARGET, TEXT
from finch_gateway.wire.signing import (
    Claim,
    SigningKey,
    Unverified,
    answer_headers,
    check_signature,
    check_skew,
    issue_nonce,
    read_claim,
)

KEY = SigningKey(SECRET)
REFUSED = b'{"code":"auth_failed","message":"The request could not be authenticated."}'
CONFLICT = b'{"code":"idempotency_conflict","message":"This identity was already used."}'
_REPLY = (
    b'{"protocol_version":"2.0","invocation_id":"%s","status":"completed",'
    b'"message":{"role":"agent","content":[{"type":"text","text":"' + TEXT.encode() + b'"}]},'
    b'"artifacts":[],"completed_at":"2026-08-24T10:30:00Z"}'
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and the bytes that go with it."""

    status: int
    body: bytes


def verify(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Claim:
    """Return the proven claim; raise `Unverified`."""
    claim = read_claim(headers)
    if claim.key_id != KEY_ID:
        raise Unverified("key_unknown")
    check_skew(claim, time.time())
    check_signature(KEY, claim, b"POST", TARGET, body)
    return claim


def reply(invocation_id: str) -> bytes:
    """Return a completed turn of 424 bytes."""
    return _REPLY % invocation_id.encode()


def signature(body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the four headers that sign an answer."""
    return answer_headers(KEY, KEY_ID, b"POST", TARGET, body, now=time.time(), nonce=issue_nonce())


def signed_response(answer: Answer) -> Response:
    """Return a signed answer as a Starlette response."""
    response = Response(answer.body, status_code=answer.status, media_type="application/json")
    response.raw_headers += signature(answer.body)
    return response


async def verified_body(request: Request) -> tuple[Claim, bytes]:
    """Return a request's proven claim and body; raise `Unverified`."""
    body = await request.body()
    return verify(request.headers.raw, body), body
