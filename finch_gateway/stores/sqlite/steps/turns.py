"""Synchronous turns and the questions of their conversations."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from ....store import (
    Answered,
    ClearQuestion,
    Conflict,
    Free,
    Held,
    KeepQuestion,
    Replayed,
    Running,
    TurnClaim,
    TurnEnd,
    TurnKey,
    Verdict,
)
from .admission import spend
from .rows import changed, digest


class _Turn(NamedTuple):
    """A row of `turns` as a claim needs it, beside the conversation's open question; all None where unknown."""

    input_digest: str | None
    reply: bytes | None
    lease_until: float | None
    op: str
    epoch: int
    attempt: int
    saved: bytes | None
    question: bytes | None
    question_version: str | None


def claim_turn(db: sqlite3.Connection, claim: TurnClaim, now: float) -> Verdict:
    """Spend the claim's nonce and judge the claim, in the order of `Turns.claim_turn`."""
    if claim.nonce is not None and not spend(db, claim.nonce):
        return Replayed()
    name = _turn_name(claim.key)
    where = (digest(claim.key.listing, claim.conversation_id), now, name)
    turn = _Turn(*db.execute(_LOOK, where).fetchone())
    if turn.input_digest is None and not claim.key.turn_id and _is_task(db, claim.key):
        return Conflict()
    if turn.input_digest is None:
        return _take_new(db, name, claim, turn, now) if claim.may_start else Free()
    if turn.input_digest != claim.input_digest:
        return Conflict()
    if turn.reply is not None:
        return Answered(turn.reply)
    if turn.lease_until is not None and turn.lease_until > now:
        return _held(turn, turn.epoch, turn.attempt) if turn.op == claim.op else Running(turn.lease_until)
    return _take_over(db, name, claim, turn, now) if claim.may_start else Free()


def is_turn(db: sqlite3.Connection, listing: str, invocation_id: str) -> bool:
    """Say whether a turn without an id of its own has this identity, which a task would have too."""
    name = _turn_name(TurnKey(listing, invocation_id, ""))
    return db.execute("SELECT 1 FROM turns WHERE id = ?", (name,)).fetchone() is not None


def _is_task(db: sqlite3.Connection, key: TurnKey) -> bool:
    name = digest(key.listing, key.invocation_id)
    return db.execute("SELECT 1 FROM receipts WHERE id = ?", (name,)).fetchone() is not None


def peek_turn(db: sqlite3.Connection, key: TurnKey, now: float) -> Running | Answered | Free:
    """Say where a turn stands."""
    row = db.execute("SELECT reply, lease_until FROM turns WHERE id = ?", (_turn_name(key),)).fetchone()
    reply, lease_until = row or (None, None)
    if reply is not None:
        return Answered(reply)
    return Running(lease_until) if lease_until is not None and lease_until > now else Free()


def renew_turn(db: sqlite3.Connection, key: TurnKey, epoch: int, lease_until: float, now: float) -> bool:
    """Move the end of the lease while `epoch` holds the turn."""
    return changed(db, _RENEW, lease_until, _turn_name(key), epoch)


def save_turn(db: sqlite3.Connection, key: TurnKey, epoch: int, saved: bytes, now: float) -> bool:
    """Keep what the agent saved while `epoch` holds the turn."""
    return changed(db, _SAVE, saved, _turn_name(key), epoch)


def release_turn(db: sqlite3.Connection, key: TurnKey, epoch: int, now: float) -> bool:
    """Give a turn back; no lease, rather than an ended one, is what tells this from a crash."""
    return changed(db, _RELEASE, _turn_name(key), epoch)


def finish_turn(db: sqlite3.Connection, end: TurnEnd, now: float) -> bool:
    """Write the answer and the conversation's record, or recognise an end that was written before."""
    name = _turn_name(end.key)
    if not changed(db, _FINISH, end.reply, end.keep_until, name, end.epoch):
        known = db.execute("SELECT epoch, reply FROM turns WHERE id = ?", (name,)).fetchone()
        return bool(known == (end.epoch, end.reply))
    where = digest(end.key.listing, end.conversation_id)
    match end.question:
        case KeepQuestion(record, keep_until):
            # An epoch ends once at most, so this names one question of one turn.
            version = f"{name.hex()}.{end.epoch}"
            db.execute(_KEEP, (where, end.key.listing, end.conversation_id, version, keep_until, record))
        case ClearQuestion(version):
            db.execute("DELETE FROM questions WHERE id = ? AND version = ?", (where, version))
    return True


_LOOK = """
SELECT t.input_digest, t.reply, t.lease_until, t.op, t.epoch, t.attempt, t.saved, q.record, q.version
FROM (SELECT 1) LEFT JOIN questions AS q ON q.id = ? AND q.keep_until > ? LEFT JOIN turns AS t ON t.id = ?
"""

_TAKE_NEW = """
INSERT INTO turns (id, listing, invocation_id, turn_id, key_id, conversation_id, input_digest, op,
                   epoch, attempt, lease_until, keep_until, facts)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, 1, ?, ?, ?)
"""

_TAKE_OVER = """
UPDATE turns SET key_id = ?, conversation_id = ?, op = ?, epoch = ?, attempt = ?, lease_until = ?,
                 keep_until = max(keep_until, ?), facts = ?
WHERE id = ?
"""

_RENEW = "UPDATE turns SET lease_until = ? WHERE id = ? AND epoch = ? AND lease_until IS NOT NULL"

_SAVE = "UPDATE turns SET saved = ? WHERE id = ? AND epoch = ? AND lease_until IS NOT NULL"

_RELEASE = "UPDATE turns SET lease_until = NULL WHERE id = ? AND epoch = ? AND lease_until IS NOT NULL"

_FINISH = """
UPDATE turns SET reply = ?, keep_until = ?, lease_until = NULL, saved = NULL
WHERE id = ? AND epoch = ? AND lease_until IS NOT NULL
"""

_KEEP = """
INSERT INTO questions (id, listing, conversation_id, version, keep_until, record) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET version = excluded.version, keep_until = excluded.keep_until, record = excluded.record
"""


def _turn_name(key: TurnKey) -> bytes:
    return digest(key.listing, key.invocation_id, key.turn_id)


def _held(turn: _Turn, epoch: int, attempt: int) -> Held:
    return Held(epoch, attempt, turn.saved, turn.question, turn.question_version or "")


def _take_new(db: sqlite3.Connection, name: bytes, claim: TurnClaim, turn: _Turn, now: float) -> Held:
    key, lease_until = claim.key, now + claim.lease_s
    who = (name, key.listing, key.invocation_id, key.turn_id, claim.key_id, claim.conversation_id)
    db.execute(_TAKE_NEW, (*who, claim.input_digest, claim.op, lease_until, claim.keep_until, claim.facts))
    return _held(turn, 1, 1)


def _take_over(db: sqlite3.Connection, name: bytes, claim: TurnClaim, turn: _Turn, now: float) -> Held:
    # A lease that is there has ended by itself: its holder crashed.
    epoch, attempt = turn.epoch + 1, turn.attempt + (turn.lease_until is not None)
    lease = (claim.op, epoch, attempt, now + claim.lease_s, claim.keep_until)
    db.execute(_TAKE_OVER, (claim.key_id, claim.conversation_id, *lease, claim.facts, name))
    return _held(turn, epoch, attempt)
