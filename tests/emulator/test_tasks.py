"""What is said of a task is read strictly, and whatever comes is judged without a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finch_gateway.emulator.tasks import (
    State,
    canceled_faults,
    poll_after_s,
    read_event,
    read_snapshot,
    receipt_faults,
    sequence_of,
    taken_faults,
    task_id_of,
)
from finch_gateway.emulator.timeline import History

TASK = "provider-task-123"
RECEIPT = {
    "protocol_version": "2.0",
    "invocation_id": "i-1",
    "status": "accepted",
    "merchant_task_id": TASK,
    "poll_after_ms": 5000,
}
WORKING = {
    "protocol_version": "2.0",
    "merchant_task_id": TASK,
    "status": "working",
    "sequence": 2,
    "progress": {"percent": 10, "stage": "Reading"},
    "poll_after_ms": 0,
}
QUESTIONS = [{"id": "scope", "question": "Which one?"}]
COMPLETED = {
    "protocol_version": "2.0",
    "merchant_task_id": TASK,
    "status": "completed",
    "sequence": 3,
    "message": {"role": "agent", "content": [{"type": "json", "json": None}]},
    "artifacts": [],
    "completed_at": "2026-08-24T10:29:12.000Z",
}
ANSWER = {"protocol_version": "2.0", "status": "accepted", "merchant_task_id": TASK}
CANCELED = {**ANSWER, "status": "canceled", "sequence": 4}


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def raw(document: object) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "snapshot",
    [
        WORKING,
        without(WORKING, "progress"),
        {**WORKING, "progress": {"percent": 100}},
        {**without(WORKING, "progress"), "status": "queued"},
        {**without(WORKING, "progress"), "status": "input_required", "questions": QUESTIONS},
        COMPLETED,
        {**without(WORKING, "progress", "poll_after_ms"), "status": "canceled"},
        {**without(WORKING, "progress", "poll_after_ms"), "status": "failed", "error": {"code": "agent_error"}},
    ],
)
def test_a_right_snapshot_has_no_fault(snapshot: dict[str, Any]) -> None:
    state, faults = read_snapshot(raw(snapshot), TASK)
    assert faults == []
    assert state is not None
    assert (state.status, state.sequence) == (snapshot["status"], snapshot["sequence"])


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        ({**WORKING, "error": None}, "snapshot.error is null"),
        ({**WORKING, "invocation_id": "i-1"}, "not in the contract: invocation_id"),
        (without(WORKING, "poll_after_ms"), "lacks poll_after_ms"),
        ({**COMPLETED, "poll_after_ms": 1000}, "not in the contract: poll_after_ms"),
        (without(COMPLETED, "completed_at"), "lacks completed_at"),
        ({**WORKING, "merchant_task_id": "another-task-0001"}, "not the receipt's"),
        ({**WORKING, "sequence": 0}, "sequence is not"),
        ({**WORKING, "poll_after_ms": 3_600_001}, "poll_after_ms is not"),
        ({**WORKING, "poll_after_ms": True}, "poll_after_ms is not"),
        ({**WORKING, "status": "queued"}, "progress"),
        ({**WORKING, "status": "running"}, "none that Finch recognises"),
        ({**COMPLETED, "progress": {"percent": 100}}, "progress"),
    ],
)
def test_a_wrong_snapshot_is_named(snapshot: dict[str, Any], words: str) -> None:
    _, faults = read_snapshot(raw(snapshot), TASK)
    assert any(words in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("receipt", "words"),
    [
        (without(RECEIPT, "poll_after_ms"), "poll_after_ms"),
        ({**RECEIPT, "poll_after_ms": -1}, "poll_after_ms"),
        ({**RECEIPT, "poll_after_ms": 5.0}, "poll_after_ms"),
        ({**RECEIPT, "status": "queued"}, "status"),
        ({**RECEIPT, "invocation_id": "i-2"}, "invocation_id"),
        ({**RECEIPT, "merchant_task_id": "a/b" * 8}, "merchant_task_id"),
        ({**RECEIPT, "merchant_task_id": "x" * 65}, "merchant_task_id"),
        ({**RECEIPT, "sequence": 1}, "not in the contract: sequence"),
    ],
)
def test_a_wrong_receipt_is_named(receipt: dict[str, Any], words: str) -> None:
    assert receipt_faults(raw(RECEIPT), "i-1") == []
    assert any(words in fault for fault in receipt_faults(raw(receipt), "i-1"))


def test_answers_to_messages_and_cancels_are_exact() -> None:
    assert taken_faults(raw(ANSWER), TASK) == []
    assert taken_faults(raw({**ANSWER, "sequence": 2}), TASK) != []
    assert canceled_faults(raw(CANCELED), TASK) == []
    assert canceled_faults(raw(without(CANCELED, "sequence")), TASK) != []
    assert canceled_faults(raw({**CANCELED, "status": "canceling"}), TASK) != []


def test_a_history_tells_two_tellings_of_one_sequence_apart() -> None:
    history = History()
    first = State(TASK, "completed", 3, None, without(COMPLETED, "completed_at"))
    assert history.note(first) == []
    assert history.note(State(TASK, "completed", 3, None, COMPLETED)) == []
    assert "in two ways" in history.note(State(TASK, "completed", 3, None, {**COMPLETED, "artifacts": [{}]}))[0]
    assert "in two ways" in history.note(State(TASK, "failed", 3, None, {}))[0]


def test_a_history_knows_a_late_state_by_its_sequence() -> None:
    history = History()
    assert history.note(State(TASK, "working", 5, 50, {})) == []
    assert history.note(State(TASK, "working", 4, 40, {})) == []
    assert history.note(State(TASK, "working", 6, 49, {})) == ["progress falls to 49 percent at sequence 6"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({*WORKING, *COMPLETED, "questions", "error", "event_id", "event_type", "invocation_id"}))


@given(st.dictionaries(NAMES, JSON) | JSON, st.sampled_from([WORKING, COMPLETED, RECEIPT, CANCELED, {}]))
def test_no_document_breaks_the_judges(fuzz: object, base: dict[str, Any]) -> None:
    body = raw({**base, **fuzz} if isinstance(fuzz, dict) else fuzz)
    for judge in (read_event, task_id_of, sequence_of):
        judge(body)
    read_snapshot(body, TASK)
    for faults in (receipt_faults(body, "i-1"), taken_faults(body, TASK), canceled_faults(body, TASK)):
        assert all(isinstance(fault, str) for fault in faults)
    assert poll_after_s(body, 1.0) >= 0
