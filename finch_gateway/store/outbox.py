"""What a store promises for callbacks: each event leaves in order and until it was taken or is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event whose delivery the caller has claimed under `op`; `attempts` were made before this one.

    `key_id` is the dispatching revision's, `created_at` the instant the event was written.
    """

    task_id: str
    sequence: int
    op: str
    listing: str
    key_id: str
    body: bytes
    url: str
    callback_key_id: str
    host: str
    attempts: int
    created_at: float


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver took the event: it is done with."""


@dataclass(frozen=True, slots=True)
class RetryAt:
    """The attempt failed; the next one is due at the instant `at`."""

    at: float


@dataclass(frozen=True, slots=True)
class Dead:
    """No further attempt by itself; kept for the operator with `reason`."""

    reason: str


DeliveryEnd: TypeAlias = Delivered | RetryAt | Dead


class Outbox(Protocol):
    """Used by the delivery of callbacks."""

    async def due_hosts(self, now: float) -> Sequence[str]:
        """Return the hosts that have an event due and not being delivered."""

    async def claim_events(self, host: str, op: str, claim_s: float, limit: int, now: float) -> Sequence[Delivery]:
        """Claim up to `limit` due events of a host for `claim_s` seconds, longest due first.

        Only a task's oldest live event can be claimed, and only while none of the task is: so a task's events
        leave in order, one at a time. Dead ones hold nothing back. A claim that ended without `settle_event`
        makes the event due again, its attempts unchanged.
        """

    async def settle_event(self, delivery: Delivery, end: DeliveryEnd, now: float) -> bool:
        """Write how a claimed delivery ended; False when `op` no longer has the claim.

        `Delivered` and `Dead` let the task's next event go; `RetryAt` counts an attempt. A replaceable event that
        a newer one would replace (see `Tasks.commit_task`) is dropped instead of tried again, and a replaceable
        newer one goes on with its attempts and due time.
        """
