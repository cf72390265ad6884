"""Delivers the outbox: every event in order, each host for itself, until it is taken or given up (wire 7.4)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import StoreUnavailable
from ..http import Dialler, GuardedClient
from ..observe import Log, blame
from ..store import Outbox
from ..wire.destinations import OutboundRules
from .attempts import Attempts, CallbackClient, CallbackSigner, SignFor
from .lane import MAX_AWAY_PAUSE_S, Lane, LaneLimits
from .schedule import Schedule

__all__ = ["CallbackClient", "CallbackDelivery", "CallbackSettings", "CallbackSigner", "Schedule", "SignFor"]

WAKE_SPACING_S = 0.01
"""The least time between two looks at the outbox, however often it is woken."""

DRAIN_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class CallbackSettings:
    """The limits of delivery; times in seconds.

    `attempt_s` bounds an attempt up to the receiver's status, `per_host` the attempts to one host at once,
    `max_hosts` the hosts that are served at once, `max_answer_bytes` what is read of an answer's body.
    """

    schedule: Schedule = field(default_factory=Schedule)
    attempt_s: float = 15.0
    per_host: int = 4
    max_hosts: int = 128
    poll_s: float = 0.5
    max_answer_bytes: int = 16 * 1024


class CallbackDelivery:
    """Looks at the outbox every `poll_s` and when woken, and gives each host with due events a lane of its own.

    Any number of processes may deliver one outbox: an event is attempted by whoever has claimed it.
    """

    def __init__(
        self,
        store: Outbox,
        sign_for: SignFor,
        rules: OutboundRules,
        settings: CallbackSettings,
        log: Log,
        clock: Callable[[], float] = time.time,
        *,
        new_client: Callable[[], CallbackClient] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._log = log
        self._clock = clock
        self._new_client = new_client or _guarded(rules, settings.per_host)
        self._attempts = Attempts(
            store,
            sign_for,
            rules,
            log,
            clock,
            schedule=settings.schedule,
            max_answer_bytes=settings.max_answer_bytes,
            chance=chance or random.SystemRandom(),
        )
        self._limits = LaneLimits(settings.per_host, settings.attempt_s, settings.poll_s)
        self._began = 0.0
        self._lanes: dict[str, tuple[Lane, asyncio.Task[None]]] = {}
        self._news = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to deliver; the store must be open."""
        self._began = self._clock()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def wake(self) -> None:
        """Look at the outbox now: an event was just written."""
        self._news.set()

    async def drain(self, grace_s: float) -> None:
        """Deliver what is due, then begin no attempt any more and let those under way end, each for half the time."""
        until = asyncio.get_running_loop().time() + grace_s
        await self._empty(until - grace_s / 2)
        await self._stop_watching()
        running = [task for _, task in self._lanes.values()]
        for lane, _ in self._lanes.values():
            lane.retire()
        if running:
            await asyncio.wait(running, timeout=max(0.0, until - asyncio.get_running_loop().time()))

    async def close(self) -> None:
        """Stop; what an attempt under way leaves open is due again once its claim has ended."""
        await self._stop_watching()
        running = [task for _, task in self._lanes.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _empty(self, until: float) -> None:
        while asyncio.get_running_loop().time() < until:
            try:
                hosts = await self._store.due_hosts(self._clock())
            except StoreUnavailable:
                return
            self._serve(hosts)
            if not hosts and all(lane.is_idle for lane, _ in self._lanes.values()):
                return
            await asyncio.sleep(DRAIN_LOOK_S)

    async def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None

    async def _watch(self) -> None:
        away_s = 0.0
        while True:
            self._news.clear()
            try:
                self._serve(await self._store.due_hosts(self._clock()))
            except Exception as error:  # whatever it is, delivery goes on once it has passed
                if not away_s or not isinstance(error, StoreUnavailable):
                    self._log.warning("callbacks.halted", **blame(error))
                away_s = min(MAX_AWAY_PAUSE_S, max(self._settings.poll_s, away_s * 2))
                await asyncio.sleep(away_s)
                continue
            away_s = 0.0
            await asyncio.sleep(WAKE_SPACING_S)
            try:
                async with asyncio.timeout(self._settings.poll_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _serve(self, hosts: Sequence[str]) -> None:
        """Nudge the lanes of hosts that have one; open lanes for the others, as far as there is room."""
        waiting = []
        for host in hosts:
            if host in self._lanes:
                self._lanes[host][0].nudge()
            else:
                waiting.append(host)
        room = self._settings.max_hosts - len(self._lanes)
        # Who has to wait is left to chance, so that nobody always does.
        if len(waiting) > room:
            random.shuffle(waiting)
            idle = [lane for host, (lane, _) in self._lanes.items() if lane.is_idle and host not in hosts]
            for lane in idle[: len(waiting) - room]:
                lane.retire()
        for host in waiting[:room]:
            self._open(host)

    def _open(self, host: str) -> None:
        lane = Lane(host, self._store, self._attempts, self._new_client(), self._limits, self._clock, began=self._began)
        task = asyncio.get_running_loop().create_task(lane.run())
        self._lanes[host] = (lane, task)
        task.add_done_callback(lambda done: self._closed(host, done))

    def _closed(self, host: str, task: asyncio.Task[None]) -> None:
        del self._lanes[host]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("callbacks.halted", host=host, **blame(error))


def _guarded(rules: OutboundRules, per_host: int) -> Callable[[], CallbackClient]:
    dialler = Dialler(rules)
    return lambda: GuardedClient(dialler, max_connections=per_host)
