"""What the door asks of a store: to consume nonces, and to say that it can be written to."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Nonce(msgspec.Struct, frozen=True):
    """A verified nonce that is not consumed yet; remembered until `expires_at` (wire 1.7). Scope: `key_id`."""

    key_id: str
    value: str
    expires_at: float
    op: str


class Admission(Protocol):
    """Used by the door."""

    async def spend(self, nonce: Nonce, now: float) -> bool:
        """Consume a nonce; False when it was consumed before by another operation."""

    async def probe(self) -> None:
        """Return when the store can be written to; raise `StoreUnavailable` otherwise."""
