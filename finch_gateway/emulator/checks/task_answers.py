"""What a task's calls get when they come again, come with something else, or were not asked for (wire 5.2, 6)."""

from __future__ import annotations

from dataclasses import replace

from ..following import FollowedTask
from .judge import Bench, Check, Findings, answer_faults, refusal_faults, refused
from .task_life import ANSWER, NO_TASK, findings_of

_NOT_WAITING = ("task_not_awaiting_input", "task_terminal")


async def _repeat(bench: Bench) -> Findings:
    task = bench.walked
    if task is None:
        return NO_TASK
    again = await bench.platform.start(bench.platform.another_attempt(task.call, later_s=5))
    faults = answer_faults(again, 202)
    if again.answer.body != task.receipt:
        faults.append("the repeat of a dispatch got another receipt than its first attempt")
    return Findings((again,), tuple(faults))


async def _conflict(bench: Bench) -> Findings:
    task = bench.walked
    if task is None:
        return NO_TASK
    other = bench.platform.another_attempt(replace(task.call, text="Describe something else."))
    return refused([await bench.platform.start(other)], 409, "idempotency_conflict")


async def _answer_repeated(bench: Bench) -> Findings:
    """Look at the answer that was sent twice, and send another under its Idempotency-Key."""
    task = bench.walked
    if task is None:
        return NO_TASK
    if not task.answers:
        return Findings((), untried="the agent asked nothing")
    faults = [fault for exchange in task.answers for fault in answer_faults(exchange, 202)]
    if len({exchange.answer.body for exchange in task.answers}) > 1:
        faults.append("the repeat of an answer got another answer than the first")
    key = task.answers[0].request.values("Idempotency-Key")[0]
    other = await bench.platform.answer(task.task_id, "Something else.", key=key)
    faults += refusal_faults(other, 409, "idempotency_conflict", "task_terminal")
    return Findings((*task.answers, other), tuple(faults))


async def _unasked(bench: Bench) -> Findings:
    """Answer a task that has only just begun, and leave it to its short deadline for a later check."""
    task, started = bench.new_task(deadline_s=bench.patience.hurry_s), bench.platform.clock()
    faults = answer_faults(await task.start(), 202)
    if not task.task_id:
        return findings_of(bench, task, faults, started)
    bench.hurried = task
    exchange = await bench.platform.answer(task.task_id, ANSWER)
    untried = ""
    if exchange.answer.status == 202:
        faults += answer_faults(exchange, 202)
        untried = "the agent had asked by then"
    else:
        faults += refusal_faults(exchange, 409, *_NOT_WAITING)
    return Findings((task.exchanges[0], exchange), (*faults, *task.faults), untried=untried)


async def _too_late(bench: Bench) -> Findings:
    exchanges = [await bench.platform.answer(task.task_id, ANSWER) for task in _ended(bench)]
    return refused(exchanges, 409, *_NOT_WAITING) if exchanges else NO_TASK


async def _cancel_too_late(bench: Bench) -> Findings:
    others = [task for task in _ended(bench) if task.end and task.end.status != "canceled"]
    exchanges = [await bench.platform.cancel(task.task_id) for task in others]
    if exchanges:
        return refused(exchanges, 409, "task_terminal")
    return Findings((), untried="every task that ended was canceled") if _ended(bench) else NO_TASK


def _ended(bench: Bench) -> list[FollowedTask]:
    return [task for task in (bench.walked, bench.doubled) if task is not None and task.end is not None]


REPEAT_TASK_CHECKS = (
    Check("repeated dispatch", ("5.2", "6.1"), "202 with the first attempt's receipt, freshly signed", _repeat),
    Check("same invocation, other input", ("5.2", "6.1"), "409 idempotency_conflict, signed", _conflict),
    Check("repeated answer", ("6.4",), "202 twice with one body; another body under its key: 409", _answer_repeated),
)
LATE_CHECKS = (
    Check("cancel after another end", ("6.5",), "409 task_terminal, signed", _cancel_too_late),
    Check("answer after the end", ("6.4",), "409, signed", _too_late),
    Check("answer nobody asked for", ("6.4",), "202 to the dispatch, then 409, signed", _unasked),
)
