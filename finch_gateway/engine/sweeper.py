"""Ends what is overdue and removes what the store no longer needs to keep, a small batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..errors import StoreUnavailable
from ..observe import Log, blame
from ..store import Operator, TaskRow, Tasks
from ..wire.task import expire
from .desk import Desk, TaskFile

SWEEP_EVERY_S = 30.0
EXPIRE_EVERY_S = 1.0
BATCH = 500
PAUSE_S = 0.05
"""Between two batches, so that a large backlog never crowds out the work."""


async def expire_forever(
    store: Tasks, desk: Desk, log: Log, clock: Callable[[], float], on_ended: Callable[[str], None]
) -> None:
    """End tasks whose deadline has passed, also those that nobody polls or runs (wire 6.6), until cancelled."""
    is_away = False
    while True:
        await asyncio.sleep(EXPIRE_EVERY_S)
        try:
            is_away, was_away = False, is_away
            for row in await store.due_tasks(clock(), BATCH):
                await _expire(row, desk, log, on_ended)
        except StoreUnavailable as error:
            is_away = True
            if not was_away:
                log.warning("expiry.failed", **blame(error))


async def _expire(row: TaskRow, desk: Desk, log: Log, on_ended: Callable[[str], None]) -> None:
    ids = {
        "listing": row.listing,
        "invocation_id": row.invocation_id,
        "merchant_task_id": row.task_id,
        "key_id": row.key_id,
    }
    try:
        file = TaskFile.of(row)
        if await desk.commit(file, expire(file.task), epoch=None, keeps_lease=False):
            on_ended(row.task_id)
            log.info("task.ended", status="expired", sequence=file.task.sequence, **ids)
    except StoreUnavailable:
        raise
    except Exception as error:
        # One record that cannot be read must not keep the others from expiring.
        log.error("expiry.failed", **ids, **blame(error))


async def sweep_forever(store: Operator, log: Log, clock: Callable[[], float]) -> None:
    """Purge until cancelled; a failing store is tried again at the next round."""
    while True:
        await asyncio.sleep(SWEEP_EVERY_S)
        try:
            removed = await sweep(store, clock())
        except StoreUnavailable as error:
            log.warning("sweep.failed", **blame(error))
            continue
        if removed:
            log.debug("sweep.done", removed=removed)


async def sweep(store: Operator, now: float) -> int:
    """Remove everything whose time is over at `now`, in batches; return how many records went."""
    total = 0
    while True:
        removed = await store.purge(now, BATCH)
        total += removed
        if removed < BATCH:
            return total
        await asyncio.sleep(PAUSE_S)
