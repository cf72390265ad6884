"""Commits a task's moves: each with its event, in one step, against the version it was read at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..store import NewEvent, TaskChange, TaskIndex, TaskRow, Tasks
from ..wire.signing import issue_nonce
from ..wire.task import KEPT_EVENTS, State, Task, event

FIRST_EVENT_DELAY_S = 1.0
"""No event leaves sooner after the dispatch came, so that the 202 is there first (wire 7.3)."""


@dataclass(slots=True)
class TaskFile:
    """One task as somebody has it at hand: its row, read at a version, and what the record says."""

    row: TaskRow
    task: Task

    @classmethod
    def of(cls, row: TaskRow) -> TaskFile:
        return cls(row, Task.from_bytes(row.record))

    @property
    def is_waiting(self) -> bool:
        return self.task.state is State.INPUT_REQUIRED


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
        not_before=max(now, task.created_at + FIRST_EVENT_DELAY_S),
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

    async def commit(
        self, file: TaskFile, task: Task, *, epoch: int | None, keeps_lease: bool, is_ready: bool = False
    ) -> bool:
        """Write `task` in the place of what `file` holds; False when the task has moved on meanwhile.

        A task whose sequence did not grow is kept without an event. `file` holds what was written afterwards.
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
        if not await self._store.commit_task(change, now):
            return False
        if change.event is not None:
            self._on_event()
        file.row = replace(file.row, version=change.version + 1, record=change.record, index=change.index)
        file.task = task
        return True
