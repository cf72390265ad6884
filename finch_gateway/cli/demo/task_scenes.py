"""What the demo plays of tasks: a whole life, a cancel, a receiver that fails, and a gateway that dies."""

from __future__ import annotations

import asyncio

from ...emulator.following import FollowedTask
from ...emulator.receiver import Fault
from .agent import PAGES
from .stage import DEADLINE_S, Scene, Stage, Verdict, is_proven, json_of, text_of
from .task_view import Watch
from .wire_view import say, show_answer, show_exchange, show_request

_SOON_S = 10.0
_FAILURES = 2
_RECORDED_S = 0.2


async def _begun(stage: Stage, text: str) -> tuple[FollowedTask, Watch]:
    """Dispatch a task whose callbacks are shown as they come."""
    platform = stage.finch_v2
    call = platform.new_call(text, deadline_s=DEADLINE_S, mode="task")
    task = FollowedTask.prepare(platform, call, stage.receiver)
    watch = Watch(task, platform.clock)
    exchange = await task.start()
    show_request(exchange.request, short=True)
    show_answer(exchange)
    return task, watch


async def _life(stage: Stage) -> Verdict:
    task, watch = await _begun(stage, "Write the market study.")
    state = await task.poll()
    watch.note(f"polled: {state.status}" if state else "polled: nothing to read")
    await watch.until(lambda: task.status == "input_required" or task.end is not None, _SOON_S)
    answer = await stage.finch_v2.answer(task.task_id, "Norway")
    watch.note(f'the buyer answers "Norway": {answer.answer.status}')
    await task.end_by_callback()
    await task.poll()
    _explain_gaps(task)
    told = [event.status for event in task.timeline.events] if task.timeline else []
    lived = "working" in told and told.count("input_required") == 1 and told[-1] == "completed"
    wrote = task.end is not None and "Study on Norway" in text_of(task.end.document)
    return Verdict(
        lived and wrote and is_proven(answer, 202) and not watch.faults,
        f"{len(told)} signed callbacks in order, one question, one end, as polled",
    )


def _explain_gaps(task: FollowedTask) -> None:
    """Say why some sequences never arrived (wire 7.3)."""
    told = {event.sequence for event in task.timeline.events} if task.timeline else set()
    overtaken = [f"#{sequence}" for sequence in range(1, max(told, default=0)) if sequence not in told]
    if overtaken:
        say(
            f"{', '.join(overtaken)} did not come: progress that Finch has not taken yet is overtaken by newer "
            "progress. Questions and ends always come."
        )


async def _cancel(stage: Stage) -> Verdict:
    task, watch = await _begun(stage, "Watch the price of copper.")
    await watch.until(lambda: task.status == "working", _SOON_S)
    before = await _watching(stage, 1)
    canceled = await stage.finch_v2.cancel(task.task_id)
    show_exchange(canceled)
    told = await task.end_by_callback()
    again = await stage.finch_v2.cancel(task.task_id)
    after = await _watching(stage, 0)
    say(f"The agent itself, before: {before!r}   after: {after!r}")
    same = canceled.answer.body == again.answer.body
    stopped = (before, after) == (_watches(1), _watches(0))
    ended = told and task.end is not None and task.end.status == "canceled"
    return Verdict(
        is_proven(canceled, 200) and is_proven(again, 200) and same and stopped and ended and not watch.faults,
        "ended at once, the agent stopped; the same answer when asked again",
    )


async def _watching(stage: Stage, expected: int) -> str:
    """Ask the agent how many prices it watches; for a second, until it is as many as expected."""
    platform = stage.finch_v2
    said = ""
    for _ in range(10):
        turn = await platform.invoke(platform.new_call("How many are you watching?", deadline_s=DEADLINE_S))
        said = text_of(json_of(turn))
        if said == _watches(expected):
            break
        await asyncio.sleep(0.1)
    return said


def _watches(count: int) -> str:
    return f"I am watching {count} prices."


async def _failing_receiver(stage: Stage) -> Verdict:
    platform = stage.finch_v2
    call = platform.new_call("File the minutes.", deadline_s=DEADLINE_S, mode="task")
    task = FollowedTask.prepare(platform, call, stage.receiver)
    watch = Watch(task, platform.clock)
    stage.receiver.seed(Fault(status=500), times=_FAILURES, timeline=task.timeline)
    exchange = await task.start()
    show_request(exchange.request, short=True)
    show_answer(exchange, short=True)
    await task.end_by_callback()
    arrivals = task.arrivals
    bodies = {arrival.request.body for arrival in arrivals}
    signatures = {arrival.request.values("X-Agent-Signature") for arrival in arrivals}
    answered = [arrival.answered for arrival in arrivals]
    say(f"{len(arrivals)} attempts, {len(bodies)} body, {len(signatures)} signatures")
    return Verdict(
        answered == [500] * _FAILURES + [200]
        and len(bodies) == 1
        and len(signatures) == len(arrivals)
        and not watch.faults,
        "tried again, later each time, the same bytes signed anew",
    )


async def _kill(stage: Stage) -> Verdict:
    task, watch = await _begun(stage, "Translate the manual.")
    await watch.until(lambda: _percent(task) >= 30 or task.end is not None, _SOON_S)
    seen = _percent(task)
    # Time for the gateway to write down that its callback was taken: this scene is about the work.
    await asyncio.sleep(_RECORDED_S)
    watch.note(f"kill -9 {stage.machine.pid}")
    await stage.machine.kill()
    await stage.machine.start()
    watch.note(f"the gateway is back, as process {stage.machine.pid}")
    told = await task.end_by_callback()
    await task.poll()
    end = task.end
    said = text_of(end.document) if end is not None else ""
    say(f"The agent: {said!r}")
    resumed = told and f"All {PAGES} pages" in said and "attempt 2" in said and "after page 0" not in said
    return Verdict(
        0 < seen < 100 and resumed and not watch.faults,
        "nothing lost: taken over where it was, progress never fell, one end",
    )


def _percent(task: FollowedTask) -> int:
    return max((state.percent or 0 for state in task.history.seen.values()), default=0)


TASK_SCENES = (
    Scene("A task's life", "Accepted durably, then told callback by callback; it asks on the way.", _life),
    Scene("A canceled task", "The buyer changes their mind while the agent works.", _cancel),
    Scene("A receiver that fails", "Finch's side answers 500 twice; the event waits in the outbox.", _failing_receiver),
    Scene(
        "kill -9 in mid-task",
        "The gateway dies without a word; its lease ends in 3 s, and the next process takes over.",
        _kill,
    ),
)
