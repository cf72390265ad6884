"""An agent's event loop in a thread of its own, and the work that is handed to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from .mailbox import Mailbox, Sender

P = ParamSpec("P")
T = TypeVar("T")

SILENT_BEATS = 4
"""A loop is silent when it left this many heartbeats in a row unanswered: about a second."""
CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How agent code ended: what it returned, or what it raised, be it `SystemExit` or `StopIteration`."""

    value: object = None
    error: BaseException | None = None


class Work:
    """One piece of agent code from its start to its real end; changed on the gateway's loop only."""

    __slots__ = ("abandoned_at", "counts", "ended", "on_end", "start")

    def __init__(self, counts: bool, on_end: Callable[[], None]) -> None:
        self.counts = counts
        self.on_end = on_end
        self.ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.abandoned_at: float | None = None
        self.start: Start | None = None


class Start:
    """Work handed to one agent loop, which begins it unless the gateway takes it back first."""

    __slots__ = ("_claimed", "_owner", "_task", "_tell", "loop", "work")

    def __init__(
        self,
        loop: AgentLoop,
        work: Callable[[], Awaitable[object]],
        owner: Work,
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


_job: ContextVar[Work | None] = ContextVar("the job whose code runs", default=None)


class Pool(ThreadPoolExecutor):
    """The threads behind an agent's `asyncio.to_thread`; knows which job each running call belongs to."""

    def __init__(self, max_threads: int, name: str) -> None:
        super().__init__(max_threads, thread_name_prefix=name)
        self._calls: set[tuple[int, Work]] = set()

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

    def owners(self) -> list[Work]:
        """Return the job of each call that runs."""
        return [work for _, work in tuple(self._calls)]


class AgentLoop:
    """An event loop in a daemon thread of its own."""

    def __init__(self, name: str, max_threads: int, gateway: Mailbox) -> None:
        self.ended = asyncio.Event()
        self._gateway = gateway
        # Of the gateway's own kind, which is the fastest that is installed.
        self._loop = type(asyncio.get_running_loop())()
        self._loop.set_exception_handler(_report)
        # For `asyncio.to_thread` in agents; the pool that asyncio would make is sized by the machine's cores.
        self.pool = Pool(max_threads, f"agent-{name}-pool")
        self._loop.set_default_executor(self.pool)
        self._mailbox = Mailbox(self._loop)
        self.requests = Sender(asyncio.get_running_loop(), self._mailbox)
        self.answers = Sender(self._loop, gateway)
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
