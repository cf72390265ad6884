"""Finch's own signer, written from the wire contract alone so that it can prove the gateway's wrong (wire 1)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Literal

from .exchange import Answer, Headers, Request, values_of

WireProtocol = Literal["finch_v2", "agenton_v0"]

MAX_SKEW_S = 300
PLATFORM_HEADERS = ("X-Platform-Key-Id", "X-Platform-Timestamp", "X-Platform-Nonce", "X-Platform-Signature")
AGENT_HEADERS = ("X-Agent-Key-Id", "X-Agent-Timestamp", "X-Agent-Nonce", "X-Agent-Signature")

_TO_STANDARD_ALPHABET = str.maketrans("-_", "+/")


class SecretUnusable(ValueError):
    """A displayed secret is not one of its wire protocol; the message never repeats it."""


class Distrust(Exception):
    """An answer or a callback does not prove that the provider made it for this very method and target."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A key id and the secret bytes behind it, as Finch's side holds them."""

    key_id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Credential({self.key_id!r})"


def secret_bytes(displayed: str, wire_protocol: WireProtocol) -> bytes:
    """Return the key bytes of a displayed secret (wire 1.10); raise `SecretUnusable`."""
    if wire_protocol == "agenton_v0":
        if not displayed:
            raise SecretUnusable("the secret is empty")
        return displayed.encode("utf-8")
    text = displayed.strip().rstrip("=").translate(_TO_STANDARD_ALPHABET)
    try:
        # 43 digits carry 258 bits: one '=' makes them whole, any other length is no 32 bytes.
        key = base64.b64decode(text + "=", validate=True)
    except (binascii.Error, ValueError) as error:
        raise SecretUnusable("the secret is not Base64URL of 32 bytes") from error
    if len(key) != 32 or base64.b64encode(key).decode().rstrip("=") != text:
        raise SecretUnusable("the secret is not the canonical Base64URL of exactly 32 bytes")
    return key


def canonical_string(method: str, target: str, timestamp: str, nonce: str, body: bytes) -> str:
    """Return the five lines that both sides sign (wire 1.1)."""
    return f"{method}\n{target}\n{timestamp}\n{nonce}\n{hashlib.sha256(body).hexdigest()}"


def signature_of(secret: bytes, canonical: str) -> str:
    """Return `v1=` and the lowercase hex HMAC-SHA256 of a canonical string (wire 1.1)."""
    return "v1=" + hmac.digest(secret, canonical.encode("latin-1"), "sha256").hex()


def sign_request(
    credential: Credential, method: str, target: str, body: bytes, *, timestamp: int, nonce: str
) -> Headers:
    """Return the four `X-Platform-*` headers of a request."""
    signed = signature_of(credential.secret, canonical_string(method, target, str(timestamp), nonce, body))
    return tuple(zip(PLATFORM_HEADERS, (credential.key_id, str(timestamp), nonce, signed), strict=True))


def verify_answer(credential: Credential, method: str, target: str, answer: Answer, *, now: float) -> str:
    """Return the nonce of an answer that `credential` signed for this method and target (wire 2.1).

    Raises `Distrust`, and nothing else, naming the failed step.
    """
    return _proven_nonce(credential, (method, target), answer.headers, answer.body, now)


def verify_callback(credential: Credential, request: Request, *, now: float) -> str:
    """Return the nonce of a callback that `credential` signed for exactly this request (wire 7.1).

    Raises `Distrust`, and nothing else, naming the failed step.
    """
    return _proven_nonce(credential, (request.method, request.target), request.headers, request.body, now)


def _proven_nonce(credential: Credential, line: tuple[str, str], headers: Headers, body: bytes, now: float) -> str:
    key_id, timestamp, nonce, signature = (_the_one(headers, name) for name in AGENT_HEADERS)
    if key_id != credential.key_id:
        raise Distrust("X-Agent-Key-Id names another key")
    if not re.fullmatch(r"[1-9][0-9]{0,11}", timestamp):
        raise Distrust("X-Agent-Timestamp is not a plain number of seconds")
    if abs(int(now) - int(timestamp)) > MAX_SKEW_S:
        raise Distrust(f"X-Agent-Timestamp is {abs(int(now) - int(timestamp))} s away from this clock")
    if not re.fullmatch(r"[!-~]{1,256}", nonce):
        raise Distrust("X-Agent-Nonce is not 1 to 256 visible ASCII characters")
    if not re.fullmatch(r"v1=[0-9a-f]{64}", signature):
        raise Distrust("X-Agent-Signature is not v1= and 64 lowercase hex digits")
    expected = signature_of(credential.secret, canonical_string(*line, timestamp, nonce, body))
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        raise Distrust("X-Agent-Signature is not over this method, target and these exact bytes")
    return nonce


def _the_one(headers: Headers, name: str) -> str:
    values = values_of(headers, name)
    if len(values) != 1:
        raise Distrust(f"unsigned: {name} is missing" if not values else f"{name} is there {len(values)} times")
    return values[0]
