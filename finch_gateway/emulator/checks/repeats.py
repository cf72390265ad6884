"""One turn, several attempts: one answer, whatever the attempt calls itself (wire 5.2)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ..envelopes import encode, envelope_of
from ..exchange import Exchange
from ..replies import reply_faults, status_of
from .judge import Bench, Check, Findings, answer_faults, refused, unauthenticated

_ATTEMPTS = 5
_NOTHING_TO_COMPARE = Findings((), untried="no turn was answered rightly before, so there is nothing to repeat")


async def _concurrent(bench: Bench) -> Findings:
    platform = bench.platform
    call = platform.new_call(deadline_s=bench.deadline_s, contract_test=True)
    attempts = [call, *(platform.another_attempt(call) for _ in range(_ATTEMPTS - 1))]
    exchanges = await asyncio.gather(*(platform.invoke(attempt) for attempt in attempts))
    faults = [fault for exchange in exchanges for fault in answer_faults(exchange, 200)]
    faults += reply_faults(exchanges[0].answer.body, call.invocation_id)
    if len({exchange.answer.body for exchange in exchanges}) > 1:
        faults.append("the attempts of one turn got different answers")
    if not faults:
        bench.repeated = (call, exchanges[0])
    failed = status_of(exchanges[0].answer.body) == "failed"
    return Findings(
        tuple(exchanges), tuple(faults), "the agent failed this turn, which is its answer" if failed else ""
    )


async def _repeat(bench: Bench) -> Findings:
    if bench.repeated is None:
        return _NOTHING_TO_COMPARE
    call, first = bench.repeated
    platform = bench.platform
    again = await platform.invoke(platform.another_attempt(call, later_s=5), headers=(("Accept-Encoding", "gzip"),))
    faults = [*answer_faults(again, 200), *_different(again, first)]
    return Findings((again,), tuple(faults))


def _different(again: Exchange, first: Exchange) -> list[str]:
    same = again.answer.body == first.answer.body
    return [] if same else ["the repeat of a turn got another answer than its first attempt"]


async def _replayed_turn(bench: Bench) -> Findings:
    if bench.repeated is None:
        return _NOTHING_TO_COMPARE
    _, first = bench.repeated
    return unauthenticated([await bench.platform.send(first.request)])


async def _conflict(bench: Bench) -> Findings:
    if bench.repeated is None:
        return _NOTHING_TO_COMPARE
    call, _ = bench.repeated
    platform = bench.platform
    other = platform.another_attempt(replace(call, text="Describe something else."))
    return refused([await platform.perform(platform.dispatch(encode(envelope_of(other))))], 409, "idempotency_conflict")


REPEAT_CHECKS = (
    Check("five attempts at once", ("5.2",), "200, one reply, five signatures", _concurrent),
    Check("retried turn", ("5.2", "2.2"), "200 with the first attempt's bytes, freshly signed", _repeat),
    Check("replayed turn", ("1.7", "5.2"), "401 auth_failed, signed; the stored answer stays in", _replayed_turn),
    Check("same turn, other input", ("5.2",), "409 idempotency_conflict, signed", _conflict),
)
