"""What a store promises for tasks and generations: accepted once, held by one worker, one final change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .admission import Nonce
from .turns import Conflict, Free, Replayed


@dataclass(frozen=True, slots=True)
class TaskIndex:
    """What a store may look at of a task beside its opaque record.

    `state` is for operators. A task that `is_ready` waits for a worker; one that `is_final` never changes
    again. `deadline` is the instant at which an open task is due to expire.
    """

    state: str
    is_ready: bool
    is_final: bool
    deadline: float


@dataclass(frozen=True, slots=True)
class NewEvent:
    """A callback to deliver, written with the change that it tells of (wire 7.3, 7.4).

    `body` is sent as it is to `url`, signed under `callback_key_id`; `host` groups deliveries for limits. A
    `replaceable` one (progress) may be dropped for a newer one as long as nobody is delivering it. Not
    delivered before the instant `not_before`.
    """

    sequence: int
    body: bytes
    url: str
    callback_key_id: str
    host: str
    replaceable: bool
    not_before: float


@dataclass(frozen=True, slots=True)
class TaskAdmission:
    """A dispatch to accept. Clear index: task id, listing, invocation id, key id, `index`; blobs: the others.

    `dispatch` never changes; `record` changes with every commit. `receipt` is the body of the 202 and is kept
    until `receipt_until`, the rest until `keep_until` once the task has ended. With `may_start` false a
    dispatch that is not known is not accepted. `event` is None where the dispatch names no callback.
    """

    task_id: str
    listing: str
    invocation_id: str
    key_id: str
    nonce: Nonce | None
    input_digest: str
    op: str
    dispatch: bytes
    record: bytes
    index: TaskIndex
    event: NewEvent | None
    receipt: bytes
    max_queue: int
    may_start: bool
    receipt_until: float
    keep_until: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The task is durable, under exactly this receipt; `is_new` is False for a repeat of the same dispatch."""

    receipt: bytes
    is_new: bool


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The listing has `max_queue` tasks waiting for a worker; nothing was created."""


AdmissionVerdict: TypeAlias = Admitted | Conflict | Replayed | QueueFull | Free


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it stands. `version` grows with every commit; `epoch` with every holder, 0 before the first.

    `attempt` counts from 1 and grows when a lease ended without being dropped (a crash). `lease_until` is None
    while nobody holds the task.
    """

    task_id: str
    listing: str
    invocation_id: str
    key_id: str
    dispatch: bytes
    record: bytes
    index: TaskIndex
    version: int
    epoch: int
    attempt: int
    lease_until: float | None


@dataclass(frozen=True, slots=True)
class TaskChange:
    """A change of a task, compare-and-set on `version`, and on the holder where `epoch` is given.

    `op` names the change, so that its repeat after a lost answer recognises itself. `keeps_lease` false ends
    the holder's right, without counting a crash. `keep_until` is set from the final change on.
    """

    task_id: str
    version: int
    epoch: int | None
    op: str
    record: bytes
    index: TaskIndex
    event: NewEvent | None
    keeps_lease: bool
    keep_until: float


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task and the epoch under which a worker holds it."""

    task_id: str
    epoch: int


class Tasks(Protocol):
    """Used by the engine for tasks and generations."""

    async def admit_task(self, admission: TaskAdmission, now: float) -> AdmissionVerdict:
        """Spend the nonce and accept the dispatch: task, receipt and first event, in one step.

        In this order: a consumed nonce is `Replayed`; a known (listing, invocation id) with another input is
        `Conflict`, with the same input `Admitted` with the stored receipt (also when the task itself is purged);
        a turn of the same identity, which is one without an id of its own, is `Conflict`; where the admission may
        not start, `Free`; with `max_queue` tasks of the listing ready, `QueueFull`; else `Admitted`. The nonce stays
        spent whatever comes back.
        """

    async def read_task(self, task_id: str, listing: str, nonce: Nonce | None, now: float) -> TaskRow | Replayed | None:
        """Spend the nonce, if one is given, and return the task; None where the listing has no such task."""

    async def lease_task(self, listing: str, op: str, lease_s: float, now: float) -> TaskRow | None:
        """Hand the listing's longest waiting ready task, or one whose lease ended, to a worker; None without one.

        The row that comes back has the new epoch, the attempt and the lease of this holder; the task is not
        ready any more. The same `op` again gets the same task while it holds it.
        """

    async def renew_tasks(self, held: Sequence[HeldTask], lease_until: float, now: float) -> Sequence[HeldTask]:
        """Move the leases' end; return those that the epoch no longer holds."""

    async def lost_tasks(self, held: Sequence[HeldTask]) -> Sequence[HeldTask]:
        """Return those that the epoch no longer holds, changing nothing."""

    async def commit_task(self, change: TaskChange, now: float) -> bool:
        """Write a change and its event in one step; True also for the same `op` once more.

        False, and nothing is written, when the task is unknown or final, stands at another version, or
        `epoch` is given and does not hold it (as for turns, an ended lease that nobody took over still
        holds). The event replaces every replaceable event of the task that nobody is delivering, unless it is
        itself neither replaceable nor the final one; a replaceable one takes over the attempts and the due
        time of what it replaces.
        """

    async def release_task(self, held: HeldTask, now: float) -> bool:
        """Give a held task back: it is ready again and no crash is counted; False when the epoch does not hold it."""

    async def due_tasks(self, now: float, limit: int) -> Sequence[TaskRow]:
        """Return open tasks whose deadline has come, longest overdue first."""
