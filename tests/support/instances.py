"""Engines without processes: the test moves the clock, the agent and every look at the store."""

from __future__ import annotations

import asyncio
import io
import json
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from finch_gateway.backend import Backend, Supports
from finch_gateway.engine.agents import ListedAgent
from finch_gateway.engine.desk import Desk, TaskFile
from finch_gateway.engine.task_run import TaskRun
from finch_gateway.engine.tasks import TaskEngine
from finch_gateway.engine.worker import Worker
from finch_gateway.errors import StoreUnavailable
from finch_gateway.job import Job, JobFailed, JobPort, NeedInput, Question, Reply
from finch_gateway.listing import Listing, OnCrash, Revision
from finch_gateway.observe import Log
from finch_gateway.store import Nonce, Store, TaskRow
from finch_gateway.wire.destinations import OutboundRules
from finch_gateway.wire.dispatch import read_dispatch
from finch_gateway.wire.signing import SigningKey
from finch_gateway.wire.task import expire

LEASE_S = 30.0
RETENTION_S = 86_400.0
QUIET_LIMIT_S = 20.0


@dataclass(slots=True)
class Clock:
    """A clock that moves when it is told to."""

    now: float = field(default_factory=lambda: float(int(time.time())))

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True, eq=False)
class Work:
    """One run of the agent; it does what it is ordered and waits for more. A stubborn one ignores cancellation."""

    job: Job
    is_stubborn: bool
    is_waiting: bool = False
    is_over: bool = False
    orders: asyncio.Queue[Callable[[Job], Any]] = field(default_factory=asyncio.Queue)

    @property
    def epoch(self) -> int:
        """Which holder of the task this run belongs to."""
        port = self.job.port
        assert isinstance(port, TaskRun)
        return port.row.epoch

    async def go_on(self) -> Reply | NeedInput:
        try:
            while True:
                result = await self._obey()
                if result is not None:
                    return result
        finally:
            self.is_over = True

    async def _obey(self) -> Reply | NeedInput | None:
        try:
            self.is_waiting = self.orders.empty()
            order = await self.orders.get()
            self.is_waiting = False
            result: Reply | NeedInput | None = await order(self.job)
        except StoreUnavailable:
            return None  # an agent that reports once more
        except asyncio.CancelledError:
            if not self.is_stubborn:
                raise
            return None
        return result

    @property
    def is_quiet(self) -> bool:
        return self.is_over or (self.is_waiting and self.orders.empty())


class Puppet(Backend):
    """An agent whose every step is the test's."""

    supports = Supports(modes=frozenset({"task"}), questions=True, progress=True, cancel=True)

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.makes_stubborn = False

    async def run(self, job: Job) -> Reply | NeedInput:
        work = Work(job, self.makes_stubborn)
        self.works.append(work)
        return await work.go_on()


async def report(job: Job, percent: int) -> None:
    await job.progress(percent, f"at {percent}")


async def save(job: Job, state: Any) -> None:
    await job.save(state)


async def ask(job: Job) -> NeedInput:
    return NeedInput((Question(f"q{len(job.answers)}", "Which?"),), {"asked": len(job.answers)})


async def complete(job: Job, text: str) -> Reply:
    return Reply.of(text)


async def fail(job: Job) -> Reply:
    raise JobFailed("no_data", "There is nothing to report.")


async def vanish(job: Job) -> Reply:
    raise asyncio.CancelledError


class ShakyStore:
    """A store whose next change is refused, or done with its answer lost. `leased` are the epochs it answered with."""

    CHANGES = frozenset({"admit_task", "commit_task", "lease_task", "release_task", "renew_tasks", "settle_event"})

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.refuses = 0
        self.loses = 0
        self.leased: dict[str, int] = {}
        self._steps: set[asyncio.Task[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._inner, name)
        return self._shaken(step) if name in self.CHANGES else step

    def _shaken(self, step: Any) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*arguments: Any) -> Any:
            if self.refuses:
                self.refuses -= 1
                raise StoreUnavailable("refused by the test")
            loses, self.loses = self.loses, max(0, self.loses - 1)
            # Whoever stops waiting does not stop the store.
            result = await asyncio.shield(self._done(step(*arguments), answers=not loses))
            if loses:
                raise StoreUnavailable("the answer is lost")
            return result

        return call

    def _done(self, step: Coroutine[Any, Any, Any], *, answers: bool) -> asyncio.Task[Any]:
        async def done() -> Any:
            result = await step
            if isinstance(result, TaskRow) and answers:
                self.leased[result.task_id] = result.epoch
            return result

        task = asyncio.get_running_loop().create_task(done())
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return task


def listing_named(name: str, on_crash: OnCrash = "rerun") -> Listing:
    key = SigningKey(b"k" * 32)
    revision = Revision(f"key-{name}", "current", key, key)
    return Listing(
        name=name,
        wire_protocol="finch_v2",
        mount="/x",
        modes=("task",),
        revisions={revision.key_id: revision},
        backend_type="python",
        backend_options={},
        max_input_rounds=3,
        on_crash=on_crash,
    )


