"""What each call does to the tables: functions of a connection and values, run inside somebody else's transaction.

A step may run twice when a batch starts over, so it keeps nothing outside the database.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from ...store import (
    Answered,
    ClearQuestion,
    Conflict,
    Free,
    Held,
    KeepQuestion,
    KnownRevision,
    Nonce,
    Replayed,
    Running,
    TurnClaim,
    TurnEnd,
    TurnKey,
    Verdict,
)


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


@dataclass(frozen=True, slots=True)
class Over:
    """Records whose time was over when somebody looked."""

    turns: Sequence[tuple[int]]
    questions: Sequence[tuple[int]]
    nonces: Sequence[tuple[bytes]]

    def __len__(self) -> int:
        return len(self.turns) + len(self.questions) + len(self.nonces)


def digest(*parts: str) -> bytes:
    """Return a short key for ids that may hold anything; lengths keep one part from running into the next."""
    data = [part.encode() for part in parts]
    return blake2b(b"".join(b"%d:%b" % (len(one), one) for one in data), digest_size=16).digest()


def spend(db: sqlite3.Connection, nonce: Nonce) -> bool:
    """Consume a nonce; True also when the same operation consumed it before."""
    key, op = digest(nonce.key_id, nonce.value), _op_mark(nonce.op)
    if db.execute(_SPEND, (key, math.ceil(nonce.expires_at), op)).rowcount == 1:
        return True
    spent_by: int = db.execute("SELECT op FROM nonces WHERE id = ?", (key,)).fetchone()[0]
    return spent_by == op


def probe(db: sqlite3.Connection) -> None:
    """Change one row, so that the commit has something to write."""
    db.execute("UPDATE probe SET count = count + 1")


def claim_turn(db: sqlite3.Connection, claim: TurnClaim, now: float) -> Verdict:
    """Spend the claim's nonce and judge the claim, in the order of `Turns.claim_turn`."""
    if claim.nonce is not None and not spend(db, claim.nonce):
        return Replayed()
    name = _turn_name(claim.key)
    where = (digest(claim.key.listing, claim.conversation_id), now, name)
    turn = _Turn(*db.execute(_LOOK, where).fetchone())
    if turn.input_digest is None:
        return _take_new(db, name, claim, turn, now) if claim.may_start else Free()
    if turn.input_digest != claim.input_digest:
        return Conflict()
    if turn.reply is not None:
        return Answered(turn.reply)
    if turn.lease_until is not None and turn.lease_until > now:
        return _held(turn, turn.epoch, turn.attempt) if turn.op == claim.op else Running(turn.lease_until)
    return _take_over(db, name, claim, turn, now) if claim.may_start else Free()


def peek_turn(db: sqlite3.Connection, key: TurnKey, now: float) -> Running | Answered | Free:
    """Say where a turn stands."""
    row = db.execute("SELECT reply, lease_until FROM turns WHERE id = ?", (_turn_name(key),)).fetchone()
    reply, lease_until = row or (None, None)
    if reply is not None:
        return Answered(reply)
    return Running(lease_until) if lease_until is not None and lease_until > now else Free()


def renew_turn(db: sqlite3.Connection, key: TurnKey, epoch: int, lease_until: float, now: float) -> bool:
    """Move the end of the lease while `epoch` holds the turn."""
    return _changed(db, _RENEW, lease_until, _turn_name(key), epoch)


def save_turn(db: sqlite3.Connection, key: TurnKey, epoch: int, saved: bytes, now: float) -> bool:
    """Keep what the agent saved while `epoch` holds the turn."""
    return _changed(db, _SAVE, saved, _turn_name(key), epoch)


def release_turn(db: sqlite3.Connection, key: TurnKey, epoch: int, now: float) -> bool:
    """Give a turn back; no lease, rather than an ended one, is what tells this from a crash."""
    return _changed(db, _RELEASE, _turn_name(key), epoch)


def finish_turn(db: sqlite3.Connection, end: TurnEnd, now: float) -> bool:
    """Write the answer and the conversation's record, or recognise an end that was written before."""
    name = _turn_name(end.key)
    if not _changed(db, _FINISH, end.reply, end.keep_until, name, end.epoch):
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
    return _changed(db, "DELETE FROM revisions WHERE key_id = ?", key_id)


def running_turns(db: sqlite3.Connection, now: float) -> dict[str, int]:
    """Count live leases by key id."""
    return dict(db.execute("SELECT key_id, count(*) FROM turns WHERE lease_until > ? GROUP BY key_id", (now,)))


def find_over(db: sqlite3.Connection, now: float, limit: int) -> Over:
    """Look for up to `limit` records whose time is over.

    Nonces have no index by time, which would double their size: they are scanned, and by a reader.
    """
    turns = db.execute(_TURNS_OVER, (now, now, limit)).fetchall()
    limit -= len(turns)
    questions = db.execute("SELECT number FROM questions WHERE keep_until <= ? LIMIT ?", (now, limit)).fetchall()
    limit -= len(questions)
    nonces = db.execute("SELECT id FROM nonces WHERE expires_at <= ? LIMIT ?", (now, limit)).fetchall()
    return Over(turns, questions, nonces)


def drop_over(db: sqlite3.Connection, over: Over, now: float) -> int:
    """Drop those that are still over; return how many."""
    dropped = sum(_changed(db, _DROP_TURN, now, now, number) for (number,) in over.turns)
    dropped += sum(_changed(db, _DROP_QUESTION, now, number) for (number,) in over.questions)
    dropped += sum(_changed(db, _DROP_NONCE, now, key) for (key,) in over.nonces)
    return dropped


_SPEND = "INSERT INTO nonces VALUES (?, ?, ?) ON CONFLICT DO NOTHING"

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

_TURNS_OVER = """
SELECT number FROM turns WHERE keep_until <= ? AND (lease_until IS NULL OR lease_until <= ?) LIMIT ?
"""

_DROP_TURN = """
DELETE FROM turns WHERE keep_until <= ? AND (lease_until IS NULL OR lease_until <= ?) AND number = ?
"""

_DROP_QUESTION = "DELETE FROM questions WHERE keep_until <= ? AND number = ?"

_DROP_NONCE = "DELETE FROM nonces WHERE expires_at <= ? AND id = ?"


def _turn_name(key: TurnKey) -> bytes:
    return digest(key.listing, key.invocation_id, key.turn_id)


def _op_mark(op: str) -> int:
    return int.from_bytes(blake2b(op.encode(), digest_size=8).digest(), "big", signed=True)


def _changed(db: sqlite3.Connection, statement: str, *values: object) -> bool:
    return db.execute(statement, values).rowcount == 1


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
