"""A gateway process that says when it reaches a point and waits there: every seam is wrapped from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import types
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos.bugs import BUGS
from finch_gateway import app
from finch_gateway.backend import Backend
from finch_gateway.engine import sweeper
from finch_gateway.http import GuardedClient, HttpHead
from finch_gateway.job import Job, NeedInput, Reply
from finch_gateway.listing import load_all
from finch_gateway.observe import Log
from finch_gateway.outbound import callbacks
from finch_gateway.server import bind, run, serve
from finch_gateway.store import (
    AdmissionVerdict,
    Delivery,
    DeliveryEnd,
    HeldTask,
    Nonce,
    Replayed,
    TaskAdmission,
    TaskChange,
    TaskRow,
)
from finch_gateway.wire.task import State, Task

_path: ContextVar[str] = ContextVar("path", default="")
"""The path of the request that a step belongs to."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the parent wants; descriptors are the pipes' ends of this process."""

    config: str
    announce: int
    commands: int
    armed: str
    bug: str
    retention_s: float


class Gates:
    """Lets everything pass except at the armed point: that is announced, and waits for the parent.

    A point is `name` or `name@n`, its n-th time.
    """

    def __init__(self, announce: int, commands: int, armed: str) -> None:
        self._announce = announce
        self._commands = commands
        self._go = asyncio.Event()
        self._unread = b""
        self.arm(armed)

    def arm(self, point: str) -> None:
        self.armed, _, count = point.partition("@")
        self._left = int(count or 1)

    def listen(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self._commands, self._obey)

    async def reach(self, point: str) -> None:
        if point != self.armed:
            return
        self._left -= 1
        if self._left:
            return
        self.armed = ""
        os.write(self._announce, point.encode() + b"\n")
        await self._go.wait()

    @contextlib.asynccontextmanager
    async def around(self, name: str) -> AsyncIterator[None]:
        await self.reach(f"{name}:before")
        yield
        await self.reach(f"{name}:after")

    async def reach_from_agent(self, point: str) -> None:
        """Reach a point from the agent's own event loop."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.reach(point), self.loop))

    def _obey(self) -> None:
        *lines, self._unread = (self._unread + os.read(self._commands, 4096)).split(b"\n")
        for line in lines:
            command, _, point = line.decode().partition(" ")
            if command == "go":
                self._go.set()
            else:
                self.arm(point)


class GatedStore:
    """The product's store with gates around its steps."""

    def __init__(self, inner: Any, gates: Gates) -> None:
        self._inner = inner
        self._gates = gates
        self._tasks: dict[str, Task] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def admit_task(self, admission: TaskAdmission, now: float) -> AdmissionVerdict:
        async with self._gates.around("admit"):
            verdict: AdmissionVerdict = await self._inner.admit_task(admission, now)
        return verdict

    async def read_task(self, task_id: str, listing: str, nonce: Nonce | None, now: float) -> TaskRow | Replayed | None:
        row: TaskRow | Replayed | None = await self._inner.read_task(task_id, listing, nonce, now)
        if isinstance(row, TaskRow):
            self._see(row)
        if nonce is not None and _path.get().endswith("/messages"):
            await self._gates.reach("nonce:after")
        return row

    async def lease_task(self, listing: str, op: str, lease_s: float, now: float) -> TaskRow | None:
        name = await self._kind_of_lease(listing, now)
        if not name:
            row: TaskRow | None = await self._inner.lease_task(listing, op, lease_s, now)
        else:
            async with self._gates.around(name):
                row = await self._inner.lease_task(listing, op, lease_s, now)
        if row is not None:
            self._see(row)
        return row

    async def _kind_of_lease(self, listing: str, now: float) -> str:
        """Say what a lease would take now; looked up only where it matters."""
        if not self._gates.armed.startswith(("lease", "take-over")):
            return ""
        rows = await self._inner.list_tasks(listing, True, 100)
        if any(row.index.is_ready for row in rows):
            return "lease"
        return "take-over" if any(row.lease_until is not None and row.lease_until <= now for row in rows) else ""

    async def renew_tasks(self, held: Sequence[HeldTask], lease_until: float, now: float) -> Sequence[HeldTask]:
        async with self._gates.around("renew"):
            lost: Sequence[HeldTask] = await self._inner.renew_tasks(held, lease_until, now)
        return lost

    async def release_task(self, held: HeldTask, now: float) -> bool:
        async with self._gates.around("release"):
            done: bool = await self._inner.release_task(held, now)
        return done

    async def commit_task(self, change: TaskChange, now: float) -> bool:
        after = Task.from_bytes(change.record)
        async with self._gates.around(kind_of(self._tasks.get(change.task_id), after)):
            kept: bool = await self._inner.commit_task(change, now)
        if kept:
            self._tasks[change.task_id] = after
        return kept

    async def due_tasks(self, now: float, limit: int) -> Sequence[TaskRow]:
        rows: Sequence[TaskRow] = await self._inner.due_tasks(now, limit)
        for row in rows:
            self._see(row)
        if rows:
            await self._gates.reach("sweep:found")
        return rows

    async def purge(self, now: float, limit: int) -> int:
        await self._gates.reach("purge:before")
        removed: int = await self._inner.purge(now, limit)
        if removed:
            await self._gates.reach("purge:after")
        return removed

    async def claim_events(self, host: str, op: str, claim_s: float, limit: int, now: float) -> Sequence[Delivery]:
        await self._gates.reach("claim:before")
        found: Sequence[Delivery] = await self._inner.claim_events(host, op, claim_s, limit, now)
        if found:
            await self._gates.reach("claim:after")
        return found

    async def settle_event(self, delivery: Delivery, end: DeliveryEnd, now: float) -> bool:
        async with self._gates.around("settle"):
            done: bool = await self._inner.settle_event(delivery, end, now)
        return done

    def _see(self, row: TaskRow) -> None:
        self._tasks[row.task_id] = Task.from_bytes(row.record)


