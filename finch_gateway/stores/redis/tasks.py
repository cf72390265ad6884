"""What the scripts for tasks are told, and what their replies mean."""

from __future__ import annotations

from collections.abc import Sequence

from ...store import (
    AdmissionVerdict,
    Admitted,
    Conflict,
    Free,
    HeldTask,
    NewEvent,
    Nonce,
    QueueFull,
    Replayed,
    TaskAdmission,
    TaskChange,
    TaskIndex,
    TaskRow,
    TurnKey,
)
from .keys import nonce_name, receipt_name, turn_name
from .reading import Reply
from .replies import instant, nonsense, number, raw, rows, text
from .scripts import Fact, Told


def admit(one: TaskAdmission, now: float) -> Told:
    """Tell of a dispatch; the nonce's name comes along where one is to be spent."""
    facts: tuple[Fact, ...] = (
        now,
        one.task_id,
        one.listing,
        one.invocation_id,
        one.key_id,
        one.input_digest,
        one.op,
        *_index(one.index),
        one.max_queue,
        one.may_start,
        one.receipt_until,
        one.keep_until,
        _event(one.event),
    )
    name = receipt_name(one.listing, one.invocation_id)
    same_turn = turn_name(TurnKey(one.listing, one.invocation_id, ""))
    blobs = (name, same_turn, one.dispatch, one.record, one.receipt, one.event.body if one.event else b"")
    return _with_nonce(one.nonce, facts, blobs)


def read(task_id: str, listing: str, nonce: Nonce | None, now: float) -> Told:
    """Tell which task is asked for; the nonce's name comes along where one is to be spent."""
    return _with_nonce(nonce, (now, task_id, listing), ())


def commit(change: TaskChange, now: float) -> Told:
    """Tell of a change and its event."""
    facts = (
        now,
        change.task_id,
        change.version,
        False if change.epoch is None else change.epoch,
        change.op,
        *_index(change.index),
        change.keeps_lease,
        change.keep_until,
        _event(change.event),
    )
    return facts, (change.record, change.event.body if change.event else b"")


def held(tasks: Sequence[HeldTask]) -> tuple[Fact, ...]:
    """Tell of tasks and the epochs that are thought to hold them."""
    return tuple((one.task_id, one.epoch) for one in tasks)


def _with_nonce(nonce: Nonce | None, facts: tuple[Fact, ...], blobs: tuple[bytes, ...]) -> Told:
    if nonce is None:
        return facts, blobs
    return (*facts, nonce.op, nonce.expires_at), (*blobs, nonce_name(nonce))


def _index(index: TaskIndex) -> tuple[Fact, ...]:
    return index.state, index.is_ready, index.is_final, index.deadline


def _event(event: NewEvent | None) -> Fact:
    if event is None:
        return False
    # The script puts the body, which comes along as raw bytes, in its place.
    place_of_body = False
    return (
        event.sequence,
        place_of_body,
        event.url,
        event.callback_key_id,
        event.host,
        event.replaceable,
        event.not_before,
    )


def verdict(reply: Reply) -> AdmissionVerdict:
    """Return what an admission came to."""
    match reply:
        case [b"admitted", bytes() as receipt, int() as is_new]:
            return Admitted(receipt, is_new == 1)
        case [b"conflict"]:
            return Conflict()
        case [b"replayed"]:
            return Replayed()
        case [b"full"]:
            return QueueFull()
        case [b"free"]:
            return Free()
    raise nonsense()


def seen(reply: Reply) -> TaskRow | Replayed | None:
    """Return the task that was asked for."""
    return Replayed() if reply == b"replayed" else row_or_none(reply)


def row_or_none(reply: Reply) -> TaskRow | None:
    """Return the task of a reply that may hold none."""
    return None if reply is None else row(reply)


def row(reply: Reply) -> TaskRow:
    """Return the task of a reply."""
    match reply:
        case [task_id, listing, invocation_id, key_id, dispatch, record, state, ready, final, deadline, *standing]:
            version, epoch, attempt, lease_until = standing
            return TaskRow(
                task_id=text(task_id),
                listing=text(listing),
                invocation_id=text(invocation_id),
                key_id=text(key_id),
                dispatch=raw(dispatch),
                record=raw(record),
                index=TaskIndex(text(state), ready == 1, final == 1, instant(deadline)),
                version=number(version),
                epoch=number(epoch),
                attempt=number(attempt),
                lease_until=None if lease_until is None else instant(lease_until),
            )
    raise nonsense()


def lost(reply: Reply, tasks: Sequence[HeldTask]) -> list[HeldTask]:
    """Return the tasks at the places that the reply names."""
    return [tasks[number(place)] for place in rows(reply)]
