"""One attempt to deliver one event: signed, sent, judged, recorded, told (wire 7)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from ..errors import StoreUnavailable
from ..http import HttpFailed, HttpHead
from ..observe import Field, Log, blame
from ..store import Dead, Delivered, Delivery, DeliveryEnd, Outbox, RetryAt
from ..wire.destinations import Destination, DestinationRefused, OutboundRules, read_destination
from ..wire.signing import SigningKey, answer_headers, issue_nonce
from .schedule import Impossible, Outcome, Schedule, Status, Unanswered, decide, kind_of, only_value

MAX_REMEMBERED = 10_000
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 2.0
QUICK_S = 0.25
"""The longest answering time of a host for which events are claimed ahead."""


@dataclass(frozen=True, slots=True)
class CallbackSigner:
    """The callback secret under the key id that a callback names (wire 7.1)."""

    key_id: str
    key: SigningKey


SignFor = Callable[[Delivery], CallbackSigner | None]
"""Finds an event's signer; None where no revision has a callback secret for it."""


class CallbackClient(Protocol):
    """What an attempt needs of `http.GuardedClient`."""

    async def send(
        self,
        method: str,
        destination: Destination,
        *,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        timeout_s: float,
        max_bytes: int,
    ) -> HttpHead: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery and what its claim leaves time for; instants of the event loop's clock.

    Not begun by `start_by`, it is left to the next claim. The receiver's status must be there by `answer_by`. The
    claim holds until `held_until`; past it somebody else may deliver the event.
    """

    delivery: Delivery
    start_by: float
    answer_by: float
    held_until: float


class Gate:
    """Lets a host's attempts through, a few at once, and notes whether the host answers quickly."""

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self.is_quick = False

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Wait for a place, and keep it."""
        loop = asyncio.get_running_loop()
        async with self._slots:
            began = loop.time()
            try:
                yield
            finally:
                self.is_quick = loop.time() - began < QUICK_S


class Attempts:
    """Makes attempts; counts each event's refusals, which the store does not tell from other failures."""

    def __init__(
        self,
        store: Outbox,
        sign_for: SignFor,
        rules: OutboundRules,
        log: Log,
        clock: Callable[[], float],
        *,
        schedule: Schedule,
        max_answer_bytes: int,
        chance: random.Random,
    ) -> None:
        self._store = store
        self._sign_for = sign_for
        self._rules = rules
        self._log = log
        self._clock = clock
        self._schedule = schedule
        self._max_answer_bytes = max_answer_bytes
        self._chance = chance
        self._refusals: dict[tuple[str, int], int] = {}

    async def make(self, client: CallbackClient, claimed: Claimed, gate: Gate) -> DeliveryEnd | None:
        """Deliver an event once and record how it went; None when the gate took longer than its claim allows."""
        async with gate.passing():
            now = asyncio.get_running_loop().time()
            if now >= claimed.start_by:
                return None
            try:
                outcome = await self._outcome(client, claimed.delivery, claimed.answer_by - now)
            except Exception as error:  # a fault of ours must cost one attempt, not the event or its host
                self._log.error("callback.failed", **_facts(claimed.delivery), **blame(error))
                outcome = Unanswered("fault")
        end = self._judge(claimed.delivery, outcome)
        self._tell(claimed.delivery, outcome, end)
        await self._settle(claimed, end)
        return end

    async def _outcome(self, client: CallbackClient, delivery: Delivery, timeout_s: float) -> Outcome:
        signer = self._sign_for(delivery)
        if signer is None:
            return Impossible("no credential revision has a callback secret for it")
        try:
            destination = read_destination(delivery.url, self._rules)
        except DestinationRefused as error:
            return Impossible(f"the callback URL {error.reason}")
        # Over the same body, each attempt has its own timestamp and nonce (wire 7.5).
        signature = answer_headers(
            signer.key,
            signer.key_id,
            b"POST",
            destination.target,
            delivery.body,
            now=self._clock(),
            nonce=issue_nonce(),
        )
        try:
            head = await client.send(
                "POST",
                destination,
                headers=[*signature, (b"content-type", b"application/json")],
                body=delivery.body,
                timeout_s=timeout_s,
                max_bytes=self._max_answer_bytes,
            )
        except HttpFailed as error:
            return _unanswered(error)
        return Status(head.status, only_value(head.headers, "retry-after"))

    def _judge(self, delivery: Delivery, outcome: Outcome) -> DeliveryEnd:
        event = (delivery.task_id, delivery.sequence)
        refusals = self._refusals.pop(event, 0) + (kind_of(outcome) == "refused")
        end = decide(outcome, delivery, refusals, self._schedule, now=self._clock(), chance=self._chance)
        if isinstance(end, RetryAt) and refusals:
            if len(self._refusals) >= MAX_REMEMBERED:
                self._refusals.clear()
            self._refusals[event] = refusals
        return end

    def _tell(self, delivery: Delivery, outcome: Outcome, end: DeliveryEnd) -> None:
        fields = _facts(delivery)
        if isinstance(outcome, Status):
            fields["status"] = outcome.status
        elif isinstance(outcome, Unanswered):
            fields["failure"] = outcome.why
        match end:
            case Delivered():
                self._log.info("callback.delivered", **fields)
            case RetryAt(at):
                self._log.warning("callback.retried", **fields, retry_in_s=round(at - self._clock(), 3))
            case Dead(reason):
                self._log.error("callback.dead", **fields, reason=reason)

    async def _settle(self, claimed: Claimed, end: DeliveryEnd) -> None:
        """Record the end while the claim holds; past it the event is due again, and the receiver knows its id."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._store.settle_event(claimed.delivery, end, self._clock())
                return
            except StoreUnavailable as error:
                if loop.time() + pause_s >= claimed.held_until:
                    self._log.warning("callback.unrecorded", **_facts(claimed.delivery), **blame(error))
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, pause_s * 2)


def _unanswered(error: HttpFailed) -> Outcome:
    if error.kind == "forbidden":
        return Impossible(error.detail)
    if error.kind == "protocol" and not error.sent:
        return Impossible(error.detail)
    return Unanswered(f"{error.kind}: {error.detail}" if error.detail else error.kind)


def _facts(delivery: Delivery) -> dict[str, Field]:
    return {
        "merchant_task_id": delivery.task_id,
        "event_id": f"evt-{delivery.task_id}-{delivery.sequence}",
        "sequence": delivery.sequence,
        "listing": delivery.listing,
        "key_id": delivery.callback_key_id,
        "host": delivery.host,
        "attempts": delivery.attempts + 1,
    }
