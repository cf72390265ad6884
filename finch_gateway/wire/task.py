"""A task's life: the states, the moves between them, and what Finch sees of each (wire 6.2, 6.3, 7.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from .dispatch import PROTOCOL_VERSION, Mode
from .documents import write, write_text
from .replies import MAX_MESSAGE_CHARS, instant

MAX_STAGE_CHARS = 200


class State(StrEnum):
    """The statuses we emit (wire 6.2)."""

    QUEUED = "queued"
    WORKING = "working"
    GENERATING = "generating"
    UPLOADING = "uploading"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


_ENDED_FROM_OUTSIDE = frozenset({State.FAILED, State.CANCELED, State.EXPIRED})
_RUNNING_MOVES = _ENDED_FROM_OUTSIDE | {State.UPLOADING, State.INPUT_REQUIRED, State.COMPLETED}

MOVES: dict[State, frozenset[State]] = {
    State.QUEUED: _ENDED_FROM_OUTSIDE | {State.WORKING, State.GENERATING},
    # To itself: progress.
    State.WORKING: _RUNNING_MOVES | {State.WORKING},
    State.GENERATING: _RUNNING_MOVES | {State.GENERATING},
    State.UPLOADING: _RUNNING_MOVES | {State.WORKING, State.GENERATING},
    # The answer itself moves the task on (wire 6.4).
    State.INPUT_REQUIRED: _ENDED_FROM_OUTSIDE | {State.WORKING, State.GENERATING},
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELED: frozenset(),
    State.EXPIRED: frozenset(),
}
"""Every move there is; the end states have none."""

FINAL = frozenset(state for state, moves in MOVES.items() if not moves)
RUNNING = frozenset({State.WORKING, State.GENERATING, State.UPLOADING})
KEPT_EVENTS = FINAL | {State.INPUT_REQUIRED}
"""The states whose event is never dropped for a newer one (wire 7.3)."""


class IllegalMove(Exception):
    """A task cannot go from its state to that one."""

    def __init__(self, task_id: str, state: State, to: State) -> None:
        super().__init__(f"task {task_id} cannot move from {state} to {to}")


class TakenInput(msgspec.Struct, frozen=True):
    """A message that was taken: its Idempotency-Key's hash, empty where none was sent, and its body's (wire 6.4)."""

    key: str
    body_hash: str


class Receiver(msgspec.Struct, frozen=True):
    """Where a task's events go, as its dispatch named it (wire 7.1)."""

    url: str
    host: str
    callback_key_id: str


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task as it stands. What it holds of the agent's own (`content`, `resume`, `saved`) is JSON already written.

    `sequence` is that of the newest event, `receiver` None where the dispatch names no callback. `questions` are
    pairs of id and text, `answers` all answers so far.
    """

    id: str
    invocation_id: str
    mode: Mode
    state: State
    sequence: int
    created_at: float
    receiver: Receiver | None = None
    percent: int | None = None
    stage: str = ""
    questions: tuple[tuple[str, str], ...] = ()
    answers: dict[str, str] = {}
    rounds: int = 0
    inputs: tuple[TakenInput, ...] = ()
    resume: msgspec.Raw = msgspec.Raw(b"null")
    saved: msgspec.Raw = msgspec.Raw(b"null")
    content: msgspec.Raw = msgspec.Raw(b"[]")
    completed_at: float = 0
    error_code: str = ""
    error_message: str = ""

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    def to_bytes(self) -> bytes:
        """Return the task as the store keeps it."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, record: bytes) -> Task:
        return msgspec.json.decode(record, type=cls)


def accepted(task_id: str, invocation_id: str, mode: Mode, at: float, receiver: Receiver | None) -> Task:
    """Return a task as it begins: queued, its first event written."""
    return Task(task_id, invocation_id, mode, State.QUEUED, 1, at, receiver)


def stand_in(task_id: str, invocation_id: str, state: str, version: int) -> Task:
    """Return what can be said of a task whose record cannot be read: enough to show it and to end it.

    A task's version grows with every event, so a sequence above it is above every event's.
    """
    return Task(task_id, invocation_id, "task", State(state), version + 1, 0.0)


def advance(task: Task, to: State, **facts: Any) -> Task:
    """The only way a task changes state; each move is one event. Raises `IllegalMove`."""
    if to not in MOVES[task.state]:
        raise IllegalMove(task.id, task.state, to)
    return msgspec.structs.replace(task, state=to, sequence=task.sequence + 1, **facts)


def start(task: Task) -> Task:
    """The agent begins, or goes on after an answer."""
    return advance(task, running_state(task.mode))


def running_state(mode: Mode) -> State:
    """Return the state in which an agent works: a generation generates (wire 6.2)."""
    return State.GENERATING if mode == "generation" else State.WORKING


def report(task: Task, percent: int | None, stage: str | None) -> Task:
    """Report progress, which never falls (wire 6.3); the same task where nothing is new."""
    risen = task.percent if percent is None else max(percent, task.percent or 0)
    named = task.stage if stage is None else stage[:MAX_STAGE_CHARS]
    if (risen, named) == (task.percent, task.stage):
        return task
    return advance(task, task.state, percent=risen, stage=named)


