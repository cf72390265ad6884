"""One run and one answer per turn, over attempts, instances and crashes (wire 5)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Valkey
from support.finch import Finch
from support.gateway import GatewayProcess, Provider

AGENT = """
import asyncio, time
from pathlib import Path
from finch_gateway import Job, JobFailed

HERE = Path(__file__).parent

async def run(job: Job):
    with (HERE / "runs.txt").open("a") as runs:
        runs.write(f"{job.invocation_id} {job.attempt}\\n")
    word, _, rest = job.text.partition(" ")
    if word == "sleep":
        await asyncio.sleep(float(rest))
    if word == "hang-once" and not (HERE / "hung").exists():
        (HERE / "hung").touch()
        await asyncio.sleep(600)
    if word == "fail":
        raise JobFailed("no_data", "There is nothing to report.")
    if word == "nan":
        return {"value": float("nan")}
    if word == "json":
        return {"value": 2**64 + 1}
    if word == "large":
        return "x" * 5_000_000
    if word == "save":
        if job.attempt == 1:
            await job.save({"step": 1})
            (HERE / "saved").touch()
            await asyncio.sleep(600)
        return f"resumed at {job.state}"
    if word == "ask":
        scope = await job.ask("scope", "Which scope?")
        period = await job.ask("period", "Which period?") if rest == "twice" else "-"
        return f"{job.text} | {scope} | {period} | {job.conversation_id} | {job.turn_id}"
    if word == "ask-both":
        async with asyncio.TaskGroup() as group:
            a = group.create_task(job.ask("a", "A?"))
            b = group.create_task(job.ask("b", "B?"))
        return f"{a.result()} {b.result()}"
    return f"{job.text} attempt {job.attempt} test {job.contract_test}"
"""


def runs_of(provider: Provider) -> list[str]:
    path = provider.folder / "runs.txt"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(params=["sqlite", "redis"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    found = Provider(tmp_path, store={"lease_s": 3})
    if request.param == "redis":
        server: Valkey = request.getfixturevalue("valkey")
        found.store_url = server.url
        found.store = {"lease_s": 3, "namespace": uuid.uuid4().hex}
    found.write(AGENT)
    return found


@pytest.fixture
def gateway(provider: Provider) -> Iterator[GatewayProcess]:
    with provider.running() as process:
        yield process


@pytest.fixture
def finch(provider: Provider, gateway: GatewayProcess) -> Finch:
    return provider.finch(gateway)


def renewed(finch: Finch, envelope: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return a further attempt at the same turn, as Finch may send it."""
    fresh = finch.envelope()
    return {**envelope, "dispatch_id": fresh["dispatch_id"], "limits": fresh["limits"], **changed}


def text_of(answer: Any) -> str:
    return str(answer.json["message"]["content"][0]["text"])


async def test_20_attempts_over_two_instances_are_one_run_and_one_answer(provider: Provider) -> None:
    with provider.running() as one, provider.running() as two:
        finches = [provider.finch(one), provider.finch(two)]
        envelope = finches[0].envelope("sleep 1")
        attempts = [finches[n % 2].invoke(renewed(finches[0], envelope)) for n in range(20)]
        answers = await asyncio.gather(*attempts)
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == 1
        assert len({answer.header("X-Agent-Nonce") for answer in answers}) == 20
        other = await finches[1].invoke(
            renewed(finches[0], envelope, input={"content": [{"type": "text", "text": "z"}]})
        )
        assert (other.status, other.code) == (409, "idempotency_conflict")
        again = await finches[1].invoke(renewed(finches[0], envelope))
        assert again.body == answers[0].body
    assert len(runs_of(provider)) == 1


@pytest.mark.parametrize("on_crash", ["rerun", "fail"])
async def test_a_turn_killed_in_mid_run_has_one_stored_answer_after_its_lease(
    provider: Provider, on_crash: str
) -> None:
    provider.listing = {"on_crash": on_crash}
    provider.write()
    with provider.running() as first:
        finch = provider.finch(first)
        envelope = finch.envelope("hang-once")
        attempt = asyncio.create_task(finch.invoke(envelope))
        await until(lambda: len(runs_of(provider)) == 1)
        first.kill()
        await asyncio.gather(attempt, return_exceptions=True)
    with provider.running() as second:
        finch = provider.finch(second)
        answers = await asyncio.gather(*(finch.invoke(renewed(finch, envelope)) for _ in range(5)))
        assert len({answer.body for answer in answers}) == 1
        if on_crash == "rerun":
            assert text_of(answers[0]) == "hang-once attempt 2 test False"
            assert len(runs_of(provider)) == 2
        else:
            assert answers[0].code == "agent_interrupted"
            assert len(runs_of(provider)) == 1
        assert (await finch.invoke(renewed(finch, envelope))).body == answers[0].body


