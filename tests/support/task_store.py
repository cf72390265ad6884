"""Dispatches, changes and events as the suites for tasks and callbacks hand them to a store."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import count
from typing import TypeVar

import msgspec

from finch_gateway.store import (
    Admitted,
    Delivery,
    EventRow,
    HeldTask,
    NewEvent,
    Nonce,
    Store,
    TaskAdmission,
    TaskChange,
    TaskIndex,
    TaskRow,
)

NOW = float(int(time.time()))
LEASE_S = 30.0
LATER = NOW + LEASE_S + 1
CLAIM_S = 20.0
KEEP = NOW + 30 * 86_400
RECEIPT_KEEP = NOW + 365 * 86_400
LISTING = "report-writer"
HOST = "buyer.example"

QUEUED = TaskIndex("queued", is_ready=True, is_final=False, deadline=NOW + 600)
WORKING = TaskIndex("working", is_ready=False, is_final=False, deadline=NOW + 600)
ASKING = TaskIndex("input_required", is_ready=False, is_final=False, deadline=NOW + 600)
COMPLETED = TaskIndex("completed", is_ready=False, is_final=True, deadline=NOW + 600)
CANCELED = TaskIndex("canceled", is_ready=False, is_final=True, deadline=NOW + 600)

_serial = count()
T = TypeVar("T")


def replace(value: T, **changes: object) -> T:
    """Return the value with some fields changed, whatever kind of frozen value it is."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]


def fresh(kind: str) -> str:
    return f"{kind}-{next(_serial)}"


def nonce(value: str = "", **changes: object) -> Nonce:
    plain = Nonce("kid", value or fresh("nonce"), NOW + 301, fresh("op"))
    return replace(plain, **changes)


def event(sequence: int, **changes: object) -> NewEvent:
    """An event that is never dropped, due at once."""
    plain = NewEvent(sequence, b"event %d" % sequence, f"https://{HOST}/callback", "callback-kid", HOST, False, NOW)
    return replace(plain, **changes)


def progress(sequence: int, **changes: object) -> NewEvent:
    """An event that a newer one may replace."""
    return event(sequence, replaceable=True, **changes)


def admission(**changes: object) -> TaskAdmission:
    """A dispatch nobody has seen, without a callback, unless `changes` says otherwise."""
    op = str(changes.get("op") or fresh("op"))
    plain = TaskAdmission(
        task_id=fresh("task"),
        listing=LISTING,
        invocation_id=fresh("invocation"),
        key_id="kid",
        nonce=nonce(op=op),
        input_digest="digest-1",
        op=op,
        dispatch=b'{"input":{}}',
        record=b"record 1",
        index=QUEUED,
        event=None,
        receipt=fresh("receipt").encode(),
        max_queue=1_000,
        may_start=True,
        receipt_until=RECEIPT_KEEP,
        keep_until=KEEP,
    )
    return replace(plain, **changes)


def again(known: TaskAdmission, **changes: object) -> TaskAdmission:
    """The same dispatch as another instance would bring it once more."""
    return admission(invocation_id=known.invocation_id, listing=known.listing, **changes)


def change(row: TaskRow, index: TaskIndex = WORKING, **changes: object) -> TaskChange:
    """A change by whoever holds the row, or by an outsider where nobody does."""
    plain = TaskChange(
        task_id=row.task_id,
        version=row.version,
        epoch=None if row.lease_until is None else row.epoch,
        op=fresh("op"),
        record=fresh("record").encode(),
        index=index,
        event=None,
        keeps_lease=not index.is_final,
        keep_until=KEEP,
    )
    return replace(plain, **changes)


def held_of(row: TaskRow) -> HeldTask:
    return HeldTask(row.task_id, row.epoch)


async def admit(store: Store, now: float = NOW, **changes: object) -> TaskAdmission:
    """Bring a new dispatch and see it accepted."""
    one = admission(**changes)
    assert await store.admit_task(one, now) == Admitted(one.receipt, True)
    return one


async def row_of(store: Store, task_id: str, listing: str = LISTING) -> TaskRow:
    row = await store.read_task(task_id, listing, None, NOW)
    assert isinstance(row, TaskRow), row
    return row


async def lease(store: Store, now: float = NOW, listing: str = LISTING) -> TaskRow:
    row = await store.lease_task(listing, fresh("op"), LEASE_S, now)
    assert row is not None
    return row


async def running(store: Store, now: float = NOW, **changes: object) -> TaskRow:
    """A task that a worker holds; the only one ready of its listing."""
    task_id = (await admit(store, now, **changes)).task_id
    row = await lease(store, now, str(changes.get("listing", LISTING)))
    assert row.task_id == task_id
    return row


async def commit(
    store: Store, row: TaskRow, now: float = NOW, index: TaskIndex = WORKING, **changes: object
) -> TaskRow:
    """Write a change and return the row as it then stands."""
    assert await store.commit_task(change(row, index, **changes), now)
    return await row_of(store, row.task_id, row.listing)


async def events_of(store: Store, task_id: str | None = None) -> Sequence[EventRow]:
    return await store.list_events(task_id, None, 1_000)


async def sequences(store: Store, task_id: str) -> list[int]:
    return [one.sequence for one in await events_of(store, task_id)]


async def claim(store: Store, now: float = NOW, host: str = HOST, limit: int = 100) -> Sequence[Delivery]:
    return await store.claim_events(host, fresh("op"), CLAIM_S, limit, now)


async def claim_one(store: Store, now: float = NOW, host: str = HOST) -> Delivery:
    (delivery,) = await claim(store, now, host)
    return delivery


async def drop_over(store: Store, now: float) -> None:
    """Purge until nothing is over any more."""
    while await store.purge(now, 100):
        pass