class HandWorker(Worker):
    """The product's worker without its loops: it takes and looks when it is told to."""

    def __init__(self, store: Any, desk: Desk, agent: ListedAgent, log: Log, clock: Clock) -> None:
        super().__init__(store, desk, [agent], log, clock, LEASE_S)
        self._agent = agent
        self._one_at_a_time = asyncio.Lock()
        self.left: list[str] = []

    async def take(self) -> None:
        """Take one task, as the worker's own loop does, one at a time."""
        async with self._one_at_a_time:
            taking = asyncio.get_running_loop().create_task(self._take(self._agent))
            kept = self._taking
            kept.add(taking)
            taking.add_done_callback(kept.discard)
            await asyncio.wait({taking})
            if not taking.cancelled():
                taking.result()

    async def look(self, *, renews: bool) -> None:
        """Notice what others have taken or ended; with `renews` keep the leases of the rest alive."""
        if renews:
            await self._renew()
        else:
            self._stop_lost(await self._store.lost_tasks(self._held()))

    async def _run(self, agent: ListedAgent, row: TaskRow) -> None:
        await super()._run(agent, row)
        self.left.append(row.task_id)

    def runs(self, task_id: str) -> bool:
        return task_id in self._runs

    def is_quiet(self, at_work: set[JobPort]) -> bool:
        """Say whether every run waits for its agent; `at_work` are those whose agent has begun and not ended."""
        return len(self._running) == sum(run in at_work for run in self._runs.values())


class Instance:
    """One process's engine over its own view of the store; it takes, looks and expires when it is told to."""

    def __init__(self, store: Store, listing: Listing, clock: Clock) -> None:
        self.store = ShakyStore(store)
        self.listing = listing
        self.puppet = Puppet()
        self.troubles = io.StringIO()
        self._clock = clock
        self._agent = ListedAgent(listing, self.puppet)
        log, shaky = Log("error", self.troubles), cast("Store", self.store)
        self._desk = Desk(shaky, clock, RETENTION_S, lambda: None)
        self.worker = HandWorker(shaky, self._desk, self._agent, log, clock)
        self.engine = TaskEngine(
            shaky,
            self._desk,
            OutboundRules(),
            log,
            clock,
            retention_s=RETENTION_S,
            on_ready=self.worker.wake,
            on_ended=self.worker.end,
        )

    # What Finch asks

    async def accept(self, body: bytes) -> str:
        """Return the task's id."""
        dispatch = read_dispatch(body, "finch_v2")
        receipt = await self.engine.accept(self._agent, dispatch, body, self.listing.current, self.nonce)
        return str(json.loads(receipt)["merchant_task_id"])

    async def poll(self, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.engine.poll(self.listing, task_id, self.nonce))
        return found

    async def answer(self, task_id: str, text: str, key: str) -> None:
        content = [{"type": "text", "text": text}]
        body = {"protocol_version": "2.0", "message": {"role": "user", "content": content}}
        await self.engine.answer(self.listing, task_id, json.dumps(body).encode(), key, self.nonce)

    async def cancel(self, task_id: str) -> int:
        """Return the sequence that the answer names."""
        body = b'{"protocol_version":"2.0","reason":"x"}'
        answer = await self.engine.cancel(self.listing, task_id, body, self.nonce)
        return int(json.loads(answer)["sequence"])

    def nonce(self) -> Nonce:
        op = uuid.uuid4().hex
        return Nonce(self.listing.current.key_id, op, self._clock.now + 301, op)

    async def expire(self) -> None:
        """End what is overdue, as the sweeper does."""
        for row in await self.store.due_tasks(self._clock.now, 500):
            if row.listing == self.listing.name:
                file = TaskFile.of(row)
                if await self._desk.commit(file, expire(file.task), epoch=None, keeps_lease=False):
                    self.worker.end(row.task_id)

    # Its life

    async def quiet(self) -> None:
        """Return once every run has ended or waits for its agent, and every agent waits for orders."""
        end = time.monotonic() + QUIET_LIMIT_S
        while not self._is_quiet():
            assert time.monotonic() < end, "the instance does not come to rest"
            await asyncio.sleep(0.001)

    def _is_quiet(self) -> bool:
        works = self.puppet.works
        return all(work.is_quiet for work in works) and self.worker.is_quiet(
            {work.job.port for work in works if not work.is_over}
        )

    async def drain(self) -> None:
        """Stop in order, without time for what runs: it is given back."""
        await self.worker.drain(0)
        await self.crash()

    async def crash(self) -> None:
        """Stop at once, as a killed process does: nothing is given back, nothing told."""
        works = [work for work in self.puppet.works if not work.is_over]
        for work in works:
            work.is_stubborn = False
        await self.worker.close()
        for work in works:
            work.orders.put_nowait(vanish)
        while not all(work.is_over for work in works):
            await asyncio.sleep(0.001)
