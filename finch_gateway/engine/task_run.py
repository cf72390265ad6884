"""One run of a leased task: from the lease to the commit that ends it, asks, or gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from ..errors import StoreUnavailable
from ..job import Job, NeedInput, Reply, job_of
from ..observe import Field, Log, blame
from ..store import HeldTask, TaskRow, Tasks
from ..wire import task as life
from ..wire.dispatch import Dispatch, read_dispatch
from ..wire.documents import read_value, write
from .agents import ListedAgent, answers_from_capabilities
from .desk import Desk
from .patience import patiently
from .performing import (
    AGENT_ERROR,
    AGENT_INTERRUPTED,
    DEADLINE_EXCEEDED,
    OUTPUT_TOO_LARGE,
    Failed,
    Interrupted,
    Outcome,
    Signal,
    give_signal,
    perform,
)
from .task_hold import TaskHold

PROGRESS_EVERY_S = 1.0
INTERNAL_ERROR = Failed("internal_error", "The gateway could not carry this task to its end.")
INPUT_ROUNDS_EXCEEDED = Failed("input_rounds_exceeded", "The agent asked more often than this listing allows.")

_BOUNDED = frozenset({life.State.FAILED, life.State.EXPIRED})
"""Ends whose size does not depend on the agent beyond a bounded sentence."""


class TaskRun:
    """Carries one leased task as far as it goes. `on_end` is called when an agent that began has really ended."""

    def __init__(
        self,
        agent: ListedAgent,
        row: TaskRow,
        store: Tasks,
        desk: Desk,
        log: Log,
        clock: Callable[[], float],
        on_end: Callable[[], None],
    ) -> None:
        self.agent_began = False
        self._agent = agent
        self._attempt = row.attempt
        self._signal: Signal = asyncio.get_running_loop().create_future()
        self._hold = TaskHold(row, desk, self._signal)
        self._store = store
        self._log = log
        self._clock = clock
        self._on_end = on_end
        self._reported_at = float("-inf")
        self._unreported: life.Task | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    @property
    def row(self) -> TaskRow:
        return self._hold.row

    def stop(self, why: Interrupted) -> None:
        """Make the run end: the task is lost to another, or the process drains."""
        give_signal(self._signal, why)

    def adopt(self, row: TaskRow) -> bool:
        """Go on under a new lease that this process took of the same task; False when the run has ended."""
        if self._hold.is_over:
            return False
        self._hold.adopt(row)
        return True

    async def run(self) -> None:
        """Run the agent and commit what comes of it."""
        self._note("task.started", attempt=self._attempt)
        try:
            outcome = await self._outcome()
        except StoreUnavailable:
            # The agent has not begun: the task goes back, and this is no crash.
            outcome = Interrupted.DRAIN
        finally:
            if self._flush:
                self._flush.cancel()
        if outcome is Interrupted.LOST:
            self._note("task.left", reason="lost")
        elif outcome is Interrupted.DRAIN:
            await self._give_back()
        else:
            await self._conclude(outcome)

    async def _outcome(self) -> Outcome:
        row, listing = self._hold.row, self._agent.listing
        if not self._hold.is_readable:
            self._note("task.unreadable")
            return INTERNAL_ERROR
        dispatch = read_dispatch(row.dispatch, listing.wire_protocol)
        if self._clock() >= row.index.deadline:
            return DEADLINE_EXCEEDED
        if self._hold.task.state is life.State.QUEUED:
            # Before the agent begins, so that a queued task is one that no agent has seen.
            if not await self._hold.commit(life.start):
                return cast("Interrupted", self._signal.result())
        elif row.attempt > 1 and listing.on_crash == "fail":
            return AGENT_INTERRUPTED
        if answers_from_capabilities(listing, dispatch):
            return Reply.of(listing.capabilities)
        self.agent_began = True
        return await perform(
            self._agent.backend,
            self._job(dispatch),
            timeout_s=max(0.0, row.index.deadline - self._clock()),
            signal=self._signal,
            on_end=self._on_end,
            log=self._log,
        )

    def _job(self, dispatch: Dispatch) -> Job:
        task = self._hold.task
        return job_of(
            dispatch,
            self,
            listing=self._agent.listing.name,
            attempt=self._attempt,
            deadline=self._hold.row.index.deadline,
            contract_test=dispatch.contract_test,
            task_id=task.id,
            state=read_value(bytes(task.saved)),
            resume=read_value(bytes(task.resume)),
            answers=task.answers,
        )

    # What the agent calls while it runs (see `job.JobPort`)

    async def progress(self, percent: int | None, stage: str | None) -> None:
        """Report progress; at most one event a second, and the newest is never held back for longer."""
        base = self._unreported or self._hold.task
        if base.state not in life.RUNNING:
            return
        moved = life.report(base, percent, stage)
        if moved is base:
            return
        self._unreported = moved
        if self._flush is None and self._flushing is None:
            wait_s = max(0.0, self._reported_at + PROGRESS_EVERY_S - self._clock())
            if wait_s == 0:
                await self._flush_progress()
            else:
                self._flush = asyncio.get_running_loop().call_later(wait_s, self._begin_flush)

    async def save(self, state: Any) -> None:
        """Keep the agent's state durably before this returns."""
        record = write(state)
        if len(record) > self._agent.listing.max_output_bytes:
            raise ValueError(f"a saved state has at most {self._agent.listing.max_output_bytes} bytes")
        await patiently(lambda: self._hold.commit(lambda task: life.with_saved(task, record)))

    def _begin_flush(self) -> None:
        self._flush = None
        self._flushing = asyncio.get_running_loop().create_task(self._flush_progress())

    async def _flush_progress(self) -> None:
        reported, self._unreported = self._unreported, None
        if reported is not None:
            self._reported_at = self._clock()
            try:
                await self._hold.commit(lambda task: life.report(task, reported.percent, reported.stage))
            except StoreUnavailable:
                # Found out about before the next change; the agent's work does not depend on it.
                self._note("task.progress_delayed")
        self._flushing = None

    # How a run ends

    async def _conclude(self, outcome: Outcome) -> None:
        """Commit the end or the question; tried until the store has it or the task is another's."""
        kept = await self._hold.finish(lambda task: self._moved(task, outcome))
        if kept:
            self._note("task.ended" if self._hold.task.is_final else "task.asked")
        else:
            self._note("task.left", reason="lost")

    def _moved(self, task: life.Task, outcome: Outcome) -> life.Task:
        """Return the task after an outcome; whatever cannot be said ends it cleanly, and never runs it again."""
        try:
            moved = self._move(task, outcome)
            moved.to_bytes()
            if len(life.snapshot(moved, 0)) <= self._agent.listing.max_output_bytes or moved.state in _BOUNDED:
                return moved
            failure = OUTPUT_TOO_LARGE
        except Exception as error:
            # What the agent handed over cannot be said in JSON: NaN, lone surrogates, foreign objects.
            self._log.error("job.failed", merchant_task_id=task.id, listing=self.row.listing, **blame(error))
            failure = AGENT_ERROR
        return life.fail(task, failure.code, failure.message)

    def _move(self, task: life.Task, outcome: Outcome) -> life.Task:
        if isinstance(outcome, NeedInput):
            if task.rounds >= self._agent.listing.max_input_rounds:
                return life.fail(task, INPUT_ROUNDS_EXCEEDED.code, INPUT_ROUNDS_EXCEEDED.message)
            return life.ask(task, [(asked.id, asked.question) for asked in outcome.questions], write(outcome.state))
        if isinstance(outcome, Reply):
            return life.complete(task, life.content_bytes(outcome.content), self._clock())
        if outcome is DEADLINE_EXCEEDED:
            return life.expire(task)
        failure = cast("Failed", outcome)
        return life.fail(task, failure.code, failure.message)

    async def _give_back(self) -> None:
        row = self._hold.row
        # Left to its lease it would count as a crash.
        await patiently(lambda: self._store.release_task(HeldTask(row.task_id, row.epoch), self._clock()))
        self._note("task.given_back")

    def _note(self, name: str, **more: Field) -> None:
        task, row = self._hold.task, self._hold.row
        self._log.info(
            name,
            listing=row.listing,
            invocation_id=row.invocation_id,
            merchant_task_id=row.task_id,
            key_id=row.key_id,
            status=task.state.value,
            sequence=task.sequence,
            code=task.error_code,
            **more,
        )