async def test_what_an_agent_saved_survives_its_crash(provider: Provider) -> None:
    with provider.running() as first:
        finch = provider.finch(first)
        envelope = finch.envelope("save")
        attempt = asyncio.create_task(finch.invoke(envelope))
        await until((provider.folder / "saved").exists)
        first.kill()
        await asyncio.gather(attempt, return_exceptions=True)
    with provider.running() as second:
        finch = provider.finch(second)
        assert text_of(await finch.invoke(renewed(finch, envelope))) == "resumed at {'step': 1}"


async def test_a_long_turn_keeps_its_lease(provider: Provider, finch: Finch) -> None:
    envelope = finch.envelope("sleep 7")
    first = asyncio.create_task(finch.invoke(envelope))
    await asyncio.sleep(5)
    second = asyncio.create_task(finch.invoke(renewed(finch, envelope)))
    assert (await first).body == (await second).body
    assert len(runs_of(provider)) == 1


async def test_a_question_is_answered_by_the_conversations_next_turn(provider: Provider, finch: Finch) -> None:
    conversation, last_turn = str(uuid.uuid4()), str(uuid.uuid4())
    asked = await finch.turn("ask twice", conversation_id=conversation)
    assert asked.json["status"] == "input_required"
    assert asked.json["questions"] == [{"id": "scope", "question": "Which scope?"}]
    again = await finch.turn("EU", conversation_id=conversation)
    assert again.json["questions"] == [{"id": "period", "question": "Which period?"}]
    done = await finch.turn("May", conversation_id=conversation, turn_id=last_turn)
    assert text_of(done) == f"ask twice | EU | May | {conversation} | {last_turn}"
    # Any other outcome clears the record: the next turn is a turn of its own.
    assert text_of(await finch.turn("plain", conversation_id=conversation)).startswith("plain attempt 1")


async def test_one_answer_answers_every_open_question(finch: Finch) -> None:
    conversation = str(uuid.uuid4())
    asked = await finch.turn("ask-both", conversation_id=conversation)
    assert [question["id"] for question in asked.json["questions"]] == ["a", "b"]
    assert text_of(await finch.turn("yes", conversation_id=conversation)) == "yes yes"


async def test_a_question_outlives_a_restart(provider: Provider) -> None:
    conversation = str(uuid.uuid4())
    with provider.running() as first:
        assert (await provider.finch(first).turn("ask", conversation_id=conversation)).code == "input_required"
        first.kill()
    with provider.running() as second:
        assert "ask | EU | -" in text_of(await provider.finch(second).turn("EU", conversation_id=conversation))


async def test_a_question_in_one_conversation_is_nobody_elses(finch: Finch) -> None:
    assert (await finch.turn("ask", conversation_id="one")).code == "input_required"
    assert text_of(await finch.turn("EU", conversation_id="two")).startswith("EU attempt 1")
    assert "| EU |" in text_of(await finch.turn("EU", conversation_id="one"))


async def test_a_failure_the_buyer_may_read_is_the_turns_answer(provider: Provider, finch: Finch) -> None:
    envelope = finch.envelope("fail")
    answer = await finch.invoke(envelope)
    assert answer.status == 200
    assert answer.json["error"] == {"code": "no_data", "message": "There is nothing to report."}
    assert (await finch.invoke(renewed(finch, envelope))).body == answer.body
    assert len(runs_of(provider)) == 1


@pytest.mark.parametrize(("text", "code"), [("nan", "agent_error"), ("large", "output_too_large")])
async def test_an_output_that_cannot_be_sent_is_a_clean_failure(finch: Finch, text: str, code: str) -> None:
    answer = await finch.turn(text)
    assert (answer.status, answer.code) == (200, code)


async def test_large_integers_come_back_digit_for_digit(finch: Finch) -> None:
    assert b"18446744073709551617" in (await finch.turn("json")).body


@pytest.mark.parametrize("seconds", [2.0, 4.0])
async def test_a_reply_leaves_before_the_deadline(finch: Finch, seconds: float) -> None:
    began = time.time()
    answer = await finch.turn("sleep 60", deadline_s=seconds)
    assert answer.code == "deadline_exceeded"
    assert time.time() - began < seconds


async def test_a_turn_past_its_deadline_is_answered_without_a_run(provider: Provider, finch: Finch) -> None:
    assert (await finch.turn("late", deadline_s=-1)).code == "deadline_exceeded"
    assert runs_of(provider) == []


async def test_beyond_the_running_limit_a_new_turn_is_a_signed_429_and_a_repeat_waits(provider: Provider) -> None:
    provider.listing = {"max_running_turns": 2}
    provider.write()
    with provider.running() as process:
        finch = provider.finch(process)
        envelope = finch.envelope("sleep 2")
        running = [asyncio.create_task(finch.invoke(envelope)), asyncio.create_task(finch.turn("sleep 2"))]
        await until(lambda: len(runs_of(provider)) == 2)
        refused = await finch.turn("x")
        assert (refused.status, refused.code) == (429, "overloaded")
        assert int(refused.header("Retry-After")) >= 1
        repeat = await finch.invoke(renewed(finch, envelope))
        answers = await asyncio.gather(*running)
        assert repeat.body == answers[0].body
        assert (await finch.turn("x")).status == 200


