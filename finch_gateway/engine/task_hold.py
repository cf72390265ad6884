"""A worker's hold on one task: every change of it goes through here, one at a time, each to a certain outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..errors import StoreUnavailable
from ..store import TaskRow
from ..wire.task import Task
from .desk import Desk, Move, TaskFile
from .patience import STORE_RETRY_S
from .performing import Interrupted, Signal, give_signal

Change = Callable[[Task], Task]
"""What a task becomes, given what it is by then."""


class TaskHold:
    """Holds one leased task. `signal` is set when the task turns out to be another's."""

    def __init__(self, row: TaskRow, desk: Desk, signal: Signal) -> None:
        self._file = TaskFile.of(row)
        self._desk = desk
        self._signal = signal
        self._one_at_a_time = asyncio.Lock()
        # A move whose answer was lost. Until it is made again nobody knows the task's version.
        self._uncertain: Move | None = None
        self._is_finishing = False
        # The loop itself keeps only weak references to its tasks.
        self._commits: set[asyncio.Task[bool]] = set()

    @property
    def row(self) -> TaskRow:
        return self._file.row

    @property
    def task(self) -> Task:
        return self._file.task

    @property
    def is_readable(self) -> bool:
        return self._file.is_readable

    @property
    def is_over(self) -> bool:
        """Whether the hold is known to have ended."""
        return self._signal.done()

    def adopt(self, row: TaskRow) -> None:
        """Go on under the epoch of a new lease of the same task, taken by this very process."""
        self._file = TaskFile(row, self._file.task)

    async def commit(self, change: Change) -> bool:
        """Commit a change and keep the lease; False, and the signal is set, when the task is another's.

        Once begun the commit is carried through, whoever stops waiting for it. Raises `StoreUnavailable`; what
        then became of the change is found out before the next one.
        """
        commit = asyncio.get_running_loop().create_task(self._commit(change))
        self._commits.add(commit)
        commit.add_done_callback(self._done)
        return await asyncio.shield(commit)

    async def _commit(self, change: Change) -> bool:
        async with self._one_at_a_time:
            if self._is_finishing or self._signal.done():
                return False
            return await self._find_out() and await self._make(change, keeps_lease=True)

    async def finish(self, change: Change) -> bool:
        """Commit the change that ends the hold, however long the store takes; False when the task is another's."""
        self._is_finishing = True
        is_made = False
        async with self._one_at_a_time:
            while True:
                try:
                    # First what is uncertain: an earlier change, or this very one at an earlier try.
                    if not await self._find_out():
                        return False
                    if is_made:
                        return True
                    is_made = True
                    return await self._make(change, keeps_lease=False)
                except StoreUnavailable:
                    await asyncio.sleep(STORE_RETRY_S)

    async def _make(self, change: Change, *, keeps_lease: bool) -> bool:
        moved = change(self._file.task)
        self._uncertain = self._desk.move(self._file, moved, epoch=self._file.row.epoch, keeps_lease=keeps_lease)
        return await self._find_out()

    async def _find_out(self) -> bool:
        """Make the uncertain move, again if need be; False, and the signal is set, when that is not possible."""
        if self._uncertain is None:
            return True
        kept = await self._desk.make(self._file, self._uncertain)
        self._uncertain = None
        if not kept:
            give_signal(self._signal, Interrupted.LOST)
        return kept

    def _done(self, commit: asyncio.Task[bool]) -> None:
        self._commits.discard(commit)
        if not commit.cancelled():
            # Taken here, because whoever asked may be gone.
            commit.exception()
