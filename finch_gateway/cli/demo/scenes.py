"""What the demo plays, scene by scene; each ends in a verdict that the summary shows."""

from __future__ import annotations

from dataclasses import replace

from ...emulator.envelopes import encode, envelope_of, user_message
from ...emulator.exchange import Exchange
from ...emulator.platform import Platform
from ...emulator.signer import canonical_string
from .agent import PRIVATE_TEXT
from .stage import DEADLINE_S, Scene, Stage, Verdict, is_proven, json_of, text_of
from .task_scenes import TASK_SCENES
from .wire_view import digest_of, say, show_answer, show_canonical, show_exchange, show_request


async def _health(stage: Stage) -> Verdict:
    exchange = await stage.finch_v2.health()
    request = exchange.request
    show_request(request)
    sent = dict(request.headers)
    canonical = canonical_string(
        request.method, request.target, sent["X-Platform-Timestamp"], sent["X-Platform-Nonce"], request.body
    )
    show_canonical(canonical)
    show_answer(exchange)
    return Verdict(is_proven(exchange, 200) and json_of(exchange) == {"status": "ready"}, "ready, signed both ways")


async def _turn(stage: Stage) -> Verdict:
    exchange = await stage.finch_v2.invoke(stage.finch_v2.new_call("Good morning.", deadline_s=DEADLINE_S))
    show_exchange(exchange)
    return Verdict(
        is_proven(exchange, 200) and "Good morning." in _text(exchange), "answered in Finch's envelope, signed"
    )


async def _question(stage: Stage) -> Verdict:
    platform = stage.finch_v2
    asking = platform.new_call("Write the report.", deadline_s=DEADLINE_S)
    asked = await platform.invoke(asking)
    show_exchange(asked)
    say("The buyer answers in the next turn of the same conversation:")
    answering = platform.new_call(
        "the second quarter",
        deadline_s=DEADLINE_S,
        conversation_id=asking.conversation_id,
        history=(user_message(asking.message_id, asking.text),),
    )
    answered = await platform.invoke(answering)
    show_exchange(answered)
    resumed = is_proven(answered, 200) and "Report on the second quarter" in _text(answered)
    return Verdict(
        is_proven(asked, 200) and _status(asked) == "input_required" and resumed,
        "asked, kept in the store, resumed with the answer",
    )


async def _failures(stage: Stage) -> Verdict:
    platform = stage.finch_v2
    closed = await platform.invoke(platform.new_call("Open the archive on Sunday.", deadline_s=DEADLINE_S))
    show_exchange(closed)
    say(f"That one was for the buyer. A crash is not: RuntimeError({PRIVATE_TEXT!r}) must stay in.")
    crashed = await platform.invoke(platform.new_call("Please crash.", deadline_s=DEADLINE_S))
    show_exchange(crashed)
    kept_in = PRIVATE_TEXT.encode() not in crashed.answer.body
    told = _code(closed) == "archive_closed" and _code(crashed) == "agent_error"
    return Verdict(
        is_proven(closed, 200) and is_proven(crashed, 200) and told and kept_in, "200 failed, nothing private in it"
    )


async def _replay(stage: Stage) -> Verdict:
    platform = stage.finch_v2
    first = await platform.health()
    show_exchange(first, short=True)
    say("The very same bytes again, as an eavesdropper would send them:")
    second = await platform.send(first.request)
    show_exchange(second)
    return Verdict(is_proven(first, 200) and is_proven(second, 401), "the nonce was spent, durably")


async def _tampering(stage: Stage) -> Verdict:
    platform = stage.finch_v2
    honest = encode(envelope_of(platform.new_call("Pay Alice 10.", deadline_s=DEADLINE_S)))
    forged = honest.replace(b"Pay Alice 10.", b"Pay Mallory 1.")
    exchange = await platform.perform(replace(platform.dispatch(forged), signed_body=honest))
    say('Signed by Finch: "Pay Alice 10."   Sent on by somebody else: "Pay Mallory 1."')
    show_exchange(exchange)
    return Verdict(is_proven(exchange, 401), "refused before anything was read")


async def _retry(stage: Stage) -> Verdict:
    platform = stage.finch_v2
    call = platform.new_call("How often do you run for this?", deadline_s=DEADLINE_S)
    first = await platform.invoke(call)
    show_exchange(first)
    say("Finch lost that answer and tries again: another dispatch, key and nonce, the same turn:")
    again = await platform.invoke(platform.another_attempt(call))
    show_request(again.request)
    show_answer(again, short=True)
    _compare(first, again)
    same = first.answer.body == again.answer.body and _signature(first) != _signature(again)
    return Verdict(
        is_proven(first, 200) and is_proven(again, 200) and same and await _ran_once(platform, first),
        "one run, equal bytes, two signatures",
    )


async def _ran_once(platform: Platform, first: Exchange) -> bool:
    """Ask the agent's own counter: the next new turn must be the very next run."""
    following = await platform.invoke(platform.new_call("And now?", deadline_s=DEADLINE_S))
    both, after = _runs(_text(first)), _runs(_text(following))
    say(
        f"The agent counts its runs. Both attempts were answered by its run {both}, and by that alone: "
        f"a new turn, sent just now, is its run {after}."
    )
    return after == both + 1


def _compare(first: Exchange, again: Exchange) -> None:
    for name, exchange in (("first", first), ("again", again)):
        answer = exchange.answer
        signature = answer.value("X-Agent-Signature")[:15] + "…"
        say(f"{name}: {len(answer.body)} bytes, SHA-256 {digest_of(answer.body)}   {signature}")


async def _agenton_v0(stage: Stage) -> Verdict:
    platform = stage.agenton_v0
    health = await platform.health()
    show_exchange(health)
    call = platform.new_call("Good evening.", deadline_s=DEADLINE_S)
    turn = await platform.invoke(call)
    show_exchange(turn)
    return Verdict(
        is_proven(health, 200) and is_proven(turn, 200) and json_of(turn).get("invocation_id") == call.invocation_id,
        "the same agent behind the other wire protocol",
    )


def _status(exchange: Exchange) -> str:
    return str(json_of(exchange).get("status", ""))


def _text(exchange: Exchange) -> str:
    return text_of(json_of(exchange))


def _code(exchange: Exchange) -> str:
    return str(json_of(exchange).get("error", {}).get("code", ""))


def _signature(exchange: Exchange) -> str:
    return exchange.answer.value("X-Agent-Signature")


def _runs(text: str) -> int:
    digits = text.rpartition("(run ")[2].partition(" ")[0]
    return int(digits) if digits.isdigit() else -1


SCENES = (
    Scene("Signed health", "Finch asks whether the listing can take work.", _health),
    Scene("A turn", "A buyer writes; the agent, a Python function, answers.", _turn),
    Scene(
        "A question and its answer", "The agent needs to know more. Nothing of it stays in memory meanwhile.", _question
    ),
    Scene("A failing agent", "What the buyer should read is a 200 with status failed.", _failures),
    Scene("A replayed nonce", "Every request counts once, on every instance, after every restart.", _replay),
    Scene("A tampered body", "Somebody on the way changed a name and an amount.", _tampering),
    Scene("A retried turn", "Two attempts, one turn: the agent must not run twice.", _retry),
    Scene("The same on agenton_v0", "Other ids, other envelope, other secret; the agent does not notice.", _agenton_v0),
    *TASK_SCENES,
)
