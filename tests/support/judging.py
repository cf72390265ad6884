"""An opinion of its own on requests: what their bytes prove, and whether their body may be run.

Written from the wire contract alone and shared with nothing in the product; it reads more narrowly than any
HTTP parser, so that whatever runs must have been beyond doubt.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from .finch import body_hash, mac

_REQUEST_LINE = re.compile(rb"([A-Za-z]+) (/[!-~]*) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_INVOCATION_ID = {
    "finch_v2": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "agenton_v0": re.compile(r"ivk_[0-9a-f]{32}"),
}
_PROOF = (b"x-platform-key-id", b"x-platform-timestamp", b"x-platform-nonce", b"x-platform-signature")


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that can be read in one way only."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for found, value in self.headers if found == name]


def read_request(raw: bytes) -> Seen | None:
    """Return the request that `raw` begins with; None where it could be read in two ways or is not whole."""
    head, end, rest = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    request_line = _REQUEST_LINE.fullmatch(first)
    matches = [_HEADER.fullmatch(line) for line in lines]
    if not end or request_line is None or not all(matches):
        return None
    headers = tuple((match[1].lower(), match[2]) for match in matches if match)
    method, target = request_line.groups()
    seen = Seen(method, _as_signed(target), headers, b"")
    lengths, codings = seen.values(b"content-length"), seen.values(b"transfer-encoding")
    if len(lengths) + len(codings) > 1:
        return None
    body = _chunked(rest) if codings else _counted(rest, lengths[0] if lengths else b"0")
    return None if body is None else Seen(method, seen.target, headers, body)


def _as_signed(target: bytes) -> bytes:
    """A lone trailing `?` is no part of what is signed (wire 1.2)."""
    return target[:-1] if target.endswith(b"?") and target.count(b"?") == 1 else target


def _counted(rest: bytes, length: bytes) -> bytes | None:
    if not length.isdigit() or len(rest) < int(length):
        return None
    return rest[: int(length)]


def _chunked(rest: bytes) -> bytes | None:
    body = b""
    while True:
        size, end, rest = rest.partition(b"\r\n")
        if not end or not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
            return None
        length = int(size, 16)
        if length == 0:
            return body
        if len(rest) < length + 2 or rest[length : length + 2] != b"\r\n":
            return None
        body, rest = body + rest[:length], rest[length + 2 :]


def proves(seen: Seen, secrets: Mapping[bytes, bytes], now: float) -> bool:
    """Say whether a request's four headers prove it, at `now` (wire 1.1 to 1.9)."""
    found = [seen.values(name) for name in _PROOF]
    if any(len(values) != 1 for values in found) or b"#" in seen.target:
        return False
    key_id, at, nonce, signature = (values[0] for values in found)
    if key_id not in secrets or not re.fullmatch(rb"0|[1-9][0-9]{0,11}", at) or abs(int(at) - now) > 301:
        return False
    if not re.fullmatch(rb"[!-~]{1,256}", nonce) or nonce.startswith(b"fgw-"):
        return False
    if seen.body and seen.method == b"GET":
        return False
    return hmac.compare_digest(
        mac(secrets[key_id], seen.method, seen.target, at, nonce, body_hash(seen.body)), signature
    )


def may_run(body: bytes, wire_protocol: str) -> dict[str, Any] | None:
    """Return the envelope of a body that an agent may be given, None for any other (wire 2.3, 4)."""
    try:
        text = body.decode("utf-8")
        envelope = json.loads(text, object_pairs_hook=_unrepeated, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(envelope, dict) or envelope.get("protocol_version") != "2.0" or depth(envelope) > 64:
        return None
    invocation_id, asked = envelope.get("invocation_id"), envelope.get("input")
    mode = envelope if wire_protocol == "finch_v2" else envelope.get("agent")
    if not isinstance(invocation_id, str) or not _INVOCATION_ID[wire_protocol].fullmatch(invocation_id):
        return None
    if not isinstance(mode, dict) or mode.get("interaction_mode") != "conversation_turn":
        return None
    return envelope if isinstance(asked, dict) and _are_parts(asked.get("content", [{"type": "x"}])) else None


def _are_parts(content: object) -> bool:
    if not isinstance(content, list) or not 1 <= len(content) <= 100:
        return False
    return all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content)


def depth(value: object) -> int:
    """Return how deeply a JSON value is nested, a scalar counting 0."""
    deepest, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        deepest += 1
        level = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
    return deepest


def fingerprint(envelope: object) -> str:
    """Return a hash of an envelope by value, as the recording agent makes it: of what an agent sees of it."""
    seen = deepcopy(envelope)
    if isinstance(seen, dict):
        seen.pop("callback", None)
        uploads = seen.get("artifact_uploads")
        for slot in uploads if isinstance(uploads, list) else ():
            if isinstance(slot, dict):
                slot.pop("put_url", None)
    return sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a repeated key")
    return dict(pairs)


def _refuse(name: str) -> None:
    raise ValueError(name)
