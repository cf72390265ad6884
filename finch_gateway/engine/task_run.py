"""One run of a leased task: from the lease to the commit that ends it, asks, or gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..errors import StoreUnavailable
from ..job import Job, NeedInput, Reply, job_of
from ..observe import Log
from ..store import HeldTask, TaskRow, Tasks
from ..wire import task as life
from ..wire.dispatch import Dispatch, read_dispatch
from ..wire.documents import read_value, write
from .agents import ListedAgent, answers_from_capabilities
from .desk import Desk, TaskFile
from .performing import (
    AGENT_ERROR,
    AGENT_INTERRUPTED,
    DEADLINE_EXCEEDED,
    OUTPUT_TOO_LARGE,
    Failed,
    Interrupted,
    Outcome,
    give_signal,
    perform,
)

PROGRESS_EVERY_S = 1.0
STORE_RETRY_S = 0.5
INPUT_ROUNDS_EXCEEDED = Failed("input_rounds_exceeded", "The agent asked more often than this listing allows.")


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
        self.row = row
        self.agent_began = False
        self._agent = agent
        self._file = TaskFile.of(row)
        self._store = store
        self._desk = desk
        self._log = log
        self._clock = clock
        self._on_end = on_end
        self._signal = asyncio.get_running_loop().create_future()
        # One commit at a time, so that each is made against the version the one before it wrote.
        self._turn = asyncio.Lock()
        self._reported_at = float("-inf")
        self._unreported: life.Task | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def stop(self, why: Interrupted) -> None:
        """Make the run end: the task is lost to another, or the process drains."""
        give_signal(self._signal, why)

    async def run(self) -> None:
        """Run the agent and commit what comes of it."""
        dispatch = read_dispatch(self.row.dispatch, self._agent.listing.wire_protocol)
        self._note("task.started", attempt=self.row.attempt)
        try:
            outcome = await self._outcome(dispatch)
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

    async def _outcome(self, dispatch: Dispatch) -> Outcome:
        listing = self._agent.listing
        shortcut: Outcome | None = None
        if self._clock() >= self.row.index.deadline:
            shortcut = DEADLINE_EXCEEDED
        elif self._file.task.state is life.State.QUEUED:
            # Before the agent begins, so that a queued task is one that no agent has seen.
            if not await self._commit_with(life.start):
                shortcut = Interrupted.LOST
        elif self.row.attempt > 1 and listing.on_crash == "fail":
            shortcut = AGENT_INTERRUPTED
        if shortcut is None and answers_from_capabilities(listing, dispatch):
            shortcut = Reply.of(listing.capabilities)
        if shortcut is not None:
            return shortcut
        self.agent_began = True
        return await perform(
            self._agent.backend,
            self._job(dispatch),
            timeout_s=max(0.0, self.row.index.deadline - self._clock()),
            signal=self._signal,
            on_end=self._on_end,
            log=self._log,
        )

    def _job(self, dispatch: Dispatch) -> Job:
        task = self._file.task
        return job_of(
            dispatch,
            self,
            listing=self._agent.listing.name,
            attempt=self.row.attempt,
            deadline=self.row.index.deadline,
            contract_test=dispatch.contract_test,
            task_id=task.id,
            state=read_value(bytes(task.saved)),
            resume=read_value(bytes(task.resume)),
            answers=task.answers,
        )

    # What the agent calls while it runs (see `job.JobPort`)

    async def progress(self, percent: int | None, stage: str | None) -> None:
        """Report progress; at most one event a second, and the newest is never held back for longer."""
        base = self._unreported or self._file.task
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
        await self._commit_with(lambda task: life.with_saved(task, record))

    def _begin_flush(self) -> None:
        self._flush = None
        self._flushing = asyncio.get_running_loop().create_task(self._flush_progress())

    async def _flush_progress(self) -> None:
        reported, self._unreported = self._unreported, None
        if reported is not None:
            self._reported_at = self._clock()
            try:
                await self._commit_with(lambda task: life.report(task, reported.percent, reported.stage))
            except StoreUnavailable:
                self._note("task.progress_dropped")
        self._flushing = None

    # Commits

    async def _commit_with(self, change: Callable[[life.Task], life.Task]) -> bool:
        """Commit a change of what the task is by then; False, and the run ends, when the task is another's."""
        async with self._turn:
            if self._signal.done():
                return False
            kept = await self._desk.commit(self._file, change(self._file.task), epoch=self.row.epoch, keeps_lease=True)
        if not kept:
            self.stop(Interrupted.LOST)
        return kept

    async def _conclude(self, outcome: Outcome) -> None:
        """Commit the end or the question; tried until the store has it or the task is another's."""
        async with self._turn:
            moved = self._moved(outcome)
            while True:
                try:
                    kept = await self._desk.commit(self._file, moved, epoch=self.row.epoch, keeps_lease=False)
                    break
                except StoreUnavailable:
                    self._note("task.commit_delayed")
                    await asyncio.sleep(STORE_RETRY_S)
        name = "task.ended" if moved.is_final else "task.asked"
        self._note(name if kept else "task.left", reason="" if kept else "lost")

    def _moved(self, outcome: Outcome) -> life.Task:
        task = self._file.task
        if self._unreported is not None and task.state in life.RUNNING:
            # The last progress is in the end's own record; it needs no event of its own.
            self._unreported = None
        try:
            if isinstance(outcome, NeedInput):
                return self._asking(task, outcome)
            if isinstance(outcome, Reply):
                done = life.complete(task, life.content_bytes(outcome.content), self._clock())
                if len(life.snapshot(done, 0)) <= self._agent.listing.max_output_bytes:
                    return done
                outcome = OUTPUT_TOO_LARGE
        except ValueError:
            # What the agent handed over cannot be said in JSON: NaN, lone surrogates, foreign objects.
            self._note("job.failed", error_type="NotJson")
            outcome = AGENT_ERROR
        if outcome is DEADLINE_EXCEEDED:
            return life.expire(task)
        assert isinstance(outcome, Failed)
        return life.fail(task, outcome.code, outcome.message)

    def _asking(self, task: life.Task, need: NeedInput) -> life.Task:
        if task.rounds >= self._agent.listing.max_input_rounds:
            return life.fail(task, INPUT_ROUNDS_EXCEEDED.code, INPUT_ROUNDS_EXCEEDED.message)
        questions = [(asked.id, asked.question) for asked in need.questions]
        return life.ask(task, questions, write(need.state))

    async def _give_back(self) -> None:
        while True:
            try:
                await self._store.release_task(HeldTask(self.row.task_id, self.row.epoch), self._clock())
                break
            except StoreUnavailable:
                # Left to its lease it would count as a crash.
                await asyncio.sleep(STORE_RETRY_S)
        self._note("task.given_back")

    def _note(self, name: str, **more: str | int) -> None:
        task = self._file.task
        self._log.info(
            name,
            listing=self.row.listing,
            invocation_id=self.row.invocation_id,
            merchant_task_id=self.row.task_id,
            key_id=self.row.key_id,
            status=task.state.value,
            sequence=task.sequence,
            code=task.error_code,
            **more,
        )
