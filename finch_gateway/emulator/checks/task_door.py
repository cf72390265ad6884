"""Who may look at, answer and cancel a task, and what everybody else gets (wire 1, 1.12, 2.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..envelopes import cancel_of, encode, message_of
from ..exchange import Exchange, Headers, Request
from ..platform import Outgoing, Platform
from ..signer import MAX_SKEW_S, Credential
from .judge import Bench, Check, Findings, refused, unauthenticated
from .task_life import ANSWER, NO_TASK

# What a proxy may refuse on its own account (%00, ..%2F, bytes that are no UTF-8) proves nothing here.
_ODD_IDS = ("*", "a%3Ab", "%7Bx%7D", "e%CC%81", "%C3%A9", "-", "x" * 2000)
_ABSENT = ("task_not_found", "not_found")
_CLOCK_PLAY_S = 10


def _three(platform: Platform, task_id: str) -> tuple[Outgoing, Outgoing, Outgoing]:
    """Return a poll, an answer and a cancel of a task."""
    message, cancel = encode(message_of(platform.sale.finch_task_id, ANSWER)), encode(cancel_of("Not wanted."))
    return (
        platform.poll_call(task_id),
        platform.answer_call(task_id, message),
        platform.cancel_call(task_id, cancel),
    )


async def _performed(platform: Platform, calls: Iterable[Outgoing]) -> list[Exchange]:
    return [await platform.perform(call) for call in calls]


def _unknown_id(bench: Bench) -> str:
    return f"no-such-task-{bench.platform.new_uuid().hex}"


async def _unknown(bench: Bench) -> Findings:
    exchanges = await _performed(bench.platform, _three(bench.platform, _unknown_id(bench)))
    return refused(exchanges, 404, "task_not_found")


async def _odd_ids(bench: Bench) -> Findings:
    polls = [bench.platform.poll_call(task_id) for task_id in _ODD_IDS]
    return refused(await _performed(bench.platform, polls), 404, *_ABSENT)


async def _strangers(bench: Bench) -> Findings:
    """Ask for a task under a key that its listing does not have, and at a listing that does not have the task."""
    task, platform = bench.walked, bench.platform
    if task is None:
        return NO_TASK
    credential = platform.endpoint.credential
    stranger = Credential(f"{credential.key_id[:-4]}zzzz", credential.secret)
    if bench.neighbour is not None:
        stranger = bench.neighbour.endpoint.credential
    calls = [replace(call, credential=stranger) for call in _three(platform, task.task_id)]
    here = unauthenticated(await _performed(platform, calls))
    if bench.neighbour is None:
        return replace(here, remark="the other listing's side was not tried: there is no other listing")
    there = await _at_neighbour(bench.neighbour, task.task_id, _unknown_id(bench))
    return Findings((*here.exchanges, *there.exchanges), (*here.faults, *there.faults))


async def _at_neighbour(neighbour: Platform, task_id: str, unknown_id: str) -> Findings:
    """Ask another listing for the task: it must look like one that never was."""
    known = await _performed(neighbour, _three(neighbour, task_id))
    unknown = await _performed(neighbour, _three(neighbour, unknown_id))
    findings = refused([*known, *unknown], 404, *_ABSENT)
    if [exchange.answer.body for exchange in known] == [exchange.answer.body for exchange in unknown]:
        return findings
    told = "another listing's task is told from an unknown one"
    return replace(findings, faults=(*findings.faults, told))


async def _unsigned(bench: Bench) -> Findings:
    if bench.walked is None:
        return NO_TASK
    bare = [
        Request(call.method, call.target, call.headers, call.body)
        for call in _three(bench.platform, bench.walked.task_id)
    ]
    return unauthenticated([await bench.platform.send(request) for request in bare])


async def _replayed(bench: Bench) -> Findings:
    if bench.walked is None:
        return NO_TASK
    platform = bench.platform
    requests = [platform.sign(call) for call in _three(platform, bench.walked.task_id)]
    firsts = [await platform.send(request) for request in requests]
    seconds = [await platform.send(request) for request in requests]
    faults = [exchange.distrust for exchange in firsts if exchange.distrust]
    faults += ["the first of two equal requests was refused" for first in firsts if first.answer.status == 401]
    return Findings((*firsts, *seconds), (*faults, *unauthenticated(seconds).faults))


async def _skewed(bench: Bench) -> Findings:
    if bench.walked is None:
        return NO_TASK
    now = int(bench.platform.clock())
    times = (now - MAX_SKEW_S - 1, now + MAX_SKEW_S + _CLOCK_PLAY_S)
    calls = [replace(call, timestamp=time) for call in _three(bench.platform, bench.walked.task_id) for time in times]
    return unauthenticated(await _performed(bench.platform, calls))


async def _bad_bodies(bench: Bench) -> Findings:
    """Send bodies that are no JSON: the task is looked up first, then the body is read (wire 2.3)."""
    if bench.walked is None:
        return NO_TASK
    platform, task_id, body = bench.platform, bench.walked.task_id, b'{"protocol_version":'
    known = [platform.answer_call(task_id, body), platform.cancel_call(task_id, body)]
    nowhere = _unknown_id(bench)
    unknown = [platform.answer_call(nowhere, body), platform.cancel_call(nowhere, body)]
    invalid = refused(await _performed(platform, known), 400, "body_invalid")
    absent = refused(await _performed(platform, unknown), 404, "task_not_found")
    return Findings((*invalid.exchanges, *absent.exchanges), (*invalid.faults, *absent.faults))


async def _methods(bench: Bench) -> Findings:
    if bench.walked is None:
        return NO_TASK
    endpoint, task_id = bench.platform.endpoint, bench.walked.task_id
    json_only: Headers = (("Content-Type", "application/json"),)
    calls = [
        Outgoing("POST", endpoint.task(task_id), b"{}", json_only),
        Outgoing("DELETE", endpoint.task(task_id)),
        Outgoing("GET", endpoint.messages(task_id)),
        Outgoing("GET", endpoint.cancel(task_id)),
    ]
    return refused(await _performed(bench.platform, calls), 405, "method_not_allowed")


_REFUSED = "401 auth_failed, signed, for poll, answer and cancel"

TASK_DOOR_CHECKS = (
    Check("unknown task", ("2.3",), "404 task_not_found, signed, for poll, answer and cancel", _unknown),
    Check("odd task ids", ("1.2", "2.3"), "404, signed", _odd_ids),
    Check("another listing's key", ("1.6", "1.12"), f"{_REFUSED}; at its own listing the 404 of no task", _strangers),
    Check("unsigned task calls", ("1.5", "2.1"), _REFUSED, _unsigned),
    Check("replayed task calls", ("1.7",), _REFUSED, _replayed),
    Check("task calls off the clock", ("1.4",), _REFUSED, _skewed),
    Check("task bodies that are no JSON", ("2.3",), "400 body_invalid; 404 where there is no task", _bad_bodies),
    Check("wrong method on a task", ("2.1", "2.3"), "405 method_not_allowed, signed", _methods),
)
