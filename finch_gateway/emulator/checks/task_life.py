"""A contract-test task from its receipt to its end, and the other ends a task can have (wire 6, 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from ..exchange import Exchange
from ..following import FollowedTask
from ..replies import failure_of
from ..tasks import State, read_snapshot
from .judge import Bench, Check, Findings, answer_faults, refusal_faults

ANSWER = "Whatever suits you best."
"""What the tester says to an agent's question."""

NO_TASK = Findings((), untried="no task came of an earlier check, so there is nothing to look at")

NO_CALLBACK = "not one callback arrived"
"""The fault of a task that was accepted and told nothing."""

# Every client must leave these as they are, or refuse the dispatch (wire 7.5).
_HARD_QUERY = "?state=a%2Fb%7e&q=x+y&q=&empty&state="
_ATTEMPTS = 5
_PAST_S = -5.0
_IMPATIENT_S = 0.5
_UNREACHED = "no callback can reach this tester, so polling stood in"


def findings_of(
    bench: Bench, task: FollowedTask, faults: Sequence[str], started: float, remark: str = "", untried: str = ""
) -> Findings:
    """Return the findings of a check that followed a task, with whatever its callbacks had wrong."""
    told = [*faults, *task.faults, *(task.timeline.faults if task.timeline else ())]
    took_s = bench.platform.clock() - started
    fell_back = task.timeline is None and bool(task.task_id)
    remarks = [remark] if remark else []
    return Findings(
        tuple(task.exchanges),
        tuple(told),
        "; ".join([*remarks, *([_UNREACHED] if fell_back and not untried else [])]),
        tuple(task.arrivals),
        fell_back,
        took_s,
        untried,
        tuple(task.dialogue),
    )


async def _walk(bench: Bench) -> Findings:
    task, started = bench.new_task(), bench.platform.clock()
    faults = answer_faults(await task.start(), 202)
    if task.task_id:
        bench.walked = task
        await task.poll()
        await task.to_end(until=task.call.deadline + task.patience.grace_s, answer=ANSWER)
        faults += _end_faults(task)
    remark = "the agent asked, and was answered" if task.answers else ""
    if task.asked_again:
        remark = "the agent asked again after an answer, so the task was canceled"
    return findings_of(bench, task, faults, started, remark)


def _end_faults(task: FollowedTask) -> list[str]:
    end = task.end
    if end is None:
        return [f"the task has not ended; its newest status is {task.status or 'unknown'}"]
    if end.status == "failed":
        return [f"the agent's task failed with {failure_of(end.document)[0]}"]
    if end.status == "completed" or (end.status == "canceled" and task.asked_again):
        return []
    return [f"the task ended as {end.status}"]


async def _callbacks(bench: Bench) -> Findings:
    task, started = bench.walked, bench.platform.clock()
    if bench.receiver is None:
        return Findings((), untried="no callback can reach this tester")
    if task is None or task.timeline is None:
        return NO_TASK
    faults = await _untold(task)
    if faults:
        # What does not work is named here once; the checks after this one do not wait for it as long.
        bench.patience = replace(bench.patience, callback_s=bench.patience.callback_s / 10, recovery_s=_IMPATIENT_S)
    if not task.arrivals:
        faults = [NO_CALLBACK]
    faults += task.timeline.faults
    faults += [fault for stray in bench.receiver.strays for fault in stray.faults]
    return Findings((), tuple(faults), "", tuple(task.arrivals), took_s=bench.platform.clock() - started)


async def _snapshot(bench: Bench) -> Findings:
    """Poll twice under the key of every poll before, which must not turn a poll into a memory (wire 6.3)."""
    task = bench.walked
    if task is None:
        return NO_TASK
    poll = bench.platform.poll_call(task.task_id, key=task.poll_key)
    exchanges = [await bench.platform.perform(poll) for _ in range(2)]
    faults: list[str] = []
    for exchange in exchanges:
        faults += answer_faults(exchange, 200)
        state, found = read_snapshot(exchange.answer.body, task.task_id)
        faults += [*found, *_against(task, state)]
    return Findings(tuple(exchanges), tuple(faults))


def _against(task: FollowedTask, state: State | None) -> list[str]:
    """Return where a snapshot differs from what is known: the newest event is the measure (wire 7.3)."""
    if state is None:
        return []
    newest = task.timeline.newest if task.timeline else None
    if newest is not None and state.sequence != newest.sequence:
        return [f"the snapshot's sequence is {state.sequence}, the newest event's {newest.sequence}"]
    return task.history.faults(state)


async def _five_at_once(bench: Bench) -> Findings:
    task, platform = bench.new_task(query=_HARD_QUERY if bench.receiver else ""), bench.platform
    attempts = [task.call, *(platform.another_attempt(task.call) for _ in range(_ATTEMPTS - 1))]
    exchanges = await asyncio.gather(*(platform.start(attempt) for attempt in attempts))
    faults = [fault for exchange in exchanges for fault in answer_faults(exchange, 202)]
    if len({exchange.answer.body for exchange in exchanges}) > 1:
        faults.append("the attempts of one dispatch got different receipts")
    task.accepted(exchanges[0])
    bench.doubled = task if task.task_id else None
    return Findings(tuple(exchanges), tuple(dict.fromkeys([*faults, *task.faults])))