def with_saved(task: Task, saved: bytes) -> Task:
    """Keep the agent's own state, as JSON; no move, and no event."""
    return msgspec.structs.replace(task, saved=msgspec.Raw(saved))


def ask(task: Task, questions: Sequence[tuple[str, str]], resume: bytes) -> Task:
    """Wait for the buyer; `resume` is the backend's own state, as JSON."""
    return advance(
        task, State.INPUT_REQUIRED, questions=tuple(questions), resume=msgspec.Raw(resume), rounds=task.rounds + 1
    )


def answer(task: Task, text: str, taken: TakenInput) -> Task:
    """Take `text` as the answer to every open question (wire 6.4)."""
    answers = {**task.answers, **{asked: text for asked, _ in task.questions}}
    inputs = (*task.inputs, taken)
    return advance(task, running_state(task.mode), questions=(), answers=answers, inputs=inputs)


def complete(task: Task, content: bytes, at: float) -> Task:
    """End with a result; `content` is the list of parts, as JSON."""
    return advance(task, State.COMPLETED, content=msgspec.Raw(content), completed_at=at, **_WITHOUT_AGENTS_OWN)


def fail(task: Task, code: str, message: str) -> Task:
    """End with a failure that the buyer may read."""
    return advance(
        task, State.FAILED, error_code=code, error_message=message[:MAX_MESSAGE_CHARS], **_WITHOUT_AGENTS_OWN
    )


def cancel(task: Task) -> Task:
    """End because the buyer wants no more of it (wire 6.5)."""
    return advance(task, State.CANCELED, **_WITHOUT_AGENTS_OWN)


def expire(task: Task) -> Task:
    """End because the deadline has passed (wire 6.6)."""
    return advance(task, State.EXPIRED, **_WITHOUT_AGENTS_OWN)


_WITHOUT_AGENTS_OWN = {"questions": (), "resume": msgspec.Raw(b"null"), "saved": msgspec.Raw(b"null")}
"""What an ended task no longer needs."""


def snapshot(task: Task, poll_after_ms: int) -> bytes:
    """Return what a poll answers (wire 6.3)."""
    fields = {
        "protocol_version": PROTOCOL_VERSION,
        "merchant_task_id": task.id,
        "status": task.state.value,
        "sequence": task.sequence,
        **_facts(task),
    }
    if not task.is_final:
        fields["poll_after_ms"] = poll_after_ms
    return write_text(fields)


def event(task: Task) -> bytes:
    """Return the body of the callback that tells of the task's newest move (wire 7.2)."""
    return write_text(
        {
            "protocol_version": PROTOCOL_VERSION,
            "event_id": event_id(task.id, task.sequence),
            "invocation_id": task.invocation_id,
            "event_type": f"task.{task.state.value}",
            "status": task.state.value,
            "merchant_task_id": task.id,
            "sequence": task.sequence,
            **_facts(task),
        }
    )


def event_id(task_id: str, sequence: int) -> str:
    """Return the id of a task's event, the same for every attempt to deliver it (wire 7.2)."""
    return f"evt-{task_id}-{sequence}"


def _facts(task: Task) -> dict[str, Any]:
    """Return what the state calls for, the same in snapshots and events."""
    if task.state in RUNNING and (task.percent is not None or task.stage):
        progress: dict[str, Any] = {"percent": task.percent or 0}
        if task.stage:
            progress["stage"] = task.stage
        return {"progress": progress}
    if task.state is State.INPUT_REQUIRED:
        return {"questions": [{"id": asked, "question": text} for asked, text in task.questions]}
    if task.state is State.COMPLETED:
        return {
            "message": {"role": "agent", "content": task.content},
            "artifacts": [],
            "completed_at": instant(task.completed_at),
        }
    if task.state is State.FAILED:
        error = {"code": task.error_code}
        if task.error_message:
            error["message"] = task.error_message
        return {"error": error}
    return {}


def receipt(invocation_id: str, task_id: str, poll_after_ms: int) -> bytes:
    """Return the body of the 202 (wire 6.1)."""
    return write_text(
        {
            "protocol_version": PROTOCOL_VERSION,
            "invocation_id": invocation_id,
            "status": "accepted",
            "merchant_task_id": task_id,
            "poll_after_ms": poll_after_ms,
        }
    )


def message_taken(task_id: str) -> bytes:
    """Return the body that answers an accepted message (wire 3)."""
    return write_text({"protocol_version": PROTOCOL_VERSION, "status": "accepted", "merchant_task_id": task_id})


def canceled(task_id: str, sequence: int) -> bytes:
    """Return the body that answers a cancel (wire 3)."""
    return write_text(
        {
            "protocol_version": PROTOCOL_VERSION,
            "status": "canceled",
            "merchant_task_id": task_id,
            "sequence": sequence,
        }
    )


def content_bytes(content: Sequence[Mapping[str, Any]]) -> bytes:
    """Return content parts as JSON; raise `ValueError` for what JSON cannot say."""
    return write(list(content))
