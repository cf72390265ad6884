"""Runs an agent's own code off the gateway's event loop, so that code that blocks stops nobody else.

Coroutines share one event loop in a thread of its own; a plain function gets a thread per call. No thread can
be killed: a loop that stops answering is given up for new work, work it had not begun moves to a fresh one,
and what is abandoned but still runs stays counted until it ends. All threads are daemons.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

BEAT_S = 0.25
SILENT_BEATS = 4
"""A loop is silent when it left this many heartbeats in a row unanswered: about a second."""
GRACE_S = 1.0
"""How long abandoned work may take to end before it counts as stuck."""
CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How agent code ended: what it returned, or what it raised, be it `SystemExit` or `StopIteration`."""

    value: object = None
    error: BaseException | None = None


def _nothing() -> None:
    """What happens by default when work ends."""


class AgentThreads:
    """The threads of one agent; every method is called on the gateway's event loop.

    At most `max_jobs` pieces of counted work are to run at once: ask `has_room` first.
    """

    def __init__(self, name: str, max_jobs: int) -> None:
        self._name = name
        self._max_jobs = max_jobs
        self._gateway = _Mailbox(asyncio.get_running_loop())
        self._running: set[_Work] = set()
        self._counted = 0
        self._loops: set[_AgentLoop] = set()
        self._current: _AgentLoop | None = None
        self._watch = asyncio.create_task(self._watch_loops())

    @property
    def has_room(self) -> bool:
        """Whether one more piece of counted work may start; what is stuck takes up room."""
        return self._counted + self._idle_silent_loops() + self._left_in_pools() < self._max_jobs

    @property
    def stuck(self) -> int:
        """How many threads do not do what they were told: abandoned work that runs on, loops that are silent."""
        late = time.monotonic() - GRACE_S
        return (
            sum(work.abandoned_at is not None and work.abandoned_at < late for work in self._running)
            + sum(loop.is_silent for loop in self._loops)
            + self._left_in_pools(late)
        )

    async def run(
        self, begin: Callable[[], Awaitable[object]], *, counts: bool = True, on_end: Callable[[], None] = _nothing
    ) -> Outcome:
        """Await `begin()` on the agent's event loop; when cancelled, leave at once and cancel it there.

        `on_end` is called, on the gateway's loop, when the code has really ended or is sure never to begin.
        """
        work = _Work(counts, on_end)
        self._place(work, begin)
        return await self._wait(work)

    async def call(
        self, function: Callable[[], object], *, counts: bool = True, on_end: Callable[[], None] = _nothing
    ) -> Outcome:
        """Call `function` in a thread of its own; when cancelled, leave at once and let it run out."""
        work = _Work(counts, on_end)
        thread = threading.Thread(target=self._call, args=(function, work), name=f"agent-{self._name}", daemon=True)
        thread.start()
        return await self._wait(work)

    async def close(self) -> None:
        """End every loop, waiting a moment for those that still answer."""
        self._watch.cancel()
        for loop in self._loops:
            loop.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for loop in self._loops:
                    await loop.ended.wait()

    async def _wait(self, work: _Work) -> Outcome:
        self._running.add(work)
        self._counted += work.counts
        try:
            return await work.ended
        except asyncio.CancelledError:
            self._abandon(work)
            raise

    def _abandon(self, work: _Work) -> None:
        work.abandoned_at = time.monotonic()
        if work.start is None:
            return
        if work.start.claim():
            self._end(work, Outcome())
        else:
            work.start.loop.post(work.start.cancel)

    def _end(self, work: _Work, outcome: Outcome) -> None:
        self._running.discard(work)
        self._counted -= work.counts
        # Work and start name each other; left so, both would wait for the collector.
        work.start = None
        work.on_end()
        if not work.ended.done():
            work.ended.set_result(outcome)

    def _call(self, function: Callable[[], object], work: _Work) -> None:
        try:
            outcome = Outcome(function())
        except BaseException as error:  # the agent's own, whatever it is: it ends the job, not the process
            outcome = Outcome(error=error)
        self._gateway.post(partial(self._end, work, outcome))

    def _place(self, work: _Work, begin: Callable[[], Awaitable[object]]) -> None:
        if self._current is None:
            self._current = _AgentLoop(self._name, self._max_jobs, self._gateway)
            self._loops.add(self._current)
        loop = self._current
        work.start = _Start(loop, begin, work, lambda outcome: loop.answers.post(partial(self._end, work, outcome)))
        loop.requests.post(work.start.begin)

    async def _watch_loops(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for loop in tuple(self._loops):
                loop.beat()
                if loop.is_silent:
                    self._give_up(loop)
                elif loop is not self._current and not self._works_at(loop):
                    loop.stop()
                    self._loops.discard(loop)

    def _give_up(self, loop: _AgentLoop) -> None:
        """Send new work elsewhere, and the work this loop has not begun too."""
        if self._current is loop:
            self._current = None
        for work in self._works_at(loop):
            if work.start is not None and work.start.claim():
                self._place(work, work.start.work)

    def _works_at(self, loop: _AgentLoop) -> list[_Work]:
        return [work for work in self._running if work.start is not None and work.start.loop is loop]

    def _left_in_pools(self, before: float = float("inf")) -> int:
        """Calls that jobs gave to `asyncio.to_thread` and that run on though the job was abandoned by that time."""
        owners = [owner for loop in self._loops for owner in loop.pool.owners()]
        return sum(
            owner.abandoned_at is not None and owner.abandoned_at < before and owner not in self._running
            for owner in owners
        )

    def _idle_silent_loops(self) -> int:
        """Loops blocked by something a job left behind: they hold a thread without any job of theirs."""
        return sum(1 for loop in self._loops if loop.is_silent and not self._works_at(loop))


class _Work:
    """One piece of agent code from its start to its real end; changed on the gateway's loop only."""

    __slots__ = ("abandoned_at", "counts", "ended", "on_end", "start")

    def __init__(self, counts: bool, on_end: Callable[[], None]) -> None:
        self.counts = counts
        self.on_end = on_end
        self.ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.abandoned_at: float | None = None
        self.start: _Start | None = None


class _Start:
    """Work handed to one agent loop, which begins it unless the gateway takes it back first."""

    __slots__ = ("_claimed", "_owner", "_task", "_tell", "loop", "work")

    def __init__(
        self,
        loop: _AgentLoop,
        work: Callable[[], Awaitable[object]],
        owner: _Work,
        tell: Callable[[Outcome], None],
    ) -> None:
        self.loop = loop
        self.work = work
        self._owner = owner
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """Return True to the first caller only, on whichever thread."""
        return self._claimed.acquire(blocking=False)

    def begin(self) -> None:
        if self.claim():
            self._task = self.loop.create_task(self._main())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _main(self) -> None:
        _job.set(self._owner)
        try:
            outcome = Outcome(await self.work())
        except BaseException as error:  # the agent's own, whatever it is: it ends the job, not the loop
            outcome = Outcome(error=error)
        tell, self._task = self._tell, None
        del self._tell, self.work
        tell(outcome)


_job: ContextVar[_Work | None] = ContextVar("the job whose code runs", default=None)


class _Pool(ThreadPoolExecutor):
    """The threads behind an agent's `asyncio.to_thread`; knows which job each running call belongs to."""

    def __init__(self, max_threads: int, name: str) -> None:
        super().__init__(max_threads, thread_name_prefix=name)
        self._calls: set[tuple[int, _Work]] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        work = _job.get()

        def call() -> T:
            if work is None:
                return fn(*args, **kwargs)
            mark = (threading.get_ident(), work)
            self._calls.add(mark)
            try:
                return fn(*args, **kwargs)
            finally:
                self._calls.discard(mark)

        return super().submit(call)

    def owners(self) -> list[_Work]:
        """Return the job of each call that runs."""
        return [work for _, work in tuple(self._calls)]


class _Mailbox:
    """Hands callbacks to an event loop from any thread, waking it once for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[Callable[[], object]] = deque()
        self._is_awake = False

    def post(self, callback: Callable[[], object]) -> None:
        """Hand over one callback and wake the loop."""
        self._posted.append(callback)
        self.wake()

    def leave(self, callback: Callable[[], object]) -> None:
        """Hand over one callback; whoever leaves one wakes the loop later."""
        self._posted.append(callback)

    def wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            # A closed loop has nobody left who waits for this.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Before the queue is emptied, so that a later callback wakes the loop again.
        self._is_awake = False
        while self._posted:
            self._loop.call_soon(self._posted.popleft())


class _Sender:
    """Posts from one event loop to another's mailbox, waking it once per turn of the sending loop.

    Each wake lets the other thread take over in the middle of a turn, which costs more than the work itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, mailbox: _Mailbox) -> None:
        self._loop = loop
        self._mailbox = mailbox
        self._will_wake = False

    def post(self, callback: Callable[[], object]) -> None:
        self._mailbox.leave(callback)
        if not self._will_wake:
            self._will_wake = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._will_wake = False
        self._mailbox.wake()


