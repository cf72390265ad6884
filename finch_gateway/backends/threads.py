"""Runs an agent's own code off the gateway's event loop, so that code that blocks stops nobody else.

Coroutines share one event loop in a thread of its own; a plain function gets a thread per call. No thread can
be killed: a loop that stops answering is given up for new work, work it had not begun moves to a fresh one,
and what is abandoned but still runs stays counted until it ends. All threads are daemons.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

from .agent_loop import CLOSE_S, AgentLoop, Outcome, Start, Work
from .mailbox import Mailbox

BEAT_S = 0.25
GRACE_S = 1.0
"""How long abandoned work may take to end before it counts as stuck."""


def _nothing() -> None:
    """What happens by default when work ends."""


class AgentThreads:
    """The threads of one agent; every method is called on the gateway's event loop.

    At most `max_jobs` pieces of counted work are to run at once: ask `has_room` first.
    """

    def __init__(self, name: str, max_jobs: int) -> None:
        self._name = name
        self._max_jobs = max_jobs
        self._gateway = Mailbox(asyncio.get_running_loop())
        self._running: set[Work] = set()
        self._counted = 0
        self._loops: set[AgentLoop] = set()
        self._current: AgentLoop | None = None
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
        work = Work(counts, on_end)
        self._place(work, begin)
        return await self._wait(work)

    async def call(
        self, function: Callable[[], object], *, counts: bool = True, on_end: Callable[[], None] = _nothing
    ) -> Outcome:
        """Call `function` in a thread of its own; when cancelled, leave at once and let it run out."""
        work = Work(counts, on_end)
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

    async def _wait(self, work: Work) -> Outcome:
        self._running.add(work)
        self._counted += work.counts
        try:
            return await work.ended
        except asyncio.CancelledError:
            self._abandon(work)
            raise

    def _abandon(self, work: Work) -> None:
        work.abandoned_at = time.monotonic()
        if work.start is None:
            return
        if work.start.claim():
            self._end(work, Outcome())
        else:
            work.start.loop.post(work.start.cancel)

    def _end(self, work: Work, outcome: Outcome) -> None:
        self._running.discard(work)
        self._counted -= work.counts
        # Work and start name each other; left so, both would wait for the collector.
        work.start = None
        work.on_end()
        if not work.ended.done():
            work.ended.set_result(outcome)

    def _call(self, function: Callable[[], object], work: Work) -> None:
        try:
            outcome = Outcome(function())
        except BaseException as error:  # the agent's own, whatever it is: it ends the job, not the process
            outcome = Outcome(error=error)
        self._gateway.post(partial(self._end, work, outcome))

    def _place(self, work: Work, begin: Callable[[], Awaitable[object]]) -> None:
        if self._current is None:
            self._current = AgentLoop(self._name, self._max_jobs, self._gateway)
            self._loops.add(self._current)
        loop = self._current
        work.start = Start(loop, begin, work, lambda outcome: loop.answers.post(partial(self._end, work, outcome)))
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

    def _give_up(self, loop: AgentLoop) -> None:
        """Send new work elsewhere, and the work this loop has not begun too."""
        if self._current is loop:
            self._current = None
        for work in self._works_at(loop):
            if work.start is not None and work.start.claim():
                self._place(work, work.start.work)

    def _works_at(self, loop: AgentLoop) -> list[Work]:
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
