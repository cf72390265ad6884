"""One task as Finch follows it: callbacks where they come, polling as the recovery, to its end (wire 6, 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .envelopes import Call
from .exchange import Exchange
from .platform import Platform
from .receiver import Receiver
from .replies import questions_of
from .tasks import (
    State,
    canceled_faults,
    poll_after_s,
    read_snapshot,
    receipt_faults,
    sequence_of,
    taken_faults,
    task_id_of,
)
from .timeline import Arrival, History, Timeline

_MIN_POLL_AFTER_S = 0.05


@dataclass(frozen=True, slots=True)
class Patience:
    """How long Finch's side waits, in seconds.

    `grace_s`: how much later than its deadline a task's end may be seen. `callback_s`: how much later than an end
    its callback may come. `recovery_s`: how long no callback may come before Finch polls. `max_poll_after_s`: a
    provider may ask for an hour between polls; whoever tests it has no hour. `hurry_s`: the deadline of a task that
    is to expire; without callbacks, `late_s` later is the first poll.
    """

    grace_s: float = 10.0
    callback_s: float = 10.0
    recovery_s: float = 5.0
    max_poll_after_s: float = 1.0
    hurry_s: float = 1.5
    late_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What an agent asked at once, and what it was answered; empty where it was not."""

    questions: tuple[str, ...]
    answer: str = ""


