"""Short names for ids that may hold anything, one-row changes, and a task's row as the contract shows it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from hashlib import blake2b

from ....store import TaskIndex, TaskRow


def digest(*parts: str) -> bytes:
    """Return a short key for ids that may hold anything; lengths keep one part from running into the next."""
    data = [part.encode() for part in parts]
    return blake2b(b"".join(b"%d:%b" % (len(one), one) for one in data), digest_size=16).digest()


def op_mark(op: str) -> int:
    """Return a digest of an operation id that takes eight bytes."""
    return int.from_bytes(blake2b(op.encode(), digest_size=8).digest(), "big", signed=True)


def changed(db: sqlite3.Connection, statement: str, *values: object) -> bool:
    """Run a statement; True when it changed one row."""
    return db.execute(statement, values).rowcount == 1


def task_rows(db: sqlite3.Connection, rest: str, *values: object) -> Iterator[TaskRow]:
    """Return the tasks that the `rest` of a statement selects, a clause on `t`."""
    for row in db.execute(_TASKS + rest, values):
        *_, state, ready_since, keep_until, deadline = row
        task_id, listing, invocation_id, key_id, dispatch, record, version, epoch, attempt, lease_until, *_ = row
        yield TaskRow(
            task_id=task_id,
            listing=listing,
            invocation_id=invocation_id,
            key_id=key_id,
            dispatch=dispatch,
            record=record,
            index=TaskIndex(state, ready_since is not None, keep_until is not None, deadline),
            version=version,
            epoch=epoch,
            attempt=attempt,
            lease_until=lease_until,
        )


_TASKS = """
SELECT t.task_id, t.listing, t.invocation_id, t.key_id, d.dispatch, r.record, t.version, t.epoch, t.attempt,
       t.lease_until, t.state, t.ready_since, t.keep_until, t.deadline
FROM tasks AS t CROSS JOIN dispatches AS d ON d.number = t.number CROSS JOIN records AS r ON r.number = t.number
"""
