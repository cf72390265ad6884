"""What Finch finds wrong with what a provider says of a task: receipt, snapshot, event, answers (wire 6, 7.2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from .envelopes import JsonObject
from .replies import (
    NotJson,
    completed_faults,
    error_faults,
    field_faults,
    null_faults,
    question_faults,
    read_json,
)

FINAL = frozenset({"completed", "failed", "canceled", "expired"})
RUNNING = frozenset({"working", "generating", "uploading"})
STATUSES = FINAL | RUNNING | {"submitted", "queued", "input_required"}
MAX_POLL_AFTER_MS = 3_600_000

_TASK_ID = re.compile(r"[A-Za-z0-9_-]{16,64}", re.ASCII)
_EVENT_ID = re.compile(r"[!-~]{1,256}", re.ASCII)
_SNAPSHOT = ("protocol_version", "merchant_task_id", "status", "sequence")
_EVENT = ("protocol_version", "event_id", "merchant_task_id", "sequence")
_EVENT_OPTIONAL = ("invocation_id", "event_type", "status")
_FACTS: dict[str, tuple[str, ...]] = {
    "completed": ("message", "artifacts"),
    "failed": ("error",),
    "input_required": ("questions",),
}


@dataclass(frozen=True, slots=True)
class State:
    """What a snapshot or an event says of a task; `percent` is None where it tells no progress."""

    merchant_task_id: str
    status: str
    sequence: int
    percent: int | None
    document: JsonObject

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def facts(self) -> JsonObject:
        """Return what snapshot and event of one state share."""
        names = ("progress", "questions", "message", "artifacts", "completed_at", "error")
        return {name: self.document[name] for name in names if name in self.document}

    def agrees_with(self, other: State) -> bool:
        """Say whether two tellings of one sequence tell the same; an event may leave `completed_at` out."""
        mine, theirs = self.facts, other.facts
        return self.status == other.status and all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys())


@dataclass(frozen=True, slots=True)
class Event(State):
    """What a callback says."""

    event_id: str
    invocation_id: str


def receipt_faults(body: bytes, invocation_id: str) -> list[str]:
    """Return every fault of the 202 to a dispatch (wire 6.1)."""
    receipt, faults = _object(body, "the receipt")
    if faults:
        return faults
    fields = ("protocol_version", "invocation_id", "status", "merchant_task_id", "poll_after_ms")
    faults += [*null_faults(receipt, "receipt"), *field_faults(receipt, fields, "the receipt")]
    faults += _version_faults(receipt)
    if receipt.get("invocation_id") != invocation_id:
        faults.append("invocation_id is not the request's")
    if receipt.get("status") != "accepted":
        faults.append('status is not "accepted"')
    if not _is_task_id(receipt.get("merchant_task_id")):
        faults.append("merchant_task_id is not 16 to 64 letters, digits, underscores or dashes")
    return [*faults, *_poll_after_faults(receipt)]


def task_id_of(body: bytes) -> str:
    """Return the task's id in a receipt, or an empty text where there is none to use."""
    receipt, _ = _object(body, "the receipt")
    task_id = receipt.get("merchant_task_id")
    return task_id if isinstance(task_id, str) and _is_task_id(task_id) else ""


def poll_after_s(body: bytes, fallback_s: float) -> float:
    """Return how long a receipt or snapshot asks to wait before the next poll, in seconds."""
    document, _ = _object(body, "the answer")
    value = document.get("poll_after_ms")
    return value / 1000 if _is_whole(value, 0, MAX_POLL_AFTER_MS) else fallback_s


def read_snapshot(body: bytes, merchant_task_id: str) -> tuple[State | None, list[str]]:
    """Return what a poll's answer says, and every fault of it (wire 6.3)."""
    snapshot, faults = _object(body, "the snapshot")
    if faults:
        return None, faults
    status = snapshot.get("status")
    if not isinstance(status, str) or status not in STATUSES:
        return None, ["status is none that Finch recognises"]
    is_final = status in FINAL
    fields = (*_SNAPSHOT, *_FACTS.get(status, ()), *(("completed_at",) if status == "completed" else ()))
    fields = fields if is_final else (*fields, "poll_after_ms")
    faults += null_faults(snapshot, "snapshot")
    faults += field_faults(snapshot, fields, "the snapshot", ("progress",) if status in RUNNING else ())
    faults += [*_version_faults(snapshot), *_identity_faults(snapshot, merchant_task_id), *_fact_faults(snapshot)]
    if "poll_after_ms" in snapshot:
        faults += _poll_after_faults(snapshot)
    return _state(snapshot, status), faults


