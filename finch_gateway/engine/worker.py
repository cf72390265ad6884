"""Takes tasks that are ready, runs them on the agent, and moves them on until each has its one end (wire 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ..errors import StoreUnavailable
from ..observe import Log, blame
from ..store import HeldTask, TaskRow, Tasks
from ..wire.signing import issue_nonce
from .agents import ListedAgent
from .desk import Desk
from .performing import Interrupted
from .task_run import TaskRun

LOOK_EVERY_S = 0.5
"""How often other instances' work is noticed: tasks to take, tasks that were ended (wire 6.5: within a second)."""

BEATS_PER_LEASE = 5


class Worker:
    """Runs the tasks of every listing of this process, each within its listing's `max_running_tasks`."""

    def __init__(
        self, store: Tasks, desk: Desk, agents: list[ListedAgent], log: Log, clock: Callable[[], float], lease_s: float
    ) -> None:
        self._store = store
        self._desk = desk
        self._agents = agents
        self._log = log
        self._clock = clock
        self._lease_s = lease_s
        self._runs: dict[str, TaskRun] = {}
        self._renewed_at = clock()
        self._wake = {agent.listing.name: asyncio.Event() for agent in agents}
        # Kept until it is answered: asked again, it finds the task it may have leased when the store went away.
        self._lease_op = {agent.listing.name: issue_nonce() for agent in agents}
        # The loop itself keeps only weak references to its tasks.
        self._loops: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._taking: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self) -> None:
        """Begin to take tasks; call once, on the running loop."""
        for agent in self._agents:
            if set(agent.listing.modes) - {"conversation_turn"}:
                self._begin(self._take_forever(agent), self._taking)
        self._begin(self._look_after_leases(), self._loops)

    def wake(self, listing: str) -> None:
        """Look for a task of this listing at once."""
        self._wake[listing].set()

    def end(self, task_id: str) -> None:
        """Stop a task's agent, because the task has ended."""
        if run := self._runs.get(task_id):
            run.stop(Interrupted.LOST)

    async def drain(self, grace_s: float) -> None:
        """Take no more, let running tasks end within `grace_s` seconds, give the others back (wire 6.8)."""
        self._stopping = True
        for wake in self._wake.values():
            wake.set()
        if self._taking:
            # A lease that is under way still comes: its task has to be given back too.
            await asyncio.wait(self._taking, timeout=LOOK_EVERY_S * 4)
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        for run in list(self._runs.values()):
            run.stop(Interrupted.DRAIN)
        if self._running:
            await asyncio.wait(self._running, timeout=LOOK_EVERY_S * 4)

    async def close(self) -> None:
        """Stop every loop."""
        self._stopping = True
        tasks = [*self._loops, *self._taking, *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_forever(self, agent: ListedAgent) -> None:
        wake = self._wake[agent.listing.name]
        is_away = False
        while not self._stopping:
            wake.clear()
            try:
                is_away, was_away = False, is_away
                if await self._take(agent):
                    continue
            except StoreUnavailable:
                is_away = True
                if not was_away:
                    self._log.warning("worker.store_away", listing=agent.listing.name)
            except Exception as error:
                # Whatever it is, the listing's tasks must go on being taken.
                self._log.error("worker.failed", listing=agent.listing.name, **blame(error))
            try:
                await asyncio.wait_for(wake.wait(), LOOK_EVERY_S)
            except TimeoutError:
                continue

    async def _take(self, agent: ListedAgent) -> bool:
        """Take one task, if there is room and one is ready."""
        if agent.running_tasks >= agent.listing.max_running_tasks:
            return False
        if self._clock() - self._renewed_at >= self._lease_s / 2:
            # After an outage or a jump of the clock our own leases may be over: no task of ours is up for taking.
            await self._renew()
        name = agent.listing.name
        row = await self._store.lease_task(name, self._lease_op[name], self._lease_s, self._clock())
        if row is None:
            return False
        self._lease_op[name] = issue_nonce()
        run = self._runs.get(row.task_id)
        if run is None or not run.adopt(row):
            agent.running_tasks += 1
            self._begin(self._run(agent, row), self._running)
        return True

    async def _run(self, agent: ListedAgent, row: TaskRow) -> None:
        def leave() -> None:
            agent.running_tasks -= 1
            self.wake(agent.listing.name)

        run = TaskRun(agent, row, self._store, self._desk, self._log, self._clock, leave)
        self._runs[row.task_id] = run
        if self._stopping:
            run.stop(Interrupted.DRAIN)
        try:
            await run.run()
        except Exception as error:
            # The lease ends by itself and the task is taken again; it is not lost.
            self._log.error("task.run_failed", merchant_task_id=row.task_id, listing=row.listing, **blame(error))
        finally:
            if self._runs.get(row.task_id) is run:
                del self._runs[row.task_id]
            if not run.agent_began:
                leave()

    async def _look_after_leases(self) -> None:
        """Notice what others ended, and keep the leases of the rest alive."""
        renew_every_s = self._lease_s / BEATS_PER_LEASE
        while True:
            await asyncio.sleep(min(LOOK_EVERY_S, renew_every_s))
            try:
                if self._clock() - self._renewed_at >= renew_every_s:
                    await self._renew()
                elif held := self._held():
                    self._stop_lost(await self._store.lost_tasks(held))
            except StoreUnavailable:
                continue
            except Exception as error:
                # Whatever it is, the leases must go on being looked after.
                self._log.error("lease.renewal_failed", **blame(error))

    async def _renew(self) -> None:
        now = self._clock()
        if held := self._held():
            self._stop_lost(await self._store.renew_tasks(held, now + self._lease_s, now))
        self._renewed_at = now

    def _held(self) -> list[HeldTask]:
        return [HeldTask(run.row.task_id, run.row.epoch) for run in self._runs.values()]

    def _stop_lost(self, lost: Sequence[HeldTask]) -> None:
        for task in lost:
            run = self._runs.get(task.task_id)
            if run is not None and run.row.epoch == task.epoch:
                run.stop(Interrupted.LOST)

    def _begin(self, work: Coroutine[Any, Any, None], kept: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        kept.add(task)
        task.add_done_callback(kept.discard)
