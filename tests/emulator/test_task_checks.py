"""Each check of a task's life finds the fault it is there for, by callbacks and by polling."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import pytest

from finch_gateway.emulator.checks import TASK_CHECKS, Bench, CheckResult, checks_for, run_check
from finch_gateway.emulator.checks.task_life import ANSWER
from finch_gateway.emulator.following import Asked, Patience
from finch_gateway.emulator.receiver import Receiver

BOTH = ("conversation_turn", "task")
StartBench = Callable[..., Bench]

WALK = "contract-test task"
CALLBACKS = "callbacks of the task"
SNAPSHOT = "snapshot of the end"
UNASKED = "answer nobody asked for"
FIVE = "five dispatches at once"
EXPIRY = "expiry without a poll"
LAST = "ends hold"
# Only for what must fail: whatever is right is waited for as long as it takes.
IMPATIENT = Patience(0.8, 0.8, 0.5, 0.2, hurry_s=0.6, late_s=0.5)

FOUND_BY = {
    "task_200": ({WALK, FIVE, "repeated dispatch"}, "status 200 instead of 202"),
    "short_id": ({WALK}, "merchant_task_id is not 16 to 64"),
    "polls_too_late": ({WALK}, "poll_after_ms is not a whole number"),
    "receipt_changes": ({"repeated dispatch"}, "another receipt than its first attempt"),
    "task_per_attempt": ({FIVE, "repeated dispatch"}, "different receipts"),
    "no_conflict": ({"same invocation, other input"}, "instead of 409"),
    "repeats_sequence": ({CALLBACKS}, "has two bodies"),
    "event_after_end": ({LAST}, "comes after the end (completed)"),
    "event_with_two_bodies": ({LAST}, "has two bodies"),
    "no_end_event": ({CALLBACKS, "cancel", EXPIRY}, "no callback told the end"),
    "null_in_event": ({CALLBACKS}, "event.error is null"),
    "callback_with_request_secret": ({CALLBACKS}, "signed with the request secret"),
    "one_callback_nonce": ({CALLBACKS}, "X-Agent-Nonce was used for another delivery"),
    "signs_without_query": ({"cancel"}, "not over this method, target and these exact bytes"),
    "null_in_snapshot": ({WALK, SNAPSHOT}, "snapshot.error is null"),
    "snapshot_behind": ({SNAPSHOT}, "the snapshot's sequence is"),
    "progress_at_the_end": ({SNAPSHOT}, "progress is there while the task is completed"),
    "progress_falls": ({CALLBACKS}, "progress falls to 30 percent"),
    "remembers_polls": ({SNAPSHOT}, "the snapshot's sequence is 1"),
    "unsigned_task_404": ({"unknown task", "odd task ids"}, "unsigned"),
    "cancels_once": ({"cancel"}, "status 409 instead of 200"),
    "cancels_ended": ({"cancel after another end"}, "instead of 409"),
    "cancel_ignored": ({LAST}, "comes after the end (canceled)"),
    "takes_any_answer": ({"answer after the end"}, "instead of 409"),
    "never_expires": ({EXPIRY}, "after its deadline"),
    "runs_past_deadline": ({"dispatch past its deadline"}, "instead of expired"),
    "forgets_nonces": ({"replayed task calls"}, "instead of 401"),
    "future_accepted": ({"task calls off the clock"}, "instead of 401"),
    "cacheable": ({WALK, "unknown task"}, "Cache-Control is not no-store"),
    "task_fails": ({WALK}, "the agent's task failed with agent_error"),
}


async def run_tasks(bench: Bench, names: Collection[str] = ()) -> dict[str, CheckResult]:
    """Run the checks of these names (or all), and those that they look back at."""
    waiting = {UNASKED, EXPIRY} if LAST in names or EXPIRY in names else set()
    ending = {FIVE, "cancel"} if {LAST, "cancel", "cancel after another end"} & set(names) else set()
    needed = {*names, *waiting, *ending, WALK}
    chosen = [check for check in TASK_CHECKS if not names or check.name in needed]
    return {check.name: await run_check(check, bench) for check in chosen}


@pytest.mark.parametrize("wire_protocol", ["finch_v2", "agenton_v0"])
async def test_a_right_provider_passes_every_check(
    start_bench: StartBench, receiver: Receiver, wire_protocol: str
) -> None:
    bench = start_bench("", wire_protocol, BOTH, receiver)
    results = [await run_check(check, bench) for check in checks_for(BOTH)]
    assert {result.name: result.faults for result in results if not result.ok} == {}
    assert not any(result.fell_back for result in results)
    assert {result.name: result.remark for result in results if not result.tried} == {
        "repeated answer": "not tried: the agent asked nothing"
    }


async def test_polling_stands_in_where_no_callback_can_arrive(start_bench: StartBench) -> None:
    results = await run_tasks(start_bench("", "finch_v2", BOTH))
    assert {name: result.faults for name, result in results.items() if not result.ok} == {}
    assert {name for name, result in results.items() if result.fell_back} == {
        *(WALK, "cancel", EXPIRY, "dispatch past its deadline"),
    }
    assert not results[CALLBACKS].tried
    assert "polling stood in" in results[WALK].remark


@pytest.mark.parametrize("fault", FOUND_BY)
async def test_a_seeded_fault_is_found_and_named(start_bench: StartBench, receiver: Receiver, fault: str) -> None:
    names, words = FOUND_BY[fault]
    bench = start_bench(fault, "finch_v2", BOTH, receiver)
    bench.patience = IMPATIENT
    results = await run_tasks(bench, names)
    found = {name for name, result in results.items() if not result.ok}
    assert names <= found, {name: result.faults for name, result in results.items() if not result.ok}
    assert any(words in sentence for name in names for sentence in results[name].faults), results


async def test_callbacks_that_are_refused_are_not_waited_for(start_bench: StartBench, receiver: Receiver) -> None:
    bench = start_bench("callback_with_request_secret", "finch_v2", BOTH, receiver)
    bench.patience = Patience(callback_s=60, recovery_s=60, max_poll_after_s=0.2)
    started = time.monotonic()
    results = await run_tasks(bench, [WALK, CALLBACKS])
    assert time.monotonic() - started < 30
    assert (results[WALK].ok, results[CALLBACKS].ok) == (False, False)
    assert bench.walked is not None
    assert bench.walked.status == "completed"


@pytest.mark.parametrize("telling", ["event_type_only", "status_only"])
async def test_either_event_type_or_status_is_enough(start_bench: StartBench, receiver: Receiver, telling: str) -> None:
    results = await run_tasks(start_bench(telling, "finch_v2", BOTH, receiver))
    assert results[CALLBACKS].faults == ()


@pytest.mark.parametrize("by_callbacks", [True, False])
async def test_an_agent_that_asks_is_answered_once(
    start_bench: StartBench, receiver: Receiver, by_callbacks: bool
) -> None:
    bench = start_bench("task_asks", "finch_v2", BOTH, receiver if by_callbacks else None)
    results = await run_tasks(bench)
    assert {name: result.faults for name, result in results.items() if not result.ok} == {}
    assert "the agent asked, and was answered" in results[WALK].remark
    assert results["repeated answer"].got.startswith("2 x 202")
    assert results[WALK].dialogue == (Asked(("Which one?",), ANSWER),)


async def test_an_agent_that_asks_again_is_canceled_without_a_fault(
    start_bench: StartBench, receiver: Receiver
) -> None:
    results = await run_tasks(start_bench("task_asks_twice", "finch_v2", BOTH, receiver))
    assert {name: result.faults for name, result in results.items() if not result.ok} == {}
    assert "asked again" in results[WALK].remark
    assert results[WALK].dialogue == (Asked(("Which one?",), ANSWER), Asked(("Which one?",)))


async def test_an_agent_that_ends_at_once_is_no_fault(start_bench: StartBench, receiver: Receiver) -> None:
    results = await run_tasks(start_bench("task_at_once", "finch_v2", BOTH, receiver))
    assert {name: result.faults for name, result in results.items() if not result.ok} == {}
    for name in ("cancel", EXPIRY):
        assert (results[name].ok, results[name].tried, results[name].passed) == (True, False, False)
        assert results[name].remark.startswith("not tried: the agent was done before")


async def test_what_no_task_came_for_is_not_tried_and_fails_once(start_bench: StartBench, receiver: Receiver) -> None:
    results = await run_tasks(start_bench("short_id", "finch_v2", BOTH, receiver))
    assert not results[WALK].ok
    assert (results[SNAPSHOT].ok, results[SNAPSHOT].tried) == (True, False)
    assert results[SNAPSHOT].remark == "not tried: no task came of an earlier check, so there is nothing to look at"


async def test_an_agent_slower_than_the_deadline_is_named_soon_after(
    start_bench: StartBench, receiver: Receiver
) -> None:
    bench = start_bench("", "finch_v2", BOTH, receiver)
    bench.deadline_s = 1
    started = time.monotonic()
    results = await run_tasks(bench, [WALK])
    assert time.monotonic() - started < 10
    assert results[WALK].faults == ("the task ended as expired",)


async def test_evidence_of_callbacks_holds_no_signature_or_text(start_bench: StartBench, receiver: Receiver) -> None:
    bench = start_bench("", "finch_v2", BOTH, receiver)
    text = repr(await run_tasks(bench))
    assert bench.walked is not None
    assert [trace for trace in bench.walked.arrivals if trace.event and trace.event.status == "completed"]
    for arrival in bench.walked.arrivals:
        for name in ("X-Agent-Signature", "X-Agent-Nonce"):
            assert arrival.request.values(name)[0] not in text
    assert "I am useful" not in text
    assert "Reading" not in text
