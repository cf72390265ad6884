"""A task's life: only the moves of the table, one event a move, and exactly the fields of the contract."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finch_gateway.wire import task as life
from finch_gateway.wire.task import FINAL, MOVES, RUNNING, IllegalMove, Receiver, State, TakenInput, Task

RECEIVER = Receiver("https://finch.example/callbacks/x", "finch.example", "finch.agenton.x")
NEW = life.accepted("task-0123456789abcdef", "cd613e30-d8f1-4adf-91b7-584a2265b1f5", "task", 1787567400.0, RECEIVER)
TAKEN = TakenInput("k", "h")


def in_state(state: State, **facts: Any) -> Task:
    return msgspec.structs.replace(NEW, state=state, **facts)


@pytest.mark.parametrize(("state", "to"), list(itertools.product(State, State)))
def test_every_pair_of_states_moves_exactly_as_the_table_says(state: State, to: State) -> None:
    task = in_state(state)
    if to in MOVES[state]:
        moved = life.advance(task, to)
        assert (moved.state, moved.sequence) == (to, task.sequence + 1)
    else:
        with pytest.raises(IllegalMove):
            life.advance(task, to)


def test_the_end_states_are_the_contracts_and_have_no_way_out() -> None:
    assert {state.value for state in FINAL} == {"completed", "failed", "canceled", "expired"}
    assert all(not MOVES[state] for state in FINAL)


def test_every_open_state_can_fail_be_canceled_and_expire() -> None:
    for state in set(State) - FINAL:
        assert {State.FAILED, State.CANCELED, State.EXPIRED} <= MOVES[state]


@given(st.lists(st.tuples(st.none() | st.integers(0, 100), st.none() | st.text(max_size=300)), max_size=20))
def test_progress_never_falls_and_repeats_nothing(reports: list[tuple[int | None, str | None]]) -> None:
    task, seen = life.start(NEW), []
    for percent, stage in reports:
        moved = life.report(task, percent, stage)
        assert moved is task or moved.sequence == task.sequence + 1
        task = moved
        seen.append(json.loads(life.snapshot(task, 1)).get("progress", {}).get("percent", 0))
    assert seen == sorted(seen)


def test_an_answer_answers_every_open_question_and_moves_on() -> None:
    asking = life.ask(life.start(NEW), [("a", "A?"), ("b", "B?")], b'{"x":1}')
    answered = life.answer(asking, "yes", TAKEN)
    assert answered.answers == {"a": "yes", "b": "yes"}
    assert (answered.state, answered.questions, answered.inputs) == (State.WORKING, (), (TAKEN,))
    assert answered.sequence == asking.sequence + 1


def test_a_generation_generates() -> None:
    assert life.start(msgspec.structs.replace(NEW, mode="generation")).state is State.GENERATING


def shown(task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads(life.snapshot(task, 3000)), json.loads(life.event(task))


STATES: dict[str, tuple[Task, dict[str, Any]]] = {
    "queued": (NEW, {}),
    "working": (life.start(NEW), {}),
    "progress": (
        life.report(life.start(NEW), 40, "Reading"),
        {"progress": {"percent": 40, "stage": "Reading"}},
    ),
    "stage only": (life.report(life.start(NEW), None, "Reading"), {"progress": {"percent": 0, "stage": "Reading"}}),
    "input_required": (
        life.ask(life.start(NEW), [("a", "A?")], b"null"),
        {"questions": [{"id": "a", "question": "A?"}]},
    ),
    "completed": (
        life.complete(life.start(NEW), life.content_bytes([{"type": "json", "json": {"n": 2**70}}]), 1787567400.5),
        {
            "message": {"role": "agent", "content": [{"type": "json", "json": {"n": 2**70}}]},
            "artifacts": [],
            "completed_at": "2026-08-24T10:30:00.500Z",
        },
    ),
    "failed": (life.fail(NEW, "no_data", "None."), {"error": {"code": "no_data", "message": "None."}}),
    "failed silently": (life.fail(NEW, "no_data", ""), {"error": {"code": "no_data"}}),
    "canceled": (life.cancel(NEW), {}),
    "expired": (life.expire(NEW), {}),
}


@pytest.mark.parametrize(("task", "facts"), list(STATES.values()), ids=list(STATES))
def test_snapshots_and_events_hold_exactly_their_fields(task: Task, facts: dict[str, Any]) -> None:
    snapshot, event = shown(task)
    common = {"protocol_version": "2.0", "merchant_task_id": task.id, "status": task.state.value}
    open_only = {} if task.is_final else {"poll_after_ms": 3000}
    assert snapshot == {**common, "sequence": task.sequence, **facts, **open_only}
    assert event == {
        **common,
        "sequence": task.sequence,
        **facts,
        "event_id": f"evt-{task.id}-{task.sequence}",
        "event_type": f"task.{task.state.value}",
        "invocation_id": task.invocation_id,
    }


@pytest.mark.parametrize("task", [task for task, _ in STATES.values()], ids=list(STATES))
def test_a_record_reads_back_as_what_it_was(task: Task) -> None:
    again = Task.from_bytes(task.to_bytes())
    assert shown(again) == shown(task)
    assert again.to_bytes() == task.to_bytes()
    assert again.receiver == RECEIVER


def test_an_ended_task_keeps_nothing_of_the_agents_own() -> None:
    asking = life.with_saved(life.ask(life.start(NEW), [("a", "A?")], b'"secret state"'), b'"saved state"')
    for ended in (life.cancel(asking), life.expire(asking), life.fail(asking, "x", "")):
        assert b"state" not in ended.to_bytes().replace(b'"state":', b"")


def test_saving_is_no_event() -> None:
    assert life.with_saved(NEW, b"1").sequence == NEW.sequence


def test_running_states_show_progress_and_no_other_does() -> None:
    for state in State:
        assert ("progress" in json.loads(life.snapshot(in_state(state, percent=5), 1))) == (state in RUNNING)


def test_receipts_and_answers_have_exactly_their_fields() -> None:
    assert json.loads(life.receipt("i", "t", 3000)) == {
        "protocol_version": "2.0",
        "invocation_id": "i",
        "status": "accepted",
        "merchant_task_id": "t",
        "poll_after_ms": 3000,
    }
    assert json.loads(life.message_taken("t")) == {
        "protocol_version": "2.0",
        "status": "accepted",
        "merchant_task_id": "t",
    }
    assert json.loads(life.canceled("t", 4)) == {
        "protocol_version": "2.0",
        "status": "canceled",
        "merchant_task_id": "t",
        "sequence": 4,
    }
