"""The signature both sides make over a message (wire 1.1 to 1.5, 1.9), as pure functions.

Used in this order by the door (wire 1.6): `read_claim`, `check_skew`, then, once the body is there,
`check_signature`.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Iterable
from hashlib import sha256

import msgspec

MAX_SKEW_S = 300
NONCE_MEMORY_S = MAX_SKEW_S + 1
"""How long past its timestamp a consumed nonce is remembered, in seconds (wire 1.7)."""

OWN_NONCE_PREFIX = "fgw-"
"""Marks every nonce this gateway issues, so that a signed answer cannot come back as a request (wire 1.9)."""

_KEY_ID, _TIMESTAMP, _NONCE, _SIGNATURE = (
    b"x-platform-key-id",
    b"x-platform-timestamp",
    b"x-platform-nonce",
    b"x-platform-signature",
)
_CLAIM_HEADERS = frozenset({_KEY_ID, _TIMESTAMP, _NONCE, _SIGNATURE})
_TIMESTAMP_FORM = re.compile(rb"[1-9][0-9]{0,11}|0")
_VISIBLE_FORM = re.compile(rb"[!-~]{1,256}")
_SIGNATURE_FORM = re.compile(rb"v1=[0-9a-f]{64}")
_EMPTY_BODY_HASH = sha256(b"").hexdigest().encode()


class Unverified(Exception):
    """A message does not prove who sent it; `reason` names the failed step, for the log only."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SigningKey:
    """An HMAC-SHA256 key with its pads worked out once."""

    __slots__ = ("_mac",)

    def __init__(self, secret: bytes) -> None:
        self._mac = hmac.new(secret, digestmod=sha256)

    def sign(self, canonical: bytes) -> bytes:
        """Return `v1=` and the lowercase hex HMAC-SHA256 of a canonical string (wire 1.1)."""
        mac = self._mac.copy()
        mac.update(canonical)
        return b"v1=" + mac.hexdigest().encode()

    def fingerprint(self) -> str:
        """Return 16 hex digits that tell two keys apart and give neither away."""
        mac = self._mac.copy()
        mac.update(b"finch-gateway key fingerprint")
        return mac.hexdigest()[:16]

    def __repr__(self) -> str:
        return "SigningKey(…)"


class Claim(msgspec.Struct, frozen=True):
    """What a request's four `X-Platform-*` headers say, well-formed and not yet proven."""

    key_id: str
    timestamp: int
    nonce: str
    signature: bytes


def canonical(method: bytes, target: bytes, timestamp: bytes, nonce: bytes, body: bytes) -> bytes:
    """Return the five-line string that is signed (wire 1.1); `target` is used byte for byte (wire 1.2)."""
    body_hash = sha256(body).hexdigest().encode() if body else _EMPTY_BODY_HASH
    return b"\n".join((method, target, timestamp, nonce, body_hash))


def read_claim(headers: Iterable[tuple[bytes, bytes]]) -> Claim:
    """Read the four headers, each present exactly once and of its form (wire 1.4, 1.5, 1.9).

    `headers` are pairs of a lowercase name and a raw value. Raises `Unverified`.
    """
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _CLAIM_HEADERS:
            if name in found:
                raise Unverified("header_repeated")
            found[name] = value.strip(b" \t")
    if len(found) != len(_CLAIM_HEADERS):
        raise Unverified("header_missing")
    key_id, timestamp, nonce, signature = found[_KEY_ID], found[_TIMESTAMP], found[_NONCE], found[_SIGNATURE]
    if not _VISIBLE_FORM.fullmatch(key_id):
        raise Unverified("key_id_malformed")
    if not _TIMESTAMP_FORM.fullmatch(timestamp):
        raise Unverified("timestamp_malformed")
    if not _VISIBLE_FORM.fullmatch(nonce):
        raise Unverified("nonce_malformed")
    if not _SIGNATURE_FORM.fullmatch(signature):
        raise Unverified("signature_malformed")
    if nonce.startswith(OWN_NONCE_PREFIX.encode()):
        raise Unverified("nonce_is_ours")
    return Claim(key_id.decode(), int(timestamp), nonce.decode(), signature)


def check_skew(claim: Claim, now: float) -> None:
    """Raise `Unverified` when the claim's time is over 300 whole seconds away from `now`, either way (wire 1.4)."""
    if abs(int(now) - claim.timestamp) > MAX_SKEW_S:
        raise Unverified("skew")


def check_signature(key: SigningKey, claim: Claim, method: bytes, target: bytes, body: bytes) -> None:
    """Raise `Unverified` unless the claim's signature is `key`'s over exactly these bytes (wire 1.1, 1.3)."""
    signed = canonical(method, target, str(claim.timestamp).encode(), claim.nonce.encode(), body)
    if not hmac.compare_digest(key.sign(signed), claim.signature):
        raise Unverified("signature")


def issue_nonce() -> str:
    """Return a new nonce of our own form, with 128 bits from the operating system (wire 1.9)."""
    return OWN_NONCE_PREFIX + os.urandom(16).hex()


def answer_headers(
    key: SigningKey, key_id: str, method: bytes, target: bytes, body: bytes, *, now: float, nonce: str
) -> list[tuple[bytes, bytes]]:
    """Return the four `X-Agent-*` headers that sign `body` as the answer to `method` and `target` (wire 2.1)."""
    timestamp, nonce_bytes = str(int(now)).encode(), nonce.encode()
    return [
        (b"x-agent-key-id", key_id.encode()),
        (b"x-agent-timestamp", timestamp),
        (b"x-agent-nonce", nonce_bytes),
        (b"x-agent-signature", key.sign(canonical(method, target, timestamp, nonce_bytes, body))),
    ]
