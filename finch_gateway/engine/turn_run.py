"""The run of a turn that this process holds: from the held turn to its committed reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from ..errors import Refusal, StoreUnavailable
from ..job import Job, NeedInput, Reply, job_of
from ..observe import Log, blame
from ..store import ClearQuestion, Held, KeepQuestion, TurnEnd, Turns
from ..wire import replies
from ..wire.dispatch import with_input
from ..wire.documents import read_object, read_value, write
from .agents import answers_from_capabilities
from .attempt import Attempt
from .holding import HeldTurn, Holdings
from .patience import patiently
from .performing import (
    AGENT_ERROR,
    AGENT_INTERRUPTED,
    DEADLINE_EXCEEDED,
    OUTPUT_TOO_LARGE,
    Failed,
    Interrupted,
    Outcome,
    perform,
)
from .questions import OpenQuestion


@dataclass(frozen=True, slots=True)
class _TurnPort:
    """The engine's side of a running turn. A turn has no place for progress (wire 5.1)."""

    turn: HeldTurn
    store: Turns
    clock: Callable[[], float]
    max_bytes: int

    async def progress(self, percent: int | None, stage: str | None) -> None:
        return

    async def save(self, state: Any) -> None:
        record = write(state)
        if len(record) > self.max_bytes:
            raise ValueError(f"a saved state has at most {self.max_bytes} bytes")
        if not await patiently(lambda: self.store.save_turn(self.turn.key, self.turn.epoch, record, self.clock())):
            self.turn.stop(Interrupted.LOST)
        self.turn.saved = state