class _AgentLoop:
    """An event loop in a daemon thread of its own."""

    def __init__(self, name: str, max_threads: int, gateway: _Mailbox) -> None:
        self.ended = asyncio.Event()
        self._gateway = gateway
        # Of the gateway's own kind, which is the fastest that is installed.
        self._loop = type(asyncio.get_running_loop())()
        self._loop.set_exception_handler(_report)
        # For `asyncio.to_thread` in agents; the pool that asyncio would make is sized by the machine's cores.
        self.pool = _Pool(max_threads, f"agent-{name}-pool")
        self._loop.set_default_executor(self.pool)
        self._mailbox = _Mailbox(self._loop)
        self.requests = _Sender(asyncio.get_running_loop(), self._mailbox)
        self.answers = _Sender(self._loop, gateway)
        self._is_stopping = False
        self._is_asked = False
        self._missed = 0
        self._thread = threading.Thread(target=self._main, name=f"agent-{name}-loop", daemon=True)
        self._thread.start()

    @property
    def is_silent(self) -> bool:
        return self._missed >= SILENT_BEATS

    def post(self, callback: Callable[[], object]) -> None:
        self._mailbox.post(callback)

    def create_task(self, work: Any) -> asyncio.Task[None]:
        return self._loop.create_task(work)

    def beat(self) -> None:
        """Count a missed beat, or ask for the next one."""
        if self._is_asked:
            self._missed += 1
        else:
            self._missed = 0
            self._is_asked = True
            self._mailbox.post(self._answer)

    def stop(self) -> None:
        self._is_stopping = True
        self._mailbox.post(self._loop.stop)

    def _answer(self) -> None:
        self._is_asked = False

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_stopping:
            # A task of the agent's own that raises SystemExit must not end every other job's loop.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            self._loop.run_until_complete(_cancel_all())
        self._loop.close()
        self._gateway.post(self.ended.set)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_S)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Name what an agent's own background task raised by its type; asyncio would log its text."""
    error = context.get("exception")
    logging.getLogger(__name__).warning("an agent's background task raised %s", type(error).__name__)
