"""What a call to another HTTP server comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureKind = Literal["connect", "forbidden", "timeout", "protocol", "too_large", "dropped"]
KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept: less than the five seconds after which common servers close theirs."""

FRAMING = frozenset({"content-length", "transfer-encoding"})
"""The headers that only a client itself may set."""


class HttpFailed(Exception):
    """A call got no usable answer.

    `sent` says whether any of the request may have reached the peer: only when it is False may a call that
    must not happen twice be made again. `detail` holds nothing of the URL's query, the headers or the body.
    """

    def __init__(self, kind: FailureKind, *, sent: bool, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.sent = sent
        self.detail = detail


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A peer's answer: header names in lower case, the body as it came over the wire, never decoded."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpHead:
    """A peer's answer without its body: header names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Sending:
    """Whether the first byte of a request has left, or may have."""

    sent: bool = False
