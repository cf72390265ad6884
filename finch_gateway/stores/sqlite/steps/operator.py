"""What is told and changed at start, by the sweeper and by the commands."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from ....store import EventRow, KnownRevision, TaskRow
from .rows import changed, digest, task_rows


@dataclass(frozen=True, slots=True)
class Over:
    """Records whose time was over when somebody looked. A task counts as one, its events go with it."""

    turns: Sequence[tuple[int]]
    questions: Sequence[tuple[int]]
    tasks: Sequence[tuple[int]]
    receipts: Sequence[tuple[int]]
    nonces: Sequence[tuple[bytes]]

    def __len__(self) -> int:
        return sum(map(len, (self.turns, self.questions, self.tasks, self.receipts, self.nonces)))


def register_revisions(db: sqlite3.Connection, revisions: Sequence[KnownRevision]) -> Sequence[KnownRevision]:
    """Record all of them, or return what stands against it."""
    known = {revision.key_id: revision for revision in known_revisions(db)}
    against = [
        held
        for revision in revisions
        if (held := known.setdefault(revision.key_id, revision))
        and (held.fingerprint, held.listing) != (revision.fingerprint, revision.listing)
    ]
    if not against:
        rows = ((one.key_id, one.listing, one.fingerprint, one.first_seen) for one in revisions)
        db.executemany("INSERT INTO revisions VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)
    return against


def known_revisions(db: sqlite3.Connection) -> Sequence[KnownRevision]:
    """Return every revision, oldest first."""
    rows = db.execute("SELECT key_id, listing, fingerprint, first_seen FROM revisions ORDER BY first_seen, key_id")
    return [KnownRevision(*row) for row in rows]


def forget_revision(db: sqlite3.Connection, key_id: str) -> bool:
    """Drop a revision's record."""
    return changed(db, "DELETE FROM revisions WHERE key_id = ?", key_id)


def running_turns(db: sqlite3.Connection, now: float) -> dict[str, int]:
    """Count live leases by key id."""
    return dict(db.execute("SELECT key_id, count(*) FROM turns WHERE lease_until > ? GROUP BY key_id", (now,)))


def list_tasks(db: sqlite3.Connection, listing: str | None, is_open: bool | None, limit: int) -> Sequence[TaskRow]:
    """Return tasks, newest first."""
    wanted: list[tuple[str, object]] = []
    if listing is not None:
        wanted.append(("t.listing = ?", listing))
    if is_open is not None:
        wanted.append(("(t.keep_until IS NULL) = ?", is_open))
    rest = f"{_where(wanted)} ORDER BY t.number DESC LIMIT ?"
    return list(task_rows(db, rest, *(value for _, value in wanted), limit))


def list_events(db: sqlite3.Connection, task_id: str | None, is_dead: bool | None, limit: int) -> Sequence[EventRow]:
    """Return the events of the outbox, oldest first."""
    wanted: list[tuple[str, object]] = []
    if task_id is not None:
        wanted.append(("t.id = ?", digest(task_id)))
    if is_dead is not None:
        wanted.append(("(e.reason IS NOT NULL) = ?", is_dead))
    statement = f"{_EVENTS} {_where(wanted)} ORDER BY e.created_at, e.task, e.sequence LIMIT ?"
    rows = db.execute(statement, (*(value for _, value in wanted), limit))
    return [
        EventRow(task_id, sequence, listing, host, attempts, created_at, due_at, bool(is_dead), reason, body)
        for task_id, sequence, listing, host, attempts, created_at, due_at, is_dead, reason, body in rows
    ]


def open_tasks(db: sqlite3.Connection) -> dict[str, int]:
    """Count open tasks by key id."""
    return dict(db.execute("SELECT key_id, count(*) FROM tasks WHERE keep_until IS NULL GROUP BY key_id"))


def find_over(db: sqlite3.Connection, now: float, limit: int) -> Over:
    """Look for up to `limit` records whose time is over.

    Nonces have no index by time, which would double their size: they are scanned, and by a reader.
    """
    found: list[list[tuple[int]]] = []
    for statement in (_TURNS_OVER, _QUESTIONS_OVER, _TASKS_OVER, _RECEIPTS_OVER):
        found.append(db.execute(statement, {"now": now, "limit": limit}).fetchall())
        limit -= len(found[-1])
    nonces = db.execute("SELECT id FROM nonces WHERE expires_at <= ? LIMIT ?", (now, limit)).fetchall()
    turns, questions, tasks, receipts = found
    return Over(turns, questions, tasks, receipts, nonces)


def drop_over(db: sqlite3.Connection, over: Over, now: float) -> int:
    """Drop those that are still over; return how many."""
    dropped = sum(changed(db, _DROP_TURN, now, now, number) for (number,) in over.turns)
    dropped += sum(changed(db, _DROP_QUESTION, now, number) for (number,) in over.questions)
    dropped += sum(_drop_task(db, number, now) for (number,) in over.tasks)
    dropped += sum(changed(db, _DROP_RECEIPT, now, number) for (number,) in over.receipts)
    dropped += sum(changed(db, _DROP_NONCE, now, key) for (key,) in over.nonces)
    return dropped


def _where(wanted: Sequence[tuple[str, object]]) -> str:
    return "WHERE " + " AND ".join(clause for clause, _ in wanted) if wanted else ""


def _drop_task(db: sqlite3.Connection, number: int, now: float) -> bool:
    if not changed(db, _DROP_TASK, now, number):
        return False
    for statement in _DROP_WITH_TASK:
        db.execute(statement, (number,))
    return True


_EVENTS = """
SELECT t.task_id, e.sequence, t.listing, e.host, e.attempts, e.created_at, e.due_at,
       e.reason IS NOT NULL, coalesce(e.reason, ''), l.body
FROM events AS e JOIN tasks AS t ON t.number = e.task JOIN letters AS l ON l.number = e.number
"""

_TURNS_OVER = """
SELECT number FROM turns
WHERE keep_until <= :now AND (lease_until IS NULL OR lease_until <= :now) LIMIT :limit
"""

_QUESTIONS_OVER = "SELECT number FROM questions WHERE keep_until <= :now LIMIT :limit"

_TASKS_OVER = "SELECT number FROM tasks WHERE keep_until IS NOT NULL AND keep_until <= :now LIMIT :limit"

_RECEIPTS_OVER = "SELECT number FROM receipts WHERE keep_until <= :now LIMIT :limit"

_DROP_TURN = """
DELETE FROM turns WHERE keep_until <= ? AND (lease_until IS NULL OR lease_until <= ?) AND number = ?
"""

_DROP_QUESTION = "DELETE FROM questions WHERE keep_until <= ? AND number = ?"

_DROP_TASK = "DELETE FROM tasks WHERE keep_until <= ? AND number = ?"

_DROP_WITH_TASK = (
    "DELETE FROM dispatches WHERE number = ?",
    "DELETE FROM records WHERE number = ?",
    "DELETE FROM letters WHERE number IN (SELECT number FROM events WHERE task = ?)",
    "DELETE FROM events WHERE task = ?",
)

_DROP_RECEIPT = "DELETE FROM receipts WHERE keep_until <= ? AND number = ?"

_DROP_NONCE = "DELETE FROM nonces WHERE expires_at <= ? AND id = ?"
