"""What the scripts for turns are told, and what their replies mean."""

from __future__ import annotations

from ...store import (
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
from .keys import conversation_name, nonce_name, receipt_name, turn_name
from .reading import Reply
from .replies import instant, nonsense, text
from .scripts import Told


def claim(one: TurnClaim, now: float) -> Told:
    """Tell of a claim; the nonce's name comes along where one is to be spent."""
    key, nonce = one.key, one.nonce
    name = turn_name(key)
    # Only a turn without an id of its own can have the identity of a task.
    same_task = b"" if key.turn_id else receipt_name(key.listing, key.invocation_id)
    raw: tuple[bytes, ...] = (name, conversation_name(key, one.conversation_id, name), one.facts, same_task)
    lease_until = now + one.lease_s
    facts = (
        now,
        one.input_digest,
        one.key_id,
        one.op,
        lease_until,
        max(one.keep_until, lease_until),
        one.may_start,
        key.listing,
        key.invocation_id,
        key.turn_id,
        one.conversation_id,
    )
    if nonce is None:
        return facts, raw
    return (*facts, nonce.op, nonce.expires_at), (*raw, nonce_name(nonce))


def finish(end: TurnEnd, now: float) -> Told:
    """Tell of a turn's end and what becomes of its conversation's question."""
    name = turn_name(end.key)
    raw = (name, conversation_name(end.key, end.conversation_id, name), end.reply)
    match end.question:
        case KeepQuestion(record, kept_until):
            # A turn ends once, so its name and epoch make a version that no other question has.
            version = f"{name.hex()}.{end.epoch}"
            return (now, end.epoch, end.keep_until, "keep", version, kept_until), (*raw, record)
        case ClearQuestion(version):
            return (now, end.epoch, end.keep_until, "clear", version), raw
    return (now, end.epoch, end.keep_until, False), raw


def of(key: TurnKey, *facts: float, raw: tuple[bytes, ...] = ()) -> Told:
    """Tell of one turn what its script wants."""
    return facts, (turn_name(key), *raw)


def verdict(reply: Reply) -> Verdict:
    """Return what a claim came to."""
    match reply:
        case [b"held", int() as epoch, int() as attempt, bytes() | None as saved, bytes() | None as question, version]:
            return Held(epoch, attempt, saved, question, text(version))
        case [b"running", lease_until]:
            return Running(instant(lease_until))
        case [b"answered", bytes() as answer]:
            return Answered(answer)
        case [b"conflict"]:
            return Conflict()
        case [b"replayed"]:
            return Replayed()
        case [b"free"]:
            return Free()
    raise nonsense()


def standing(reply: Reply) -> Running | Answered | Free:
    """Return where a turn stands."""
    seen = verdict(reply)
    if isinstance(seen, Running | Answered | Free):
        return seen
    raise nonsense()
