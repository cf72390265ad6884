"""The values that pass between the door and the endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from ..errors import Refusal
from ..listing import Listing, Revision
from ..store import Nonce
from ..wire import replies

Headers: TypeAlias = "list[tuple[bytes, bytes]]"


class NonceTicket:
    """A verified nonce that somebody must spend exactly once: whoever takes it, or the door (wire 1.7)."""

    __slots__ = ("_nonce", "taken")

    def __init__(self, nonce: Nonce) -> None:
        self._nonce = nonce
        self.taken = False

    def take(self) -> Nonce:
        """Hand the nonce to a store call; the door will not spend it any more."""
        if self.taken:
            raise AssertionError("a nonce is spent once")
        self.taken = True
        return self._nonce


class Call(msgspec.Struct, frozen=True):
    """A request whose signature holds. `path` is what follows the mount, byte for byte as it came."""

    listing: Listing
    revision: Revision
    method: bytes
    path: bytes
    body: bytes
    nonce: NonceTicket
    trace_id: str
    idempotency_key: str


class Answer(msgspec.Struct, frozen=True):
    """What goes back, before it is signed."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


Endpoint: TypeAlias = Callable[[Call], Awaitable[Answer]]


class Endpoints(Protocol):
    """A listing's endpoints by raw path: None for a path it does not have, else an endpoint per method."""

    def find(self, path: bytes) -> Mapping[bytes, Endpoint] | None: ...


def refused(refusal: Refusal) -> Answer:
    """Return the answer that says a refusal: the one place where an error becomes a response (wire 2.3)."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if refusal.retry_after_s:
        headers = ((b"retry-after", str(refusal.retry_after_s).encode()),)
    return Answer(refusal.status, replies.error_body(refusal.code, refusal.message), headers)