def kind_of(before: Task | None, after: Task) -> str:
    """Name a commit by what it does."""
    if after.is_final:
        return {State.CANCELED: "cancel", State.EXPIRED: "expire"}.get(after.state, "end")
    if after.state is State.INPUT_REQUIRED:
        return "ask"
    if before is None or before.state is State.QUEUED:
        return "start"
    if len(after.inputs) > len(before.inputs):
        return "answer"
    return "save" if after.sequence == before.sequence else "progress"


class GatedBackend(Backend):
    """The product's backend with a gate behind the agent's return."""

    def __init__(self, inner: Backend, gates: Gates) -> None:
        self._inner = inner
        self._gates = gates
        self.supports = inner.supports
        self.start = inner.start  # type: ignore[method-assign]
        self.health = inner.health  # type: ignore[method-assign]
        self.close = inner.close  # type: ignore[method-assign]

    async def run(self, job: Job) -> Reply | NeedInput:
        outcome = await self._inner.run(job)
        if isinstance(outcome, Reply) and job.text == "report":
            await self._gates.reach("return:after")
        return outcome


class GatedGateway:
    """The product's gateway with gates around the bytes of a 202 and before its drain."""

    def __init__(self, inner: app.Gateway, gates: Gates) -> None:
        self._inner = inner
        self._gates = gates
        self.stop = inner.stop

    async def start(self) -> None:
        self._gates.listen()
        await self._inner.start()

    async def drain(self) -> None:
        async with self._gates.around("drain"):
            await self._inner.drain()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        name = ""
        _path.set(scope["path"])

        async def gated(message: Any) -> None:
            nonlocal name
            if message["type"] == "http.response.start" and message["status"] == 202:
                name = "reply" if scope["path"].endswith("/invoke") else "taken"
                await self._gates.reach(f"{name}:before")
            await send(message)
            if name and message["type"] == "http.response.body" and not message.get("more_body"):
                await self._gates.reach(f"{name}:after")

        await self._inner(scope, receive, gated)


def gated_client(gates: Gates) -> type[GuardedClient]:
    class GatedClient(GuardedClient):
        async def send(self, *arguments: Any, **named: Any) -> HttpHead:
            await gates.reach("send:before")
            head = await super().send(*arguments, **named)
            if 200 <= head.status < 300:
                await gates.reach("accept:after")
            return head

    return GatedClient


def wrap(gates: Gates, bug: str) -> None:
    """Put the gates, and a seeded bug, around what the composition root builds."""
    open_store, new_backend = app.open_store, app.new_backend

    def gated_store(settings: Any) -> Any:
        store: Any = open_store(settings)
        return GatedStore(BUGS[bug](store) if bug else store, gates)

    app.open_store = gated_store
    app.new_backend = lambda backend_type: GatedBackend(new_backend(backend_type), gates)
    callbacks.GuardedClient = gated_client(gates)  # type: ignore[misc]
    sweeper.SWEEP_EVERY_S = 0.5
    gate = types.ModuleType("chaos_gate")
    gate.reach = gates.reach_from_agent  # type: ignore[attr-defined]
    sys.modules["chaos_gate"] = gate


def main() -> None:
    orders = Orders(**json.loads(sys.argv[1]))
    loaded = load_all(Path(orders.config), os.environ)
    config = loaded.config
    if orders.retention_s:
        days = orders.retention_s / app.DAY_S
        config = replace(config, store=replace(config.store, retention_days=days))
    log = Log(config.server.log_level)
    listener = bind(config.server)

    def on_ready() -> None:
        log.info("server.started", port=listener.getsockname()[1])

    async def served() -> None:
        gates = Gates(orders.announce, orders.commands, orders.armed)
        wrap(gates, orders.bug)
        gateway: Any = GatedGateway(app.Gateway(config, loaded.listings, log), gates)
        await serve(gateway, listener, config.server, log, on_ready=on_ready)

    run(served)


if __name__ == "__main__":
    main()
