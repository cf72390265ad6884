"""The path Finch walks in its connection test: signed health, then one P1 turn that is sent once."""

from __future__ import annotations

from ..exchange import Exchange
from ..following import Asked
from ..platform import Outgoing
from ..replies import NotJson, failure_of, questions_of, read_json, reply_faults, status_of
from .judge import Bench, Check, Findings, answer_faults

_PLAIN = (("Accept-Encoding", "gzip, br"),)


async def _health(bench: Bench) -> Findings:
    exchange = await bench.platform.health()
    return Findings((exchange,), tuple(_health_faults(exchange)))


def _health_faults(exchange: Exchange) -> list[str]:
    faults = answer_faults(exchange, 200)
    try:
        body = read_json(exchange.answer.body)
    except NotJson as error:
        return [*faults, str(error)]
    if body == {"status": "unavailable"}:
        faults.append("the listing says it is unavailable: the agent, the store or the gateway is not well")
    elif body != {"status": "ready"}:
        faults.append('the body is not exactly {"status":"ready"}')
    return faults


async def _turn(bench: Bench) -> Findings:
    call = bench.platform.new_call(deadline_s=bench.deadline_s, contract_test=True)
    exchange = await bench.platform.invoke(call)
    faults = [*answer_faults(exchange, 200), *reply_faults(exchange.answer.body, call.invocation_id)]
    if exchange.answer.elapsed_s >= bench.deadline_s:
        faults.append("the reply left after the deadline")
    status = status_of(exchange.answer.body)
    if status == "failed":
        faults.append(f"the agent's turn failed with {failure_of(read_json(exchange.answer.body))[0]}")
    if status != "input_required":
        return Findings((exchange,), tuple(faults))
    asked = Asked(questions_of(read_json(exchange.answer.body)))
    remark = "the agent asked a question instead, which Finch accepts"
    return Findings((exchange,), tuple(faults), remark, dialogue=(asked,))


async def _no_compression(bench: Bench) -> Findings:
    platform = bench.platform
    exchange = await platform.perform(Outgoing("GET", platform.endpoint.health, headers=_PLAIN))
    return Findings((exchange,), tuple(_health_faults(exchange)))


HEALTH_CHECKS = (Check("health", ("2.1", "3.1"), '200 {"status":"ready"}, signed', _health),)
TURN_CHECKS = (
    Check(
        "contract-test turn",
        ("4.6", "5.1", "5.3"),
        "200 with a strict P1 reply to this invocation, signed over its exact bytes, before the deadline",
        _turn,
    ),
)
PLAIN_CHECKS = (
    Check("no compression", ("2.2",), "200 without Content-Encoding, though the caller offers gzip", _no_compression),
)