def read_event(body: bytes) -> tuple[Event | None, list[str]]:
    """Return what a callback says, and every fault of its form; either event_type or status is enough (wire 7.2)."""
    event, faults = _object(body, "the event")
    if faults:
        return None, faults
    status, faults = _status_of_event(event)
    event_id = event.get("event_id")
    if not isinstance(event_id, str) or not _EVENT_ID.fullmatch(event_id):
        faults.append("event_id is not 1 to 256 visible ASCII characters")
    if faults:
        return None, faults
    optional = _EVENT_OPTIONAL + (("progress",) if status in RUNNING else ())
    optional += ("completed_at",) if status == "completed" else ()
    faults += null_faults(event, "event")
    faults += field_faults(event, _EVENT + _FACTS.get(status, ()), "the event", optional)
    faults += [*_version_faults(event), *_identity_faults(event, ""), *_fact_faults({**event, "status": status})]
    state = _state(event, status)
    if state is None:
        return None, faults
    invocation_id = event.get("invocation_id", "")
    if not isinstance(invocation_id, str):
        faults.append("invocation_id is not a text")
    return Event(
        *(state.merchant_task_id, state.status, state.sequence, state.percent, event),
        event_id=str(event_id),
        invocation_id=str(invocation_id),
    ), faults


def taken_faults(body: bytes, merchant_task_id: str) -> list[str]:
    """Return every fault of the 202 to a message (wire 3)."""
    answer, faults = _object(body, "the answer")
    expected = {"protocol_version": "2.0", "status": "accepted", "merchant_task_id": merchant_task_id}
    if not faults and answer != expected:
        faults.append("the answer is not exactly protocol_version, status accepted and the task's id")
    return faults


def canceled_faults(body: bytes, merchant_task_id: str) -> list[str]:
    """Return every fault of the 200 to a cancel (wire 3, 6.5)."""
    answer, faults = _object(body, "the answer")
    if faults:
        return faults
    faults += field_faults(answer, _SNAPSHOT, "the answer")
    faults += [*_version_faults(answer), *_identity_faults(answer, merchant_task_id)]
    if answer.get("status") != "canceled":
        faults.append('status is not "canceled"')
    return faults


def sequence_of(body: bytes) -> int:
    """Return the sequence that an answer names, or 0."""
    document, _ = _object(body, "the answer")
    sequence = document.get("sequence")
    return sequence if isinstance(sequence, int) else 0


def _object(body: bytes, what: str) -> tuple[JsonObject, list[str]]:
    try:
        value = read_json(body)
    except NotJson as error:
        return {}, [str(error)]
    return (value, []) if isinstance(value, dict) else ({}, [f"{what} is not an object"])


def _status_of_event(event: JsonObject) -> tuple[str, list[str]]:
    kind, status = event.get("event_type"), event.get("status")
    if kind is None and status is None:
        return "", ["neither event_type nor status says what happened"]
    named = status if status is not None else str(kind).removeprefix("task.")
    if kind is not None and kind != f"task.{named}":
        return "", ["event_type is not task. and the status"]
    if not isinstance(named, str) or named not in STATUSES:
        return "", ["status is none that Finch recognises"]
    return named, []


def _version_faults(document: JsonObject) -> Iterator[str]:
    if document.get("protocol_version") != "2.0":
        yield 'protocol_version is not "2.0"'


def _identity_faults(document: JsonObject, merchant_task_id: str) -> Iterator[str]:
    if not _is_task_id(document.get("merchant_task_id")):
        yield "merchant_task_id is not 16 to 64 letters, digits, underscores or dashes"
    elif merchant_task_id and document["merchant_task_id"] != merchant_task_id:
        yield "merchant_task_id is not the receipt's"
    if not _is_whole(document.get("sequence"), 1):
        yield "sequence is not a positive whole number"


def _fact_faults(document: JsonObject) -> Iterator[str]:
    """Yield what is wrong with the fields that a status calls for."""
    status = document["status"]
    if status == "completed":
        yield from completed_faults(document)
    elif status == "failed":
        yield from error_faults(document.get("error"))
    elif status == "input_required":
        yield from question_faults(document.get("questions"))
    if "progress" in document and status in RUNNING:
        yield from _progress_faults(document["progress"])
    elif "progress" in document:
        yield f"progress is there while the task is {status}"


def _progress_faults(progress: object) -> Iterator[str]:
    if not isinstance(progress, dict):
        yield "progress is not an object"
        return
    yield from field_faults(progress, ("percent",), "progress", ("stage",))
    if "percent" in progress and not _is_whole(progress["percent"], 0, 100):
        yield "progress.percent is not a whole number from 0 to 100"
    if "stage" in progress and not isinstance(progress["stage"], str):
        yield "progress.stage is not a text"


def _poll_after_faults(document: JsonObject) -> Iterator[str]:
    if not _is_whole(document.get("poll_after_ms"), 0, MAX_POLL_AFTER_MS):
        yield f"poll_after_ms is not a whole number from 0 to {MAX_POLL_AFTER_MS}"


def _state(document: JsonObject, status: str) -> State | None:
    task_id, sequence = document.get("merchant_task_id"), document.get("sequence")
    if not isinstance(task_id, str) or not isinstance(sequence, int) or isinstance(sequence, bool):
        return None
    progress = document.get("progress")
    percent = progress.get("percent") if isinstance(progress, dict) else None
    return State(task_id, status, sequence, percent if _is_whole(percent, 0, 100) else None, document)


def _is_task_id(value: object) -> bool:
    return isinstance(value, str) and _TASK_ID.fullmatch(value) is not None


def _is_whole(value: object, least: int, most: int | None = None) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most)
