"""The deliveries to one host: a client of their own and a few attempts at once, so that no host holds up another."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import StoreUnavailable
from ..store import Outbox, RetryAt
from .attempts import Attempts, CallbackClient, Claimed, Gate
from .schedule import Pace

LINGER_S = 4.0
"""How long a lane without work keeps its connections."""

CLAIM_MARGIN_S = 6.0
"""How much longer than an attempt may take its claim holds: for the rest of an answer, and for recording it."""

AHEAD = 4
"""How many times what a quick host gets at once is claimed for it, to be at hand while the store records ends."""

MAX_AWAY_PAUSE_S = 4.0
"""The longest pause between two looks at a store that does not answer."""


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How many attempts one host gets at once, how long each may take, how often the outbox is looked at."""

    at_once: int
    attempt_s: float
    poll_s: float


class Lane:
    """Claims a host's due events and attempts them until there have been none for a while, or it is retired.

    `began` is the instant at which the process began to deliver: what was written before is a backlog, which
    leaves at a measured pace.
    """

    def __init__(
        self,
        host: str,
        store: Outbox,
        attempts: Attempts,
        client: CallbackClient,
        limits: LaneLimits,
        clock: Callable[[], float],
        *,
        began: float,
    ) -> None:
        self._host = host
        self._store = store
        self._attempts = attempts
        self._client = client
        self._limits = limits
        self._clock = clock
        self._began = began
        self._pace: Pace | None = Pace(asyncio.get_running_loop().time())
        self._gate = Gate(limits.at_once)
        self._running: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._is_retired = False
        self._asked: tuple[str, float] | None = None
        self._away_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Say whether no attempt is under way."""
        return not self._running

    def nudge(self) -> None:
        """Look for due events now."""
        self._news.set()

    def retire(self) -> None:
        """Claim nothing more, and end with the attempts that are under way."""
        self._is_retired = True
        self._news.set()

    async def run(self) -> None:
        """Deliver until the lane is over; a cancelled lane cancels its attempts."""
        try:
            while await self._round():
                pass
        finally:
            for attempt in self._running:
                attempt.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            await self._client.close()

    async def _round(self) -> bool:
        """Start what may go and wait for news; False when the lane is over."""
        self._news.clear()
        wait_s = LINGER_S
        if not self._is_retired:
            try:
                wait_s = await self._start_due()
                self._away_s = 0.0
            except StoreUnavailable:
                wait_s = self._away_s = min(MAX_AWAY_PAUSE_S, max(self._limits.poll_s, self._away_s * 2))
        if self._is_retired and self.is_idle:
            return False
        try:
            async with asyncio.timeout(None if self._is_retired else wait_s):
                await self._news.wait()
        except TimeoutError:
            return wait_s != LINGER_S or not self.is_idle
        return True

    async def _start_due(self) -> float:
        """Claim and start what there is room for; return how long to wait when nothing else happens."""
        loop = asyncio.get_running_loop()
        room = self._limits.at_once * (AHEAD if self._gate.is_quick else 1) - len(self._running)
        if self._pace is not None:
            room = min(room, self._pace.allowed(loop.time()))
        if room <= 0:
            return LINGER_S if self._pace is None else max(0.01, self._pace.wait_s())
        found = await self._claim(room)
        for claimed in found:
            attempt = loop.create_task(self._attempt(claimed))
            self._running.add(attempt)
            attempt.add_done_callback(self._ended)
        return self._wait_after(found, room)

    async def _claim(self, room: int) -> Sequence[Claimed]:
        now = asyncio.get_running_loop().time()
        # Asked again after a lost answer, the store hands out the same claim, which began with the first asking.
        if self._asked is None or now > self._asked[1] + self._limits.attempt_s / 2:
            self._asked = uuid.uuid4().hex, now
        op, asked_at = self._asked
        claim_s = self._limits.attempt_s + CLAIM_MARGIN_S
        found = await self._store.claim_events(self._host, op, claim_s, room, self._clock())
        self._asked = None
        start_by, answer_by = asked_at + self._limits.attempt_s * 2 / 3, asked_at + self._limits.attempt_s
        return [Claimed(delivery, start_by, answer_by, asked_at + claim_s) for delivery in found]

    def _wait_after(self, found: Sequence[Claimed], room: int) -> float:
        if self._pace is None:
            return LINGER_S
        # Longest due first: one written since the process began says that the backlog is through.
        if len(found) < room or any(claimed.delivery.created_at >= self._began for claimed in found):
            self._pace = None
            return LINGER_S if len(found) < room else 0.0
        self._pace.let_through(len(found))
        return max(0.01, self._pace.wait_s())

    async def _attempt(self, claimed: Claimed) -> None:
        end = await self._attempts.make(self._client, claimed, self._gate)
        if isinstance(end, RetryAt):
            # The next look at the outbox may come too late for the first retries.
            wait_s = end.at - self._clock()
            if wait_s < 2 * self._limits.poll_s:
                asyncio.get_running_loop().call_later(max(0.0, wait_s), self.nudge)

    def _ended(self, attempt: asyncio.Task[None]) -> None:
        self._running.discard(attempt)
        self._news.set()
