"""Commits a task's moves: each with its event, in one step, against the version it was read at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from ..store import NewEvent, TaskChange, TaskIndex, TaskRow, Tasks
from ..wire.signing import issue_nonce
from ..wire.task import KEPT_EVENTS, State, Task, event, stand_in

FIRST_EVENT_DELAY_S = 1.0
"""No event leaves sooner after the dispatch came, so that the 202 is there first (wire 7.3)."""


@dataclass(slots=True)
class TaskFile:
    """One task as somebody has it at hand: its row, read at a version, and what the record says.

    A record that cannot be read is stood in for by what the index knows, so that the task can still be ended.
    """

    row: TaskRow
    task: Task
    is_readable: bool = True

    @classmethod
    def of(cls, row: TaskRow) -> TaskFile:
        try:
            return cls(row, Task.from_bytes(row.record))
        except (msgspec.DecodeError, ValueError):
            return cls(row, stand_in(row.task_id, row.invocation_id, row.index.state, row.version), is_readable=False)

    @property
    def is_waiting(self) -> bool:
        return self.task.state is State.INPUT_REQUIRED


@dataclass(frozen=True, slots=True)
class Move:
    """A change on its way to the store: made once, so that asking again is recognised as the same."""

    change: TaskChange
    task: Task


def event_of(task: Task, now: float) -> NewEvent | None:
    """Return the event that tells of the task's newest move; None where nobody is to be told."""
    if task.receiver is None:
        return None
    return NewEvent(
        sequence=task.sequence,
        body=event(task),
        url=task.receiver.url,
        callback_key_id=task.receiver.callback_key_id,
        host=task.receiver.host,
        replaceable=task.state not in KEPT_EVENTS,
        # The earlier of the two, so that a clock that was set back holds nothing up.
        not_before=max(now, min(now, task.created_at) + FIRST_EVENT_DELAY_S),
    )


def index_of(task: Task, deadline: float, *, is_ready: bool) -> TaskIndex:
    """Return what the store may look at of a task."""
    return TaskIndex(task.state.value, is_ready, task.is_final, deadline)


class Desk:
    """Writes moves; one desk serves a process. `on_event` is called when an event was written."""

    def __init__(
        self, store: Tasks, clock: Callable[[], float], retention_s: float, on_event: Callable[[], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_s = retention_s
        self._on_event = on_event

    def move(self, file: TaskFile, task: Task, *, epoch: int | None, keeps_lease: bool, is_ready: bool = False) -> Move:
        """Return the move from what `file` holds to `task`; one whose sequence did not grow makes no event.

        Raises `ValueError` where the task cannot be written as JSON.
        """
        now = self._clock()
        moved = task.sequence > file.task.sequence
        change = TaskChange(
            task_id=task.id,
            version=file.row.version,
            epoch=epoch,
            op=issue_nonce(),
            record=task.to_bytes(),
            index=index_of(task, file.row.index.deadline, is_ready=is_ready),
            event=event_of(task, now) if moved else None,
            keeps_lease=keeps_lease,
            keep_until=now + self._retention_s,
        )
        return Move(change, task)

    async def make(self, file: TaskFile, move: Move) -> bool:
        """Write a move; False when the task has moved on meanwhile. `file` holds what was written afterwards.

        After `StoreUnavailable` the move may have been written or not: make the same one again.
        """
        if not await self._store.commit_task(move.change, self._clock()):
            return False
        if move.change.event is not None:
            self._on_event()
        file.row = replace(
            file.row, version=move.change.version + 1, record=move.change.record, index=move.change.index
        )
        file.task = move.task
        return True

    async def commit(
        self, file: TaskFile, task: Task, *, epoch: int | None, keeps_lease: bool, is_ready: bool = False
    ) -> bool:
        """Write `task` in the place of what `file` holds; False when the task has moved on meanwhile."""
        return await self.make(file, self.move(file, task, epoch=epoch, keeps_lease=keeps_lease, is_ready=is_ready))
