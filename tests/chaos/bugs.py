"""Three bugs that cost money elsewhere, as wrappers around a sound store: the harness must notice each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from finch_gateway.store import (
    Admitted,
    Delivered,
    Delivery,
    DeliveryEnd,
    NewEvent,
    Nonce,
    RetryAt,
    TaskAdmission,
    TaskChange,
    TaskRow,
)


class Wrapped:
    """The store, unless a subclass says otherwise."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class EventOutsideTransaction(Wrapped):
    """The change is committed alone; its event waits in the process's memory."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._owners: dict[str, tuple[str, str]] = {}
        self._outbox: list[tuple[Delivery, float]] = []
        self._claimed: set[tuple[str, int]] = set()

    async def admit_task(self, admission: TaskAdmission, now: float) -> Any:
        verdict = await self._inner.admit_task(replace(admission, event=None), now)
        self._owners[admission.task_id] = (admission.listing, admission.key_id)
        if verdict == Admitted(admission.receipt, True):
            self._keep(admission.task_id, admission.event, now)
        return verdict

    async def lease_task(self, listing: str, op: str, lease_s: float, now: float) -> TaskRow | None:
        row: TaskRow | None = await self._inner.lease_task(listing, op, lease_s, now)
        if row is not None:
            self._owners[row.task_id] = (row.listing, row.key_id)
        return row

    async def commit_task(self, change: TaskChange, now: float) -> bool:
        kept: bool = await self._inner.commit_task(replace(change, event=None), now)
        if kept:
            self._keep(change.task_id, change.event, now)
        return kept

    def _keep(self, task_id: str, event: NewEvent | None, now: float) -> None:
        if event is None:
            return
        listing, key_id = self._owners[task_id]
        made = Delivery(
            task_id=task_id,
            sequence=event.sequence,
            op="",
            listing=listing,
            key_id=key_id,
            body=event.body,
            url=event.url,
            callback_key_id=event.callback_key_id,
            host=event.host,
            attempts=0,
            created_at=now,
        )
        self._outbox.append((made, event.not_before))

    async def due_hosts(self, now: float) -> Sequence[str]:
        return sorted({made.host for made, due_at in self._outbox if due_at <= now})

    async def claim_events(self, host: str, op: str, claim_s: float, limit: int, now: float) -> Sequence[Delivery]:
        found: dict[str, Delivery] = {}
        for made, due_at in self._outbox:
            is_free = made.task_id not in {task_id for task_id, _ in self._claimed}
            if is_free and due_at <= now and made.host == host and len(found) < limit:
                found.setdefault(made.task_id, made)
        self._claimed |= {(made.task_id, made.sequence) for made in found.values()}
        return list(found.values())

    async def settle_event(self, delivery: Delivery, end: DeliveryEnd, now: float) -> bool:
        self._claimed.discard((delivery.task_id, delivery.sequence))
        if isinstance(end, RetryAt):
            again = replace(delivery, attempts=delivery.attempts + 1)
            self._outbox = [(again, end.at) if made is delivery else (made, at) for made, at in self._outbox]
        elif isinstance(end, Delivered):
            self._outbox = [(made, at) for made, at in self._outbox if made is not delivery]
        return True


class ReceiptBeforeCommit(Wrapped):
    """The 202 leaves at once; the task is written a little later."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._later: set[asyncio.Task[None]] = set()

    async def admit_task(self, admission: TaskAdmission, now: float) -> Any:
        task = asyncio.get_running_loop().create_task(self._write(admission, now))
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return Admitted(admission.receipt, True)

    async def read_task(self, task_id: str, listing: str, nonce: Nonce | None, now: float) -> Any:
        # Without a crash nobody notices.
        await asyncio.gather(*self._later)
        return await self._inner.read_task(task_id, listing, nonce, now)

    async def _write(self, admission: TaskAdmission, now: float) -> None:
        await asyncio.sleep(0.2)
        await self._inner.admit_task(admission, now)


class NoEpochCheck(Wrapped):
    """Whoever writes last wins, whether or not somebody else has taken the task over."""

    async def commit_task(self, change: TaskChange, now: float) -> bool:
        done: bool = await self._inner.commit_task(replace(change, epoch=None), now)
        return done


BUGS: dict[str, Callable[[Any], Any]] = {
    "event outside the transaction": EventOutsideTransaction,
    "202 before the commit": ReceiptBeforeCommit,
    "no epoch check": NoEpochCheck,
}