async def test_a_refused_turn_is_not_pinned(provider: Provider) -> None:
    provider.listing = {"max_running_turns": 1}
    provider.write()
    with provider.running() as process:
        finch = provider.finch(process)
        running = asyncio.create_task(finch.turn("sleep 1"))
        await until(lambda: len(runs_of(provider)) == 1)
        envelope = finch.envelope("x")
        assert (await finch.invoke(envelope)).status == 429
        await running
        assert (await finch.invoke(renewed(finch, envelope))).status == 200


async def test_another_mode_version_or_service_version_is_a_422(provider: Provider) -> None:
    provider.more = ""
    with provider.running() as process:
        finch = provider.finch(process)
        for changed, code in (
            ({"interaction_mode": "generation"}, "interaction_mode_unsupported"),
            ({"protocol_version": "3.0"}, "protocol_version_unsupported"),
            ({"invocation_id": "x"}, "envelope_invalid"),
        ):
            answer = await finch.invoke({**finch.envelope(), **changed})
            assert (answer.status, answer.code) == (422, code)
    assert runs_of(provider) == []


async def test_a_retiring_revision_gets_stored_answers_and_starts_nothing(provider: Provider) -> None:
    fresh = "finch.agenton." + str(uuid.uuid4())
    with provider.running() as process:
        finch = provider.finch(process)
        envelope = finch.envelope("x")
        answer = await finch.invoke(envelope)
    provider.variables["FRESH"] = Provider(provider.folder, secret=b"f" * 32).displayed_secret
    provider.more = f'[[listings.credentials]]\nkey_id = "{fresh}"\nrequest_secret = "env:FRESH"\n'
    old = provider.write().read_text()
    Path(provider.folder / "finch.toml").write_text(old.replace('state = "current"', 'state = "retiring"'))
    with provider.running() as process:
        finch = provider.finch(process)
        assert (await finch.invoke(renewed(finch, envelope))).body == answer.body
        assert (await finch.turn("new")).status == 401
        assert (await finch.health()).status == 200
        assert (await finch.with_key(fresh, b"f" * 32).turn("new")).status == 200
    Path(provider.folder / "finch.toml").write_text(old.replace('state = "current"', 'state = "revoked"'))
    with provider.running() as process:
        finch = provider.finch(process)
        assert (await finch.health()).status == 401
        assert (await finch.invoke(renewed(finch, envelope))).status == 401


async def test_agenton_v0_is_served_with_its_own_secret_and_ids(provider: Provider) -> None:
    provider.wire_protocol = "agenton_v0"
    provider.key_id = "eav_0123456789abcdef"
    provider.write()
    with provider.running() as process:
        finch = provider.finch(process)
        assert (await finch.health()).status == 200
        envelope = finch.envelope("hello")
        answer = await finch.invoke(envelope)
        assert answer.json["protocol_version"] == "2.0"
        assert answer.json["invocation_id"] == envelope["invocation_id"]
        assert text_of(answer) == "hello attempt 1 test True"


@pytest.mark.parametrize("wire_protocol", ["finch_v2", "agenton_v0"])
async def test_a_capability_answer_needs_no_agent(provider: Provider, wire_protocol: str) -> None:
    provider.wire_protocol = wire_protocol
    provider.listing = {"capabilities": "I write reports."}
    provider.write()
    with provider.running() as process:
        finch = provider.finch(process)
        assert text_of(await finch.turn("Describe your capabilities.")) == "I write reports."
        # The flag alone answers only where it does not stand on paid work too (wire 13).
        flagged = text_of(await finch.turn("hello", contract_test=True))
        assert flagged == ("I write reports." if wire_protocol == "finch_v2" else "hello attempt 1 test True")
        assert text_of(await finch.turn("work")).startswith("work attempt 1")


async def test_a_drain_lets_turns_finish_and_gives_the_rest_back(provider: Provider) -> None:
    provider.server = {"grace_s": 2}
    provider.listing = {"on_crash": "fail"}
    provider.write()
    with provider.running() as one:
        finch = provider.finch(one)
        short = asyncio.create_task(finch.turn("sleep 1"))
        envelope = finch.envelope("hang-once")
        long = asyncio.create_task(finch.invoke(envelope))
        await until(lambda: len(runs_of(provider)) == 2)
        one.process.terminate()
        assert (await short).status == 200
        given_back = await long
        assert (given_back.status, given_back.code) == (503, "unavailable")
        assert await asyncio.to_thread(one.process.wait, 30) == 0
    with provider.running() as two:
        finch = provider.finch(two)
        # A drain is no crash: no `agent_interrupted` under `fail`, and still the first attempt.
        assert text_of(await finch.invoke(renewed(finch, envelope))) == "hang-once attempt 1 test False"


async def until(condition: Any, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.02)
