"""One run: a process stopped at one point, another that goes on, and what must hold at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import sqlite3
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.gateway import Provider
from support.receiver import Receiver

from chaos.errands import Platform, until
from chaos.points import ARRIVED, Point
from chaos.process import REACH_LIMIT_S, Life
from finch_gateway.app import open_store
from finch_gateway.config import load
from finch_gateway.store import Store

AGENT = Path(__file__).with_name("report_agent.py")
RECOVERY_LIMIT_S = 30.0
KEPT_AFTER_END_S = 2.0


@dataclass(slots=True)
class Verdict:
    """How a run went: seconds from the kill until everything had ended and been told, and what was broken."""

    point: str
    store: str
    recovery_s: float = 0
    violations: list[str] = field(default_factory=list)


def provider_in(folder: Path, redis_url: str = "") -> Provider:
    """Return a provider whose leases are short; on SQLite unless a server is given."""
    provider = Provider(folder, server={"grace_s": 1}, store={"lease_s": 3})
    provider.listing = {"modes": ["task"]}
    if redis_url:
        provider.store_url = redis_url
        provider.store = {"lease_s": 3, "namespace": uuid.uuid4().hex}
    provider.write()
    shutil.copy(AGENT, folder / "agent.py")
    return provider


class Run:
    """Plays one point on one provider; `turn` counts the runs of the same point."""

    def __init__(
        self,
        point: Point,
        provider: Provider,
        *,
        turn: int = 0,
        seed: int = 0,
        bug: str = "",
        end_limit_s: float = 75,
    ) -> None:
        self._point = point
        self._provider = provider
        self._bug = bug
        self._end_limit_s = end_limit_s
        self._turn = turn
        self._chance = random.Random(f"{seed} {point.name} {turn}")
        self._receiver = Receiver(provider.secret, self._receive)
        self._platform = Platform(provider, self._receiver, may_purge=point.purges)
        self._lives: list[Life] = []
        self._arrivals_left = 0
        self._arrived = asyncio.Event()

    async def play(self) -> Verdict:
        """Return how it went; whatever happens, no process is left."""
        store = "redis" if self._provider.store_url.startswith("redis") else "sqlite"
        verdict = Verdict(self._point.name, store)
        async with self._receiver.listening():
            try:
                await self._play(verdict)
            except TimeoutError:
                verdict.violations.append("the point was not reached")
            except Exception as error:
                verdict.violations.append(f"{type(error).__name__}: {error}")
            finally:
                for life in self._lives:
                    life.kill()
        self._platform.judge()
        verdict.violations += self._platform.violations
        return verdict

    async def _play(self, verdict: Verdict) -> None:
        count = self._turn % self._point.turns + 1
        gate = f"{self._point.gate}@{count}"
        if self._point.gate == ARRIVED:
            self._arrivals_left, gate = count, ""
        is_early = not (self._point.first or self._point.purges)
        life = await self._begin(self._point.first or (gate if is_early else ""))
        if self._point.purges:
            await self._end_one()
            life.arm(gate)
        for kind in self._point.errands:
            self._platform.want(kind)
        driving = asyncio.create_task(self._platform.drive())
        try:
            if self._point.first:
                await life.reached()
                life.kill()
                life = await self._begin(gate)
            broken_at = await self._break(life)
            self._platform.is_last_life = True
            await self._recover(driving, broken_at, verdict)
        finally:
            await _cancelled(driving)

    async def _end_one(self) -> None:
        """Have a task that ended and is soon forgotten."""
        brief = self._platform.want("brief")
        driving = asyncio.create_task(self._platform.drive())
        try:
            await until(lambda: self._platform.is_done(brief), REACH_LIMIT_S)
        finally:
            await _cancelled(driving)

    async def _begin(self, armed: str = "") -> Life:
        # What the last life ends is kept, and its events with it.
        retention_s = KEPT_AFTER_END_S if self._point.purges and not self._lives else 0
        life = await Life.begin(self._provider, armed=armed, bug=self._bug, retention_s=retention_s)
        self._lives.append(life)
        self._platform.meet(life.finch)
        return life

    async def _break(self, life: Life) -> float:
        """Do to the process what the point says; return when."""
        if self._point.how == "calm":
            return time.monotonic()
        if self._point.terminates:
            await until(lambda: self._platform.errands[1].status == "working", REACH_LIMIT_S)
            life.signal(signal.SIGTERM)
        if self._point.gate == ARRIVED:
            await asyncio.wait_for(self._arrived.wait(), REACH_LIMIT_S)
        else:
            await life.reached()
        if self._point.how == "thaw":
            return await self._freeze(life)
        if self._point.how == "during":
            life.go()
            await asyncio.sleep(self._chance.uniform(0, 0.01))
        life.kill()
        broken_at = time.monotonic()
        await self._begin()
        return broken_at

    async def _freeze(self, life: Life) -> float:
        """Freeze it past its lease; thaw it, with the write it was about to make, while another has the task."""
        life.signal(signal.SIGSTOP)
        while self._file_is_locked():
            # Frozen in mid-commit it keeps every process from the file: what SQLite is, and not what is tried here.
            life.signal(signal.SIGCONT)
            await asyncio.sleep(0.02)
            life.signal(signal.SIGSTOP)
        broken_at = time.monotonic()
        await self._begin()
        report = self._platform.errands[0]
        try:
            await until(lambda: self._platform.attempts_begun(report.task_id) > 1, REACH_LIMIT_S)
        finally:
            life.go()
            life.signal(signal.SIGCONT)
        return broken_at

    def _file_is_locked(self) -> bool:
        if not self._provider.store_url.startswith("sqlite"):
            return False
        with contextlib.closing(sqlite3.connect(self._provider.folder / "finch.db", timeout=0.1)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False

    async def _recover(self, driving: asyncio.Task[None], broken_at: float, verdict: Verdict) -> None:
        # Not `wait_for`, which would wait for the cancelled one without a limit.
        await asyncio.wait({driving}, timeout=self._end_limit_s)
        if not driving.done():
            states = {errand.name: errand.status or "never accepted" for errand in self._platform.errands}
            verdict.violations.append(f"not everything ran to its end: {states}")
            return
        driving.result()
        async with self._opened() as store:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._end_limit_s):
                    while await store.list_events(None, None, 10):
                        await asyncio.sleep(0.05)
            verdict.recovery_s = time.monotonic() - broken_at
            await self._count(store, verdict)
        if verdict.recovery_s > RECOVERY_LIMIT_S:
            verdict.violations.append(f"recovered after {verdict.recovery_s:.1f} s only")

    async def _count(self, store: Store, verdict: Verdict) -> None:
        """One task for each invocation, none open, no event left."""
        rows = await store.list_tasks(None, None, 1_000)
        counts = Counter(row.invocation_id for row in rows)
        for errand in self._platform.errands:
            expected = {0, 1} if self._point.purges else {1}
            if counts[errand.envelope["invocation_id"]] not in expected:
                verdict.violations.append(f"{errand.name}: {counts} tasks in the store")
        if still_open := [row.task_id for row in rows if not row.index.is_final]:
            verdict.violations.append(f"tasks still open: {still_open}")
        if left := await store.list_events(None, None, 10):
            verdict.violations.append(f"events still in the outbox: {left}")

    @contextlib.asynccontextmanager
    async def _opened(self) -> Any:
        store = open_store(load(self._provider.folder / "finch.toml", self._provider.environ()).store)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    def _receive(self, body: dict[str, Any]) -> int | None:
        """Take an event; the one that is to be under way at the kill is left without an answer."""
        if self._arrivals_left:
            self._arrivals_left -= 1
            if not self._arrivals_left:
                self._arrived.set()
                return None
        return 204


async def _cancelled(task: asyncio.Task[None]) -> None:
    # More than once: in Python 3.11 `wait_for` loses a cancellation that comes together with its result.
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.2)
