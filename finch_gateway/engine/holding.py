"""The turns this process holds: their leases, their answers on the way to the store, and who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import StoreUnavailable
from ..observe import Log, blame
from ..store import Held, TurnClaim, TurnEnd, TurnKey, Turns
from .patience import STORE_RETRY_S
from .performing import Interrupted, Signal, give_signal

BEATS_PER_LEASE = 5


@dataclass(eq=False, slots=True)
class HeldTurn:
    """A turn this process runs under `epoch`; `saved` is the agent's last saved state."""

    key: TurnKey
    epoch: int
    signal: Signal
    renewed_at: float
    saved: Any = None

    def stop(self, why: Interrupted) -> None:
        """Make the run end without an answer from here."""
        give_signal(self.signal, why)


@dataclass(slots=True)
class _Unsettled:
    """An answer whose commit was not confirmed; `done` holds whether it was written."""

    end: TurnEnd
    done: asyncio.Future[bool] = field(repr=False)


class Holdings:
    """Keeps every held turn's lease alive and brings every answer into the store, over store failures."""

    def __init__(self, store: Turns, lease_s: float, log: Log, clock: Callable[[], float]) -> None:
        self._store = store
        self._lease_s = lease_s
        self._log = log
        self._clock = clock
        self._held: dict[TurnKey, HeldTurn] = {}
        self._unsettled: dict[TurnKey, _Unsettled] = {}
        self._listeners: dict[TurnKey, set[asyncio.Future[None]]] = {}
        # The loop itself keeps only weak references to its tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self._released = asyncio.Event()
        self.draining = False
        self.interrupting = False

    def start(self) -> None:
        """Begin the heartbeat; call once, on the running loop."""
        self._background(self._beat())

    async def drain(self, grace_s: float) -> None:
        """Admit no new turn, let the running ones finish within `grace_s` seconds, give the others back."""
        self.draining = True
        try:
            async with asyncio.timeout(grace_s):
                while self._held:
                    self._released.clear()
                    await self._released.wait()
        except TimeoutError:
            self._log.warning("drain.grace_over", running=len(self._held))
        self.interrupting = True
        for turn in list(self._held.values()):
            turn.stop(Interrupted.DRAIN)

    async def close(self) -> None:
        """Stop the heartbeat and every retry."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def hold(self, turn: HeldTurn) -> None:
        self._held[turn.key] = turn
        if self.interrupting:
            turn.stop(Interrupted.DRAIN)

    def drop(self, turn: HeldTurn) -> None:
        if self._held.get(turn.key) is turn:
            del self._held[turn.key]
        self._released.set()

    def holds(self, key: TurnKey) -> bool:
        """Say whether this process runs the turn, whatever became of its lease."""
        return key in self._held

    def unsettled(self, key: TurnKey) -> TurnEnd | None:
        """Return the answer this process has for a turn and could not store yet."""
        waiting = self._unsettled.get(key)
        return waiting.end if waiting else None

    async def settle(self, end: TurnEnd, *, until: float) -> bool:
        """Commit a turn's end; False when another holder has taken the turn over.

        While the store is away this is tried again in the background, for as long as it takes; the caller
        gets `StoreUnavailable` at the instant `until`.
        """
        try:
            written = await self._store.finish_turn(end, self._clock())
        except StoreUnavailable:
            return await self._settle_later(end, until)
        self._announce(end.key)
        return written

    async def _settle_later(self, end: TurnEnd, until: float) -> bool:
        waiting = _Unsettled(end, asyncio.get_running_loop().create_future())
        self._unsettled[end.key] = waiting
        self._background(self._keep_settling(waiting))
        try:
            async with asyncio.timeout(max(0.0, until - self._clock())):
                return await asyncio.shield(waiting.done)
        except TimeoutError:
            raise StoreUnavailable("the turn's answer could not be stored in time") from None

    async def _keep_settling(self, waiting: _Unsettled) -> None:
        try:
            while True:
                await asyncio.sleep(STORE_RETRY_S)
                try:
                    written = await self._store.finish_turn(waiting.end, self._clock())
                except StoreUnavailable:
                    continue
                break
        finally:
            if self._unsettled.get(waiting.end.key) is waiting:
                del self._unsettled[waiting.end.key]
        if not waiting.done.done():
            waiting.done.set_result(written)
        self._announce(waiting.end.key)

    def give_back_later(self, claim: TurnClaim) -> None:
        """Release a turn whose claim may have succeeded although its answer was lost."""
        self._background(self._give_back(msgspec.structs.replace(claim, nonce=None, may_start=False)))

    async def _give_back(self, claim: TurnClaim) -> None:
        give_up_at = self._clock() + 2 * self._lease_s
        while self._clock() < give_up_at:
            await asyncio.sleep(STORE_RETRY_S)
            try:
                now = self._clock()
                verdict = await self._store.claim_turn(claim, now)
                if isinstance(verdict, Held):
                    await self._store.release_turn(claim.key, verdict.epoch, now)
            except StoreUnavailable:
                continue
            return

    async def next_answer(self, key: TurnKey, timeout_s: float) -> None:
        """Return when this process has committed an answer to the turn, at the latest after `timeout_s` seconds."""
        news = asyncio.get_running_loop().create_future()
        self._listeners.setdefault(key, set()).add(news)
        try:
            await asyncio.wait({news}, timeout=timeout_s)
        finally:
            listeners = self._listeners[key]
            listeners.discard(news)
            if not listeners:
                del self._listeners[key]

    def _announce(self, key: TurnKey) -> None:
        for news in self._listeners.get(key, ()):
            if not news.done():
                news.set_result(None)

    async def _beat(self) -> None:
        interval_s = self._lease_s / BEATS_PER_LEASE
        while True:
            await asyncio.sleep(min(interval_s, STORE_RETRY_S))
            due = [turn for turn in self._held.values() if self._clock() - turn.renewed_at >= interval_s]
            if due:
                await asyncio.gather(*(self._renew(turn) for turn in due))

    async def _renew(self, turn: HeldTurn) -> None:
        now = self._clock()
        try:
            kept = await self._store.renew_turn(turn.key, turn.epoch, now + self._lease_s, now)
        except StoreUnavailable:
            return
        except Exception as error:
            # One turn's failure must not end the heartbeat of all.
            self._log.error("lease.renewal_failed", listing=turn.key.listing, **blame(error))
            return
        turn.renewed_at = now
        if not kept:
            turn.stop(Interrupted.LOST)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
