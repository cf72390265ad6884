"""Callbacks: each task's events leave in order, one at a time, until they were taken or are given up."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ....store import Dead, Delivered, Delivery, DeliveryEnd, NewEvent, RetryAt
from .rows import changed, digest


def write_event(db: sqlite3.Connection, task: int, event: NewEvent, is_final: bool, now: float) -> None:
    """Put an event into the outbox in the place of those that it replaces."""
    attempts, due_at = 0, event.not_before
    if event.replaceable or is_final:
        replaced = _replace(db, task, now)
        if event.replaceable and replaced is not None:
            attempts, inherited = replaced
            # Steady progress keeps its place in the host's line: only a time to come moves it back.
            due_at = max(inherited, due_at) if due_at > now else inherited
    values = (task, event.sequence, event.host, event.replaceable, attempts, now, due_at)
    number = db.execute(_NEW_EVENT, values).lastrowid
    db.execute("INSERT INTO letters VALUES (?, ?, ?, ?)", (number, event.url, event.callback_key_id, event.body))
    _line_up(db, task)


def due_hosts(db: sqlite3.Connection, now: float) -> Sequence[str]:
    """Return the hosts that have an event to claim."""
    return [host for (host,) in db.execute(_DUE_HOSTS, {"now": now})]


def has_events(db: sqlite3.Connection, host: str, now: float) -> bool:
    """Say whether `claim_events` would find an event."""
    return db.execute(_ANY_DUE, {"host": host, "now": now}).fetchone() is not None


def claim_events(
    db: sqlite3.Connection, host: str, op: str, claim_s: float, limit: int, now: float
) -> Sequence[Delivery]:
    """Claim the host's longest due events."""
    rows = db.execute(_CLAIMABLE, {"host": host, "now": now, "limit": limit}).fetchall()
    db.executemany(_CLAIM, ((op, now + claim_s, number) for number, *_ in rows))
    return [Delivery(task_id, sequence, op, *rest) for _, task_id, sequence, *rest in rows]


def settle_event(db: sqlite3.Connection, delivery: Delivery, end: DeliveryEnd, now: float) -> bool:
    """Write how a delivery ended, or recognise an end that was written before."""
    name, sequence, op = digest(delivery.task_id), delivery.sequence, delivery.op
    found = db.execute(_CLAIMED, (name, sequence, op)).fetchone()
    if found is None:
        return db.execute(_SETTLED, (name, sequence, op)).fetchone() is not None
    number, task = found
    match end:
        case Delivered():
            _drop(db, number)
        case RetryAt(at):
            _retry(db, number, at)
        case Dead(reason):
            db.execute(_BURY, (reason, number))
    db.execute("UPDATE tasks SET settled_op = ?, settled_sequence = ? WHERE number = ?", (op, sequence, task))
    _line_up(db, task)
    return True


def _retry(db: sqlite3.Connection, number: int, at: float) -> None:
    """Try again at that time, unless a newer event has replaced this one while it was being delivered."""
    newer = db.execute(_REPLACEMENT, (number,)).fetchone()
    if newer is None:
        db.execute(_RETRY, (at, number))
        return
    db.execute(_INHERIT, (at, number, newer[0]))
    _drop(db, number)


def resend_event(db: sqlite3.Connection, task_id: str, sequence: int, now: float) -> bool:
    """Make an event due at once as if it were new; whoever is delivering it keeps the claim."""
    found = db.execute(_FIND, (digest(task_id), sequence)).fetchone()
    if found is None:
        return False
    number, task = found
    is_there = changed(db, _RESEND, now, now, number)
    _line_up(db, task)
    return is_there


def _replace(db: sqlite3.Connection, task: int, now: float) -> tuple[int, float] | None:
    """Drop what a newer event replaces; return attempts and due time of the oldest."""
    rows = db.execute(_REPLACEABLE, (task, now)).fetchall()
    for number, _, _ in rows:
        _drop(db, number)
    return (rows[0][1], rows[0][2]) if rows else None


def _drop(db: sqlite3.Connection, number: int) -> None:
    db.execute("DELETE FROM events WHERE number = ?", (number,))
    db.execute("DELETE FROM letters WHERE number = ?", (number,))


