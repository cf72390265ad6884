"""Removes what the store no longer needs to keep, a small batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..errors import StoreUnavailable
from ..observe import Log, blame
from ..store import Operator

SWEEP_EVERY_S = 30.0
BATCH = 500
PAUSE_S = 0.05
"""Between two batches, so that a large backlog never crowds out the work."""


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
