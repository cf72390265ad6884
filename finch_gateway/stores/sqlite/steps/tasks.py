"""Tasks: accepted once, held by one worker, ended once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from ....store import (
    AdmissionVerdict,
    Admitted,
    Conflict,
    Free,
    HeldTask,
    Nonce,
    QueueFull,
    Replayed,
    TaskAdmission,
    TaskChange,
    TaskRow,
)
from .admission import spend
from .outbox import write_event
from .rows import changed, digest, op_mark, task_rows
from .turns import is_turn


class _Standing(NamedTuple):
    """A row of `tasks` as a change needs it."""

    number: int
    version: int
    epoch: int
    lease_until: float | None
    keep_until: float | None
    commit_op: str | None


def admit_task(db: sqlite3.Connection, admission: TaskAdmission, now: float) -> AdmissionVerdict:
    """Spend the nonce and judge the dispatch, in the order of `Tasks.admit_task`."""
    if admission.nonce is not None and not spend(db, admission.nonce):
        return Replayed()
    name, op = digest(admission.listing, admission.invocation_id), op_mark(admission.op)
    known = db.execute("SELECT input_digest, receipt, op FROM receipts WHERE id = ?", (name,)).fetchone()
    if known is not None:
        input_digest, receipt, admitted_by = known
        return Admitted(receipt, admitted_by == op) if input_digest == admission.input_digest else Conflict()
    if is_turn(db, admission.listing, admission.invocation_id):
        return Conflict()
    if not admission.may_start:
        return Free()
    if _ready(db, admission.listing, admission.max_queue) >= admission.max_queue:
        return QueueFull()
    db.execute(_NEW_RECEIPT, (name, admission.input_digest, op, admission.receipt_until, admission.receipt))
    _create(db, admission, now)
    return Admitted(admission.receipt, is_new=True)


def spend_and_read(db: sqlite3.Connection, task_id: str, listing: str, nonce: Nonce) -> TaskRow | Replayed | None:
    """Spend the nonce and return the task."""
    return read_task(db, task_id, listing) if spend(db, nonce) else Replayed()


def read_task(db: sqlite3.Connection, task_id: str, listing: str) -> TaskRow | None:
    """Return the task if the listing has it."""
    return next(task_rows(db, "WHERE t.id = ? AND t.listing = ?", digest(task_id), listing), None)


def has_work(db: sqlite3.Connection, listing: str, op: str, now: float) -> bool:
    """Say whether `lease_task` would find a task."""
    found = db.execute(_HAS_WORK, {"listing": listing, "op": op, "now": now}).fetchone()
    return bool(found[0])


def lease_task(db: sqlite3.Connection, listing: str, op: str, lease_s: float, now: float) -> TaskRow | None:
    """Hand a task to a worker, first one whose worker died, then the one that waits longest."""
    values = {"listing": listing, "now": now, "op": op}
    number = _number(db, _HELD_UNDER, values)
    if number is None:
        number = _number(db, _LEASE_OVER, values) or _number(db, _WAITING, values)
        if number is None:
            return None
        # A lease that is there has ended by itself: its holder crashed.
        db.execute(_LEASE, (op, now + lease_s, number))
    return next(task_rows(db, "WHERE t.number = ?", number))


def renew_tasks(db: sqlite3.Connection, held: Sequence[HeldTask], lease_until: float, now: float) -> Sequence[HeldTask]:
    """Move the leases' end; return what is lost."""
    return [one for one in held if not changed(db, _RENEW, lease_until, digest(one.task_id), one.epoch)]


def lost_tasks(db: sqlite3.Connection, held: Sequence[HeldTask]) -> Sequence[HeldTask]:
    """Return what is lost."""
    return [one for one in held if not db.execute(_HOLDS, (digest(one.task_id), one.epoch)).fetchone()]


def commit_task(db: sqlite3.Connection, change: TaskChange, now: float) -> bool:
    """Write a change and its event, or recognise one that was written before."""
    found = db.execute(_STANDING, (digest(change.task_id),)).fetchone()
    if found is None:
        return False
    task = _Standing(*found)
    if not _may_change(task, change):
        return task.commit_op == change.op
    _move(db, task.number, change, now)
    if change.event is not None:
        write_event(db, task.number, change.event, change.index.is_final, now)
    return True


def release_task(db: sqlite3.Connection, held: HeldTask, now: float) -> bool:
    """Give a task back; no lease, rather than an ended one, is what tells this from a crash."""
    return changed(db, _RELEASE, now, digest(held.task_id), held.epoch)


def due_tasks(db: sqlite3.Connection, now: float, limit: int) -> Sequence[TaskRow]:
    """Return open tasks whose deadline has come, longest overdue first."""
    rest = "WHERE t.keep_until IS NULL AND t.deadline <= ? ORDER BY t.deadline, t.number LIMIT ?"
    return list(task_rows(db, rest, now, limit))