def _line_up(db: sqlite3.Connection, task: int) -> None:
    """Mark the oldest live event of a task, and no other, as its head."""
    db.execute(_LINE_UP, {"task": task})


_NEW_EVENT = """
INSERT INTO events (task, sequence, host, replaceable, is_head, attempts, created_at, due_at)
VALUES (?, ?, ?, ?, 0, ?, ?, ?)
"""

_LINE_UP = """
UPDATE events SET is_head = NOT is_head
WHERE task = :task AND is_head <> (
    reason IS NULL AND sequence = (SELECT min(sequence) FROM events WHERE task = :task AND reason IS NULL)
)
"""

_REPLACEABLE = """
SELECT number, attempts, due_at FROM events
WHERE task = ? AND replaceable AND reason IS NULL AND (claim_until IS NULL OR claim_until <= ?) ORDER BY sequence
"""

# The head may wait for a later event: one that was being delivered when the operator sent the head again.
_NOT_CLAIMED = "NOT EXISTS (SELECT 1 FROM events AS c WHERE c.task = e.task AND c.claim_until > :now)"

# Ends where the host is named.
_DUE_AT = f"FROM events AS e WHERE e.is_head AND e.due_at <= :now AND {_NOT_CLAIMED} AND e.host ="

_ANY_DUE = f"SELECT 1 {_DUE_AT} :host LIMIT 1"

# Steps from host to host over the index, however many events each has.
_HOSTS = """
WITH RECURSIVE hosts (host) AS (
    SELECT min(host) FROM events WHERE is_head
    UNION ALL
    SELECT (SELECT min(n.host) FROM events AS n WHERE n.is_head AND n.host > hosts.host)
    FROM hosts WHERE hosts.host IS NOT NULL
)
SELECT hosts.host FROM hosts
"""

_DUE_HOSTS = f"{_HOSTS} WHERE EXISTS (SELECT 1 {_DUE_AT} hosts.host)"

_DELIVERY = """
SELECT e.number, t.task_id, e.sequence, t.listing, t.key_id, l.body, l.url, l.callback_key_id, e.host, e.attempts,
       e.created_at
"""

_CLAIMABLE = f"""
{_DELIVERY} FROM (SELECT e.* {_DUE_AT} :host ORDER BY e.due_at, e.number LIMIT :limit) AS e
CROSS JOIN tasks AS t ON t.number = e.task CROSS JOIN letters AS l ON l.number = e.number
ORDER BY e.due_at, e.number
"""

_CLAIM = "UPDATE events SET claim_op = ?, claim_until = ? WHERE number = ?"

_FIND = """
SELECT e.number, e.task FROM tasks AS t JOIN events AS e ON e.task = t.number WHERE t.id = ? AND e.sequence = ?
"""

_CLAIMED = f"{_FIND} AND e.claim_op = ? AND e.claim_until IS NOT NULL"

_SETTLED = "SELECT 1 FROM tasks WHERE id = ? AND settled_sequence = ? AND settled_op = ?"

_RETRY = "UPDATE events SET attempts = attempts + 1, due_at = ?, claim_until = NULL WHERE number = ?"

# The event that replaces a replaceable one: newer progress, or the end. `keep_until` says that the task has ended.
_REPLACEMENT = """
SELECT n.number FROM events AS e JOIN tasks AS t ON t.number = e.task
JOIN events AS n ON n.task = e.task AND n.sequence > e.sequence AND n.reason IS NULL
WHERE e.number = ? AND e.replaceable AND (n.replaceable OR t.keep_until IS NOT NULL)
ORDER BY n.sequence LIMIT 1
"""

_INHERIT = """
UPDATE events SET due_at = ?, attempts = (SELECT attempts + 1 FROM events WHERE number = ?)
WHERE number = ? AND replaceable
"""

_BURY = "UPDATE events SET reason = ?, claim_until = NULL WHERE number = ?"

_RESEND = "UPDATE events SET attempts = 0, created_at = ?, due_at = ?, reason = NULL WHERE number = ?"
