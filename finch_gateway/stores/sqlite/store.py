"""The handle: every call of the store's contract, sent down the lane it belongs to."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...errors import StoreUnavailable
from ...store import (
    AdmissionVerdict,
    Answered,
    Delivery,
    DeliveryEnd,
    EventRow,
    Free,
    HeldTask,
    KnownRevision,
    Nonce,
    Replayed,
    Running,
    TaskAdmission,
    TaskChange,
    TaskRow,
    TurnClaim,
    TurnEnd,
    TurnKey,
    Verdict,
)
from .database import Database
from .lanes import Checkpointer, Readers, Writer, aside
from .steps import admission as admission_steps
from .steps import operator, outbox, tasks, turns

T = TypeVar("T")

READERS = 2


class SqliteStore:
    """A `Store` over one SQLite file. A handle belongs to one process and one event loop.

    Answers of calls that change something come after their commit has reached the disk. A caller that goes
    away does not undo its call. While the file is away, full or damaged every call is `StoreUnavailable`.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        self._lanes: tuple[Writer, Readers, Checkpointer] | None = None

    @property
    def commits(self) -> int:
        """How many transactions this handle has committed."""
        return self._open_lanes()[0].commits

    async def open(self) -> None:
        """Create or check the file and start the threads."""
        await aside(self._database.open)
        gate = threading.Lock()
        checkpointer = Checkpointer(self._database, gate)
        writer = Writer(self._database, gate, checkpointer.grown)
        self._lanes = (writer, Readers(self._database, READERS), checkpointer)
        for lane in self._lanes:
            lane.start()

    async def close(self) -> None:
        """Finish what was asked and end the threads; the last handle empties the log into the file."""
        for lane in self._lanes or ():
            await lane.close()
        await aside(self._database.close)

    async def spend(self, nonce: Nonce, now: float) -> bool:
        """Consume a nonce; False when it was consumed before by another operation."""
        return await self._write(partial(admission_steps.spend, nonce=nonce))

    async def probe(self) -> None:
        """Return when a write has reached the disk."""
        await self._write(admission_steps.probe)

    async def claim_turn(self, claim: TurnClaim, now: float) -> Verdict:
        """Spend the claim's nonce, then say what is known of the turn or hand it over."""
        return await self._write(partial(turns.claim_turn, claim=claim, now=now))

    async def peek_turn(self, key: TurnKey, now: float) -> Running | Answered | Free:
        """Say where a turn stands, changing nothing."""
        return await self._read(partial(turns.peek_turn, key=key, now=now))

    async def renew_turn(self, key: TurnKey, epoch: int, lease_until: float, now: float) -> bool:
        """Move the lease's end; False when the epoch no longer holds the turn."""
        return await self._write(partial(turns.renew_turn, key=key, epoch=epoch, lease_until=lease_until, now=now))

    async def save_turn(self, key: TurnKey, epoch: int, saved: bytes, now: float) -> bool:
        """Keep what the agent saved; False when the epoch no longer holds the turn."""
        return await self._write(partial(turns.save_turn, key=key, epoch=epoch, saved=saved, now=now))

    async def release_turn(self, key: TurnKey, epoch: int, now: float) -> bool:
        """Give the turn back unanswered; False when the epoch no longer holds it."""
        return await self._write(partial(turns.release_turn, key=key, epoch=epoch, now=now))

    async def finish_turn(self, end: TurnEnd, now: float) -> bool:
        """Write the answer and the conversation's record; False when the epoch no longer holds the turn."""
        return await self._write(partial(turns.finish_turn, end=end, now=now))

    async def admit_task(self, admission: TaskAdmission, now: float) -> AdmissionVerdict:
        """Spend the nonce and accept the dispatch: task, receipt and first event."""
        return await self._write(partial(tasks.admit_task, admission=admission, now=now))

    async def read_task(self, task_id: str, listing: str, nonce: Nonce | None, now: float) -> TaskRow | Replayed | None:
        """Spend the nonce, if one is given, and return the task."""
        if nonce is None:
            return await self._read(partial(tasks.read_task, task_id=task_id, listing=listing))
        return await self._write(partial(tasks.spend_and_read, task_id=task_id, listing=listing, nonce=nonce))

    async def lease_task(self, listing: str, op: str, lease_s: float, now: float) -> TaskRow | None:
        """Hand a task to a worker; a reader looks for one, so that idle workers cost no commits."""
        if not await self._read(partial(tasks.has_work, listing=listing, op=op, now=now)):
            return None
        return await self._write(partial(tasks.lease_task, listing=listing, op=op, lease_s=lease_s, now=now))

    async def renew_tasks(self, held: Sequence[HeldTask], lease_until: float, now: float) -> Sequence[HeldTask]:
        """Move the leases' end; return those that the epoch no longer holds."""
        if not held:
            return []
        return await self._write(partial(tasks.renew_tasks, held=held, lease_until=lease_until, now=now))

    async def lost_tasks(self, held: Sequence[HeldTask]) -> Sequence[HeldTask]:
        """Return those that the epoch no longer holds, changing nothing."""
        return await self._read(partial(tasks.lost_tasks, held=held))

    async def commit_task(self, change: TaskChange, now: float) -> bool:
        """Write a change and its event."""
        return await self._write(partial(tasks.commit_task, change=change, now=now))

    async def release_task(self, held: HeldTask, now: float) -> bool:
        """Give a held task back; False when the epoch does not hold it."""
        return await self._write(partial(tasks.release_task, held=held, now=now))

    async def due_tasks(self, now: float, limit: int) -> Sequence[TaskRow]:
        """Return open tasks whose deadline has come, longest overdue first."""
        return await self._read(partial(tasks.due_tasks, now=now, limit=limit))

    async def due_hosts(self, now: float) -> Sequence[str]:
        """Return the hosts that have an event due and not being delivered."""
        return await self._read(partial(outbox.due_hosts, now=now))

    async def claim_events(self, host: str, op: str, claim_s: float, limit: int, now: float) -> Sequence[Delivery]:
        """Claim up to `limit` due events of a host; a reader looks for them first, as in `lease_task`."""
        if not await self._read(partial(outbox.has_events, host=host, now=now)):
            return []
        step = partial(outbox.claim_events, host=host, op=op, claim_s=claim_s, limit=limit, now=now)
        return await self._write(step)

    async def settle_event(self, delivery: Delivery, end: DeliveryEnd, now: float) -> bool:
        """Write how a claimed delivery ended; False when `op` no longer has the claim."""
        return await self._write(partial(outbox.settle_event, delivery=delivery, end=end, now=now))

    async def list_tasks(self, listing: str | None, is_open: bool | None, limit: int) -> Sequence[TaskRow]:
        """Return tasks, newest first."""
        return await self._read(partial(operator.list_tasks, listing=listing, is_open=is_open, limit=limit))

    async def list_events(self, task_id: str | None, is_dead: bool | None, limit: int) -> Sequence[EventRow]:
        """Return events that are still in the outbox, oldest first."""
        return await self._read(partial(operator.list_events, task_id=task_id, is_dead=is_dead, limit=limit))

    async def resend_event(self, task_id: str, sequence: int, now: float) -> bool:
        """Make an event due at once with a fresh schedule; False when it is not there."""
        return await self._write(partial(outbox.resend_event, task_id=task_id, sequence=sequence, now=now))

    async def open_tasks(self) -> dict[str, int]:
        """Return the number of open tasks by key id."""
        return await self._read(operator.open_tasks)

    async def register_revisions(self, revisions: Sequence[KnownRevision]) -> Sequence[KnownRevision]:
        """Record revisions not seen before, all or none."""
        return await self._write(partial(operator.register_revisions, revisions=revisions))

    async def known_revisions(self) -> Sequence[KnownRevision]:
        """Return every revision this store has seen, oldest first."""
        return await self._read(operator.known_revisions)

    async def forget_revision(self, key_id: str) -> bool:
        """Drop a revision's record; False when it was not known."""
        return await self._write(partial(operator.forget_revision, key_id=key_id))

    async def running_turns(self, now: float) -> dict[str, int]:
        """Return the number of turns under a live lease by key id."""
        return await self._read(partial(operator.running_turns, now=now))

    async def purge(self, now: float, limit: int) -> int:
        """Drop up to `limit` records whose time is over; a reader looks for them, so that nobody waits."""
        over = await self._read(partial(operator.find_over, now=now, limit=limit))
        return await self._write(partial(operator.drop_over, over=over, now=now)) if len(over) else 0

    async def _write(self, step: Callable[[sqlite3.Connection], T]) -> T:
        return await self._open_lanes()[0].ask(step)

    async def _read(self, step: Callable[[sqlite3.Connection], T]) -> T:
        return await self._open_lanes()[1].ask(step)

    def _open_lanes(self) -> tuple[Writer, Readers, Checkpointer]:
        if self._lanes is None:
            raise StoreUnavailable("the SQLite store is not open")
        return self._lanes