class FollowedTask:
    """A dispatched task, everything said of it, and every fault in that.

    `timeline` is None where no callback can arrive: then polling alone tells. Every poll carries one
    Idempotency-Key, which must not turn it into a memory (wire 6.3).
    """

    def __init__(
        self, platform: Platform, call: Call, timeline: Timeline | None, patience: Patience = Patience()
    ) -> None:
        self.platform = platform
        self.call = call
        self.timeline = timeline
        self.patience = patience
        self.poll_key = str(platform.new_uuid())
        self.history = timeline.history if timeline else History()
        self.task_id = ""
        self.exchanges: list[Exchange] = []
        self.faults: list[str] = []
        self.answers: list[Exchange] = []
        self.dialogue: list[Asked] = []
        self.asked_again = False
        self.poll_after_s = patience.max_poll_after_s
        self._answered_at = 0
        self._heard = (0, 0)
        self._is_lost = False

    @classmethod
    def prepare(
        cls, platform: Platform, call: Call, receiver: Receiver | None, patience: Patience = Patience(), query: str = ""
    ) -> FollowedTask:
        """Return a task that is not dispatched yet, its callbacks expected at `receiver`."""
        timeline = receiver.open(call.invocation_id, query) if receiver else None
        return cls(platform, replace(call, callback_url=timeline.url if timeline else ""), timeline, patience)

    @property
    def status(self) -> str:
        """The newest status that is known, empty before the first."""
        newest = self.history.newest
        return newest.status if newest else ""

    @property
    def end(self) -> State | None:
        """The final state, where it is known."""
        return self.history.end

    @property
    def arrivals(self) -> Sequence[Arrival]:
        return self.timeline.arrivals if self.timeline else ()

    @property
    def receipt(self) -> bytes:
        return self.exchanges[0].answer.body

    async def start(self) -> Exchange:
        """Dispatch the task and read its receipt."""
        return self.accepted(await self.platform.start(self.call))

    def accepted(self, exchange: Exchange) -> Exchange:
        """Take the answer to the dispatch, made elsewhere, as this task's receipt."""
        self._keep(exchange, 202)
        if exchange.answer.status < 300:
            self.faults += receipt_faults(exchange.answer.body, self.call.invocation_id)
        self.task_id = task_id_of(exchange.answer.body)
        self._wait_as_asked(exchange)
        return exchange

    async def poll(self) -> State | None:
        """Ask for the snapshot; note its faults, also against every callback accepted before (wire 7.3)."""
        known = self.timeline.newest if self.timeline else None
        exchange = await self.platform.poll(self.task_id, key=self.poll_key)
        self._keep(exchange, 200)
        state, faults = read_snapshot(exchange.answer.body, self.task_id)
        self.faults += faults
        self._wait_as_asked(exchange)
        if state is None:
            # Not there any more, or not to be read: it has no end to wait for.
            self._is_lost = True
            return None
        if known is not None and state.sequence < known.sequence:
            self.faults.append(f"the snapshot has sequence {state.sequence} after the callback of {known.sequence}")
        self.faults += self.history.note(state)
        return state

    async def to_end(self, *, until: float, answer: str = "") -> State | None:
        """Follow the task until it has ended or the instant `until` has come.

        Its first question is answered with `answer`; a task that then asks again is canceled. Without `answer`
        it is left waiting.
        """
        while self.task_id and self.end is None and self.platform.clock() < until and not self._is_lost:
            if self.status == "input_required" and answer:
                await self._on_question(answer)
            await self.news(until)
        return self.end

    async def end_by_callback(self, more_s: float = 0.0) -> bool:
        """Wait `callback_s` and `more_s` for the callback of the end; False when it did not come, or cannot.

        One callback with a fault ends the wait: what is wrong is known then.
        """
        timeline = self.timeline
        if timeline is None:
            return False
        await timeline.until(lambda: timeline.is_ended or bool(timeline.faults), more_s + self.patience.callback_s)
        return timeline.is_ended

    async def cancel(self) -> Exchange:
        """Cancel the task; an answer of 200 is its end."""
        exchange = await self.platform.cancel(self.task_id)
        self.exchanges.append(exchange)
        if exchange.answer.status == 200:
            self.faults += canceled_faults(exchange.answer.body, self.task_id)
            sequence = sequence_of(exchange.answer.body)
            self.faults += self.history.note(State(self.task_id, "canceled", sequence, None, {}))
        return exchange

    async def _on_question(self, answer: str) -> None:
        newest = self.history.newest
        if newest is None or newest.sequence == self._answered_at:
            return
        if self.answers:
            self.asked_again = True
            self.dialogue.append(Asked(questions_of(newest.document)))
            await self.cancel()
            return
        self.dialogue.append(Asked(questions_of(newest.document), answer))
        self._answered_at = newest.sequence
        key = str(self.platform.new_uuid())
        for _ in range(2):  # The second is Finch's retry of the same answer.
            exchange = await self.platform.answer(self.task_id, answer, key=key)
            self._keep(exchange, 202)
            self.answers.append(exchange)
            self.faults += taken_faults(exchange.answer.body, self.task_id)

    async def news(self, until: float) -> None:
        """Return when something new is known, or something was asked."""
        left_s = max(until - self.platform.clock(), 0.0)
        if self.timeline is None:
            await asyncio.sleep(min(self.poll_after_s, left_s))
        elif await self._called(min(self.patience.recovery_s, left_s)):
            return
        await self.poll()

    async def _called(self, timeout_s: float) -> bool:
        """Say whether a callback told something new; one that was refused ends the wait too, and tells nothing."""
        timeline = self.timeline
        if timeline is None:
            return False
        arrivals, events = self._heard
        await timeline.until(lambda: len(timeline.arrivals) > arrivals, timeout_s)
        self._heard = len(timeline.arrivals), len(timeline.events)
        return len(timeline.events) > events

    def _keep(self, exchange: Exchange, status: int) -> None:
        self.exchanges.append(exchange)
        if exchange.distrust:
            self.faults.append(exchange.distrust)
        if exchange.answer.status != status:
            self.faults.append(f"status {exchange.answer.status} instead of {status}")

    def _wait_as_asked(self, exchange: Exchange) -> None:
        self.poll_after_s = min(
            max(poll_after_s(exchange.answer.body, 1.0), _MIN_POLL_AFTER_S), self.patience.max_poll_after_s
        )