def _ready(db: sqlite3.Connection, listing: str, limit: int) -> int:
    """Count the listing's tasks that wait for a worker, up to the limit."""
    return int(db.execute(_READY, (listing, max(limit, 0))).fetchone()[0])


def _create(db: sqlite3.Connection, admission: TaskAdmission, now: float) -> None:
    index = admission.index
    who = (admission.task_id, admission.listing, admission.invocation_id, admission.key_id)
    ready_since = now if index.is_ready and not index.is_final else None
    keep_until = admission.keep_until if index.is_final else None
    task = (digest(admission.task_id), *who, index.state, index.deadline, ready_since, keep_until)
    number = db.execute(_NEW_TASK, task).lastrowid
    assert number is not None, "an insert into a table with row ids has one"
    db.execute("INSERT INTO dispatches VALUES (?, ?)", (number, admission.dispatch))
    db.execute("INSERT INTO records VALUES (?, ?)", (number, admission.record))
    if admission.event is not None:
        write_event(db, number, admission.event, index.is_final, now)


def _may_change(task: _Standing, change: TaskChange) -> bool:
    is_open_at_this_version = task.keep_until is None and task.version == change.version
    holds = change.epoch is None or (task.lease_until is not None and task.epoch == change.epoch)
    return is_open_at_this_version and holds


def _move(db: sqlite3.Connection, number: int, change: TaskChange, now: float) -> None:
    index = change.index
    values = {
        "number": number,
        "op": change.op,
        "state": index.state,
        "deadline": index.deadline,
        "is_ready": index.is_ready and not index.is_final,
        "now": now,
        "keeps_lease": change.keeps_lease and not index.is_final,
        "keep_until": change.keep_until if index.is_final else None,
    }
    db.execute(_MOVE, values)
    db.execute("UPDATE records SET record = ? WHERE number = ?", (change.record, number))


def _number(db: sqlite3.Connection, statement: str, values: dict[str, object]) -> int | None:
    row = db.execute(statement, values).fetchone()
    return None if row is None else int(row[0])


_NEW_RECEIPT = "INSERT INTO receipts (id, input_digest, op, keep_until, receipt) VALUES (?, ?, ?, ?, ?)"

_NEW_TASK = """
INSERT INTO tasks (id, task_id, listing, invocation_id, key_id, state, deadline, ready_since, keep_until,
                   version, epoch, attempt)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 0, 1)
"""

_READY = "SELECT count(*) FROM (SELECT 1 FROM tasks WHERE listing = ? AND ready_since IS NOT NULL LIMIT ?)"

# The signs keep SQLite to the index by operation.
_HELD_UNDER = """
SELECT number FROM tasks
WHERE +listing = :listing AND +lease_until > :now AND lease_op = :op AND lease_until IS NOT NULL
"""

_HAS_WORK = """
SELECT EXISTS (SELECT 1 FROM tasks WHERE listing = :listing AND ready_since IS NOT NULL)
    OR EXISTS (SELECT 1 FROM tasks WHERE listing = :listing AND lease_until IS NOT NULL AND lease_until <= :now)
    OR EXISTS (
        SELECT 1 FROM tasks
        WHERE +listing = :listing AND +lease_until > :now AND lease_op = :op AND lease_until IS NOT NULL
    )
"""

_LEASE_OVER = """
SELECT number FROM tasks WHERE listing = :listing AND lease_until IS NOT NULL AND lease_until <= :now
ORDER BY lease_until LIMIT 1
"""

_WAITING = """
SELECT number FROM tasks WHERE listing = :listing AND ready_since IS NOT NULL ORDER BY ready_since, number LIMIT 1
"""

_LEASE = """
UPDATE tasks SET epoch = epoch + 1, attempt = attempt + (lease_until IS NOT NULL), lease_op = ?, lease_until = ?,
                 ready_since = NULL
WHERE number = ?
"""

_RENEW = "UPDATE tasks SET lease_until = ? WHERE id = ? AND epoch = ? AND lease_until IS NOT NULL"

_HOLDS = "SELECT 1 FROM tasks WHERE id = ? AND epoch = ? AND lease_until IS NOT NULL"

_RELEASE = """
UPDATE tasks SET lease_until = NULL, ready_since = ? WHERE id = ? AND epoch = ? AND lease_until IS NOT NULL
"""

_STANDING = "SELECT number, version, epoch, lease_until, keep_until, commit_op FROM tasks WHERE id = ?"

_MOVE = """
UPDATE tasks SET version = version + 1, commit_op = :op, state = :state, deadline = :deadline,
                 ready_since = CASE WHEN :is_ready THEN coalesce(ready_since, :now) END,
                 lease_until = CASE WHEN :keeps_lease THEN lease_until END, keep_until = :keep_until
WHERE number = :number
"""