async def _cancel(bench: Bench) -> Findings:
    task, started = bench.doubled, bench.platform.clock()
    if task is None:
        return NO_TASK
    first = await task.cancel()
    if first.answer.status == 409:
        faults = refusal_faults(first, 409, "task_terminal")
        await task.poll()
        faults += [] if task.end else ["a cancel was refused with 409, though the task has not ended"]
        return findings_of(bench, task, faults, started, untried="the agent was done before the cancel came")
    again = await task.cancel()
    faults = [*answer_faults(first, 200), *answer_faults(again, 200)]
    if first.answer.body != again.answer.body:
        faults.append("the second cancel got another answer than the first")
    snapshot = await task.poll()
    if snapshot is not None and snapshot.status != "canceled":
        faults.append(f"the snapshot after the cancel is {snapshot.status}")
    return findings_of(bench, task, [*faults, *await _untold(task)], started)


async def _untold(task: FollowedTask) -> list[str]:
    """Return the fault that no callback told the end, where one could have come and none had another fault."""
    if task.timeline is None or await task.end_by_callback() or task.timeline.faults:
        return []
    return [f"no callback told the end within {task.patience.callback_s:.0f} s"]


async def _expiry(bench: Bench) -> Findings:
    """Leave a task with a short deadline alone: nobody polls, nobody answers."""
    task, started = bench.hurried, bench.platform.clock()
    if task is None:
        return NO_TASK
    left_s = max(task.call.deadline - started, 0.0)
    if task.timeline is None:
        await asyncio.sleep(left_s + task.patience.late_s)
    else:
        await task.end_by_callback(left_s)
    await task.poll()
    await task.to_end(until=task.call.deadline + task.patience.grace_s)
    end = task.end
    faults = await _untold(task) if end else []
    if end is None:
        faults.append(f"the task is still {task.status or 'unknown'}, {task.patience.grace_s:.0f} s after its deadline")
    done = end is not None and end.status != "expired"
    untried = f"the agent was done before the deadline ({end.status})" if end and done else ""
    return findings_of(bench, task, faults, started, untried=untried)


async def _past_deadline(bench: Bench) -> Findings:
    task, started = bench.new_task(deadline_s=_PAST_S), bench.platform.clock()
    faults = answer_faults(await task.start(), 202)
    if not task.task_id:
        return findings_of(bench, task, faults, started)
    end = await task.to_end(until=started + task.patience.grace_s)
    if end is None or end.status != "expired":
        faults.append(f"the task is {task.status or 'unknown'} instead of expired")
    states = {state.status for state in task.history.seen.values()}
    if states & {"working", "generating", "uploading", "input_required"}:
        faults.append("the agent ran for a dispatch past its deadline")
    faults += await _untold(task) if end else []
    return findings_of(bench, task, faults, started)


async def _ends_hold(bench: Bench) -> Findings:
    """Poll every ended task once more, late: an end is the last that is ever told (wire 6.2)."""
    tasks = [task for task in (bench.walked, bench.doubled, bench.hurried) if task is not None and task.end]
    if not tasks:
        return NO_TASK
    exchanges: list[Exchange] = []
    faults: list[str] = []
    for task in tasks:
        before = task.end
        after = await task.poll()
        exchanges.append(task.exchanges[-1])
        if before and after and (before.status, before.sequence) != (after.status, after.sequence):
            faults.append(f"{before.status} at sequence {before.sequence} became {after.status} at {after.sequence}")
        faults += [*task.faults, *(task.timeline.faults if task.timeline else ())]
    return Findings(tuple(exchanges), tuple(faults))


LIFE_CHECKS = (
    Check(
        "contract-test task",
        ("4.6", "6.1", "6.2", "6.3"),
        "202 with a strict receipt, then every snapshot strict up to status completed",
        _walk,
    ),
    Check(
        "callbacks of the task",
        ("7.1", "7.2", "7.3"),
        "each signed by the callback key over its exact target and bytes, sequences rising, one end, told last",
        _callbacks,
    ),
    Check("snapshot of the end", ("6.3",), "200, the newest event's sequence and facts, at each poll", _snapshot),
)
END_CHECKS = (
    Check("five dispatches at once", ("6.1", "7.5"), "202, one receipt, five signatures", _five_at_once),
    Check("cancel", ("6.5",), "200 canceled, the same answer again, and the end told", _cancel),
)
CLOCK_CHECKS = (
    Check("expiry without a poll", ("6.6",), "expired soon after the deadline, though nobody polls", _expiry),
    Check("dispatch past its deadline", ("6.1",), "202, then expired without a run", _past_deadline),
)
LAST_CHECKS = (
    Check("ends hold", ("6.2", "7.3"), "200 with the end each task had, and no callback after it", _ends_hold),
)