class TurnRun:
    """Runs held turns, each to one committed reply."""

    def __init__(
        self, store: Turns, holdings: Holdings, log: Log, clock: Callable[[], float], retention_s: float
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._log = log
        self._clock = clock
        self._retention_s = retention_s

    async def run(self, attempt: Attempt, held: Held) -> bytes | None:
        """Return the committed reply; None when another holder has taken the turn over.

        Takes over the slot that the attempt has; it is free again when the agent has really ended.
        """
        turn = HeldTurn(attempt.key, held.epoch, asyncio.get_running_loop().create_future(), self._clock())
        self._holdings.hold(turn)
        try:
            earlier = self._holdings.unsettled(attempt.key)
            if earlier is not None:
                # This process ran the turn before and could not store its answer yet: that answer stands.
                attempt.agent.give_slot()
                return await self._commit(attempt, held, earlier.reply, earlier.question)
            opened = OpenQuestion.from_bytes(held.question) if held.question else None
            outcome = await self._outcome(attempt, held, turn, opened)
            if isinstance(outcome, Interrupted):
                await self._let_go(turn, outcome)
                return None
            reply, question = self._conclude(attempt, held, turn, opened, outcome)
            committed = await self._commit(attempt, held, reply, question)
            self._report(attempt, held, outcome, committed is not None)
            return committed
        finally:
            self._holdings.drop(turn)

    async def _outcome(self, attempt: Attempt, held: Held, turn: HeldTurn, opened: OpenQuestion | None) -> Outcome:
        listing = attempt.agent.listing
        shortcut: Outcome | None = None
        if held.attempt > 1 and listing.on_crash == "fail":
            shortcut = AGENT_INTERRUPTED
        elif self._clock() >= attempt.deadline:
            shortcut = DEADLINE_EXCEEDED
        elif answers_from_capabilities(listing, attempt.dispatch):
            shortcut = Reply.of(listing.capabilities)
        if shortcut is not None:
            attempt.agent.give_slot()
            return shortcut
        return await perform(
            attempt.agent.backend,
            self._job(attempt, held, turn, opened),
            timeout_s=max(0.0, attempt.cutoff - self._clock()),
            signal=turn.signal,
            on_end=attempt.agent.give_slot,
            log=self._log,
        )

    def _job(self, attempt: Attempt, held: Held, turn: HeldTurn, opened: OpenQuestion | None) -> Job:
        dispatch = attempt.dispatch
        turn.saved = opened.saved if opened else None
        if held.saved is not None:
            turn.saved = read_value(held.saved)
        return job_of(
            with_input(dispatch, opened.input) if opened else dispatch,
            _TurnPort(turn, self._store, self._clock, attempt.agent.listing.max_output_bytes),
            listing=attempt.agent.listing.name,
            attempt=held.attempt,
            deadline=attempt.deadline,
            contract_test=dispatch.contract_test,
            state=turn.saved,
            resume=opened.state if opened else None,
            answers=opened.answered_by(dispatch.text) if opened else None,
        )

    def _conclude(
        self, attempt: Attempt, held: Held, turn: HeldTurn, opened: OpenQuestion | None, outcome: Outcome
    ) -> tuple[bytes, KeepQuestion | ClearQuestion | None]:
        """Return the reply's bytes and what becomes of the conversation's record (wire 5.4)."""
        invocation_id = attempt.dispatch.invocation_id
        cleared = ClearQuestion(held.question_version) if held.question else None
        record: KeepQuestion | ClearQuestion | None = cleared
        try:
            if isinstance(outcome, NeedInput):
                keep = self._keep(attempt, held, turn, opened, outcome)
                asked = [(question.id, question.question) for question in outcome.questions]
                reply = replies.input_required(invocation_id, asked)
                record = keep if attempt.dispatch.conversation.conversation_id else record
            elif isinstance(outcome, Reply):
                reply = replies.completed(invocation_id, outcome.content, self._clock())
            else:
                failure = cast("Failed", outcome)
                return replies.failed(invocation_id, failure.code, failure.message), cleared
            if len(reply) <= attempt.agent.listing.max_output_bytes:
                return reply, record
            failure = OUTPUT_TOO_LARGE
        except Exception as error:
            # What the agent handed over cannot be said in JSON: NaN, lone surrogates, foreign objects.
            self._log.error("job.failed", **attempt.ids, **blame(error))
            failure = AGENT_ERROR
        return replies.failed(invocation_id, failure.code, failure.message), cleared

    def _keep(
        self, attempt: Attempt, held: Held, turn: HeldTurn, opened: OpenQuestion | None, need: NeedInput
    ) -> KeepQuestion:
        # Read anew: the agent had the values that were read before in its hands.
        if held.question:
            asking = OpenQuestion.from_bytes(held.question).input
        else:
            asking = cast("dict[str, Any]", read_object(attempt.body)["input"])
        record = OpenQuestion(
            ids=[asked.id for asked in need.questions],
            answers=opened.answered_by(attempt.dispatch.text) if opened else {},
            input=asking,
            state=need.state,
            saved=turn.saved,
        )
        return KeepQuestion(record.to_bytes(), self._clock() + self._retention_s)

    async def _commit(
        self, attempt: Attempt, held: Held, reply: bytes, question: KeepQuestion | ClearQuestion | None
    ) -> bytes | None:
        end = TurnEnd(
            key=attempt.key,
            epoch=held.epoch,
            reply=reply,
            conversation_id=attempt.dispatch.conversation.conversation_id,
            question=question,
            keep_until=self._clock() + self._retention_s,
        )
        return reply if await self._holdings.settle(end, until=attempt.deadline) else None

    async def _let_go(self, turn: HeldTurn, why: Interrupted) -> None:
        """Under a drain the turn goes back unanswered, for the next attempt; a lost one is another holder's."""
        if why is Interrupted.LOST:
            self._log.warning("turn.lost", listing=turn.key.listing, invocation_id=turn.key.invocation_id)
            return
        try:
            await self._store.release_turn(turn.key, turn.epoch, self._clock())
        except StoreUnavailable:
            self._log.warning("turn.not_released", listing=turn.key.listing, invocation_id=turn.key.invocation_id)
        raise Refusal("unavailable", reason="draining", retry_after_s=1)

    def _report(self, attempt: Attempt, held: Held, outcome: Outcome, committed: bool) -> None:
        status = "completed"
        code = ""
        if isinstance(outcome, NeedInput):
            status = "input_required"
        elif isinstance(outcome, Failed):
            status, code = "failed", outcome.code
        self._log.info(
            "turn.answered" if committed else "turn.superseded",
            status=status,
            code=code,
            attempt=held.attempt,
            took_s=round(self._clock() - attempt.began, 4),
            **attempt.ids,
        )
