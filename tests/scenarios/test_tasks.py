"""One end each, whatever breaks: tasks on real processes, on both stores and both wire protocols (wire 6, 7)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Valkey
from support.finch import Finch
from support.gateway import GatewayProcess, Provider
from support.receiver import Receiver

AGENT = """
import asyncio, os
from pathlib import Path
from finch_gateway import Job, JobFailed

HERE = Path(__file__).parent

async def run(job: Job):
    with (HERE / "runs.txt").open("a") as runs:
        runs.write(f"{job.task_id} {job.attempt} {os.getpid()}\\n")
    word, _, rest = job.text.partition(" ")
    if word == "sleep":
        try:
            await asyncio.sleep(float(rest))
        except asyncio.CancelledError:
            (HERE / f"stopped-{job.task_id}").touch()
            raise
    if word == "steps":
        for step in range(int(rest)):
            await job.progress(step * 10, f"Step {step}")
            await asyncio.sleep(0.05)
    if word == "ask":
        period = await job.ask("scope", "Which period?")
        return f"Report for {period}"
    if word == "ask-forever":
        for number in range(100):
            await job.ask(f"q{number}", "Again?")
    if word == "fail":
        raise JobFailed("no_data", "There is nothing to report.")
    if word == "explode":
        raise RuntimeError("inside")
    if word == "stubborn":
        for _ in range(100):
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                pass
        return "late"
    if word == "save":
        if job.attempt == 1:
            await job.progress(40, "Half way")
            await job.save({"step": 1})
            (HERE / "saved").touch()
            await asyncio.sleep(600)
        await job.progress(10, "Again")
        return f"resumed at {job.state} in attempt {job.attempt}"
    return f"done {job.text}"
"""


def runs_of(provider: Provider) -> list[list[str]]:
    path = provider.folder / "runs.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(params=["sqlite-finch_v2", "redis-finch_v2", "sqlite-agenton_v0", "redis-agenton_v0"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    store, _, wire_protocol = request.param.partition("-")
    found = Provider(tmp_path, store={"lease_s": 3}, wire_protocol=wire_protocol)
    if wire_protocol == "agenton_v0":
        found.key_id = "eav_0123456789abcdef"
    if store == "redis":
        server: Valkey = request.getfixturevalue("valkey")
        found.store_url = server.url
        found.store = {"lease_s": 3, "namespace": uuid.uuid4().hex}
    found.write(AGENT)
    return found


@pytest.fixture
def gateway(provider: Provider) -> Any:
    with provider.running() as process:
        yield process


@pytest.fixture
def finch(provider: Provider, gateway: GatewayProcess) -> Finch:
    return provider.finch(gateway)


@pytest.fixture
async def receiver(provider: Provider) -> AsyncIterator[Receiver]:
    secret = provider.secret if provider.wire_protocol == "finch_v2" else provider.environ()["REQUEST_SECRET"].encode()
    one = Receiver(secret)
    async with one.listening():
        yield one
        assert one.violations == []


async def until(condition: Any, limit_s: float = 45) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.02)


async def test_a_task_goes_from_its_receipt_to_its_end(finch: Finch, receiver: Receiver) -> None:
    envelope = finch.task_envelope("work", callback=receiver.url())
    answer = await finch.invoke(envelope)
    assert answer.status == 202
    task_id = answer.json["merchant_task_id"]
    assert answer.json == {
        "protocol_version": "2.0",
        "invocation_id": envelope["invocation_id"],
        "status": "accepted",
        "merchant_task_id": task_id,
        "poll_after_ms": 3000,
    }
    assert re.fullmatch(r"[A-Za-z0-9_-]{16,64}", task_id)
    snapshot = await finch.until(task_id, "completed")
    assert snapshot["message"] == {"role": "agent", "content": [{"type": "text", "text": "done work"}]}
    assert snapshot["artifacts"] == []
    assert set(snapshot) == {
        *("protocol_version", "merchant_task_id", "status", "sequence"),
        *("message", "artifacts", "completed_at"),
    }
    await until(lambda: receiver.terminal(task_id))
    [last] = [event for event in receiver.of(task_id) if event["status"] == "completed"]
    assert last["sequence"] == snapshot["sequence"]
    assert last["message"] == snapshot["message"]


async def test_the_same_dispatch_has_the_same_receipt_from_any_instance_after_any_restart(provider: Provider) -> None:
    with provider.running() as one, provider.running() as two:
        finches = [provider.finch(one), provider.finch(two)]
        envelope = finches[0].task_envelope("work")
        attempts = [{**envelope, "dispatch_id": str(uuid.uuid4())} for _ in range(50)]
        answers = await asyncio.gather(*(finches[n % 2].invoke(attempt) for n, attempt in enumerate(attempts)))
        assert {(answer.status, answer.body) for answer in answers} == {(202, answers[0].body)}
        other = {**envelope, "input": {"content": [{"type": "text", "text": "else"}]}}
        assert (await finches[1].invoke(other)).code == "idempotency_conflict"
        await finches[0].until(answers[0].json["merchant_task_id"], "completed")
        one.kill()
        two.kill()
    with provider.running() as again:
        assert (await provider.finch(again).invoke(envelope)).body == answers[0].body
    assert len(runs_of(provider)) == 1


async def test_progress_is_told_throttled_and_never_falls(finch: Finch, receiver: Receiver) -> None:
    task_id = await finch.task("steps 10", callback=receiver.url())
    await finch.until(task_id, "completed")
    await until(lambda: receiver.terminal(task_id))
    percents = [event["progress"]["percent"] for event in receiver.of(task_id) if "progress" in event]
    assert percents == sorted(percents)
    assert len(receiver.of(task_id)) <= 5


async def test_a_question_waits_and_its_answer_goes_on(provider: Provider, finch: Finch, receiver: Receiver) -> None:
    task_id = await finch.task("ask", callback=receiver.url())
    snapshot = await finch.until(task_id, "input_required")
    assert snapshot["questions"] == [{"id": "scope", "question": "Which period?"}]
    assert "progress" not in snapshot
    taken = await finch.message(task_id, "May", key="k1")
    assert (taken.status, taken.json) == (
        202,
        {"protocol_version": "2.0", "status": "accepted", "merchant_task_id": task_id},
    )
    assert (await finch.until(task_id, "completed"))["message"]["content"][0]["text"] == "Report for May"
    await until(lambda: receiver.terminal(task_id))
    assert "input_required" in receiver.statuses(task_id)
    assert [attempt for _, attempt, _ in runs_of(provider)] == ["1", "1"]


async def test_an_answer_counts_once_however_often_it_comes(provider: Provider, finch: Finch) -> None:
    task_id = await finch.task("ask")
    await finch.until(task_id, "input_required")
    body = json.dumps(
        {"protocol_version": "2.0", "message": {"role": "user", "content": [{"type": "text", "text": "May"}]}}
    )
    path = f"/tasks/{task_id}/messages"
    extra = [(b"Idempotency-Key", b"once")]
    answers = await asyncio.gather(*(finch.call("POST", path, body.encode(), extra=extra) for _ in range(10)))
    assert {answer.status for answer in answers} == {202}
    await finch.until(task_id, "completed")
    # A repeat after the end still has its answer; anything else is told that the task has ended.
    assert (await finch.call("POST", path, body.encode(), extra=extra)).status == 202
    assert (await finch.message(task_id, "June", key="once")).code == "idempotency_conflict"
    assert (await finch.message(task_id, "June")).code == "task_terminal"
    assert len(runs_of(provider)) == 2


async def test_a_message_to_a_task_that_does_not_wait_is_a_409(finch: Finch) -> None:
    task_id = await finch.task("sleep 30")
    await finch.until(task_id, "working")
    refused = await finch.message(task_id, "x")
    assert (refused.status, refused.code) == (409, "task_not_awaiting_input")
    assert (await finch.cancel(task_id)).status == 200


async def test_input_rounds_are_capped(provider: Provider) -> None:
    provider.listing = {"max_input_rounds": 2}
    provider.write()
    with provider.running() as process:
        finch = provider.finch(process)
        task_id = await finch.task("ask-forever")
        for _ in range(2):
            await finch.until(task_id, "input_required")
            await finch.message(task_id, "yes")
            await finch.until(task_id, "input_required", "failed")
        assert (await finch.until(task_id, "failed"))["error"]["code"] == "input_rounds_exceeded"


@pytest.mark.parametrize(("text", "code"), [("fail", "no_data"), ("explode", "agent_error")])
async def test_a_failure_is_one_clean_end(finch: Finch, receiver: Receiver, text: str, code: str) -> None:
    task_id = await finch.task(text, callback=receiver.url())
    snapshot = await finch.until(task_id, "failed")
    assert snapshot["error"]["code"] == code
    assert "inside" not in json.dumps(snapshot)
    await until(lambda: receiver.terminal(task_id) == "failed")


async def test_a_cancel_on_one_instance_stops_the_agent_on_the_other_within_a_second(
    provider: Provider, receiver: Receiver
) -> None:
    with provider.running() as one:
        finch = provider.finch(one)
        task_id = await finch.task("sleep 60", callback=receiver.url())
        await finch.until(task_id, "working")
        with provider.running() as two:
            other = provider.finch(two)
            answer = await other.cancel(task_id)
            asked = time.monotonic()
            assert answer.json["status"] == "canceled"
            await until((provider.folder / f"stopped-{task_id}").exists, limit_s=20)
            took = time.monotonic() - asked
            assert (await other.cancel(task_id)).body == answer.body
            assert (await finch.poll(task_id)).json["sequence"] == answer.json["sequence"]
            await until(lambda: receiver.terminal(task_id) == "canceled")
    assert took < 1.5  # a second, and what a slow machine takes to look


async def test_late_output_of_an_ended_task_is_dropped(finch: Finch, receiver: Receiver) -> None:
    task_id = await finch.task("stubborn", callback=receiver.url())
    await finch.until(task_id, "working")
    canceled = (await finch.cancel(task_id)).json
    await asyncio.sleep(1)
    assert (await finch.poll(task_id)).json["sequence"] == canceled["sequence"]
    await until(lambda: receiver.terminal(task_id) == "canceled")
    assert (await finch.message(task_id, "x")).code == "task_terminal"


async def test_a_cancel_after_another_end_is_a_409(finch: Finch) -> None:
    task_id = await finch.task("work")
    await finch.until(task_id, "completed")
    refused = await finch.cancel(task_id)
    assert (refused.status, refused.code) == (409, "task_terminal")
    assert (await finch.call("POST", f"/tasks/{task_id}/cancel")).status == 409


async def test_an_open_task_expires_though_nobody_polls(finch: Finch, receiver: Receiver) -> None:
    running = await finch.task("sleep 60", callback=receiver.url(), deadline_s=3)
    waiting = await finch.task("ask", callback=receiver.url(), deadline_s=3)
    late = await finch.task("work", callback=receiver.url(), deadline_s=-5)
    await until(lambda: all(receiver.terminal(task_id) == "expired" for task_id in (running, waiting, late)))
    assert (await finch.poll(late)).json["status"] == "expired"


async def test_a_dispatch_past_its_deadline_is_never_run(provider: Provider, finch: Finch) -> None:
    task_id = await finch.task("work", deadline_s=-5)
    await finch.until(task_id, "expired")
    assert runs_of(provider) == []


async def test_a_full_queue_is_a_signed_429_that_creates_nothing(provider: Provider) -> None:
    provider.listing = {"max_running_tasks": 1, "max_queue": 3}
    provider.write()
    with provider.running() as process:
        finch = provider.finch(process)
        first = await finch.task("sleep 60")
        await finch.until(first, "working")
        queued = [await finch.task("work") for _ in range(3)]
        envelope = finch.task_envelope("work")
        refused = await finch.invoke(envelope)
        assert (refused.status, refused.code) == (429, "queue_full")
        assert int(refused.header("Retry-After")) >= 1
        assert (await finch.health()).status == 200
        # Turns do not wait behind tasks.
        assert (await finch.turn("x")).status == 200
        await finch.cancel(first)
        for task_id in queued:
            await finch.until(task_id, "completed")
        assert (await finch.invoke(envelope)).status == 202


@pytest.mark.parametrize("on_crash", ["rerun", "fail"])
async def test_a_dead_instances_tasks_are_taken_over(provider: Provider, receiver: Receiver, on_crash: str) -> None:
    provider.listing = {"on_crash": on_crash}
    provider.write()
    with provider.running() as one:
        finch = provider.finch(one)
        task_id = await finch.task("save", callback=receiver.url())
        await until((provider.folder / "saved").exists)
        one.kill()
        died = time.monotonic()
        with provider.running() as two:
            snapshot = await provider.finch(two).until(task_id, "completed", "failed")
            assert time.monotonic() - died < 30
            await until(lambda: receiver.terminal(task_id))
    if on_crash == "rerun":
        assert snapshot["message"]["content"][0]["text"] == "resumed at {'step': 1} in attempt 2"
    else:
        assert snapshot["error"]["code"] == "agent_interrupted"
        assert len(runs_of(provider)) == 1
    percents = [event["progress"]["percent"] for event in receiver.of(task_id) if "progress" in event]
    assert percents == sorted(percents)


async def test_a_killed_instances_50_tasks_all_end_on_the_other(provider: Provider, receiver: Receiver) -> None:
    provider.listing = {"max_running_tasks": 50}
    provider.write()
    with provider.running() as one:
        finch = provider.finch(one)
        sends = [finch.task(f"sleep {2 + n / 50}", callback=receiver.url()) for n in range(50)]
        task_ids = await asyncio.gather(*sends)
        await until(lambda: len(runs_of(provider)) == 50)
        one.kill()
        with provider.running():
            await until(lambda: all(receiver.terminal(task_id) for task_id in task_ids), limit_s=60)
    assert Counter(receiver.terminal(task_id) for task_id in task_ids) == {"completed": 50}


async def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_thaws(
    provider: Provider, receiver: Receiver
) -> None:
    with provider.running() as one:
        finch = provider.finch(one)
        task_id = await finch.task("sleep 2", callback=receiver.url())
        await finch.until(task_id, "working")
        os.kill(one.process.pid, signal.SIGSTOP)
        try:
            with provider.running() as two:
                snapshot = await provider.finch(two).until(task_id, "completed")
                os.kill(one.process.pid, signal.SIGCONT)
                await asyncio.sleep(3)
                assert (await provider.finch(two).poll(task_id)).json == snapshot
                assert (await finch.poll(task_id)).json == snapshot
                await until(lambda: receiver.terminal(task_id) == "completed")
        finally:
            os.kill(one.process.pid, signal.SIGCONT)
    assert [attempt for _, attempt, _ in runs_of(provider)] == ["1", "2"]


async def test_a_drain_gives_long_tasks_back_without_counting_a_crash(provider: Provider) -> None:
    provider.server = {"grace_s": 1}
    provider.listing = {"on_crash": "fail"}
    provider.write()
    with provider.running() as one:
        finch = provider.finch(one)
        task_id = await finch.task("sleep 4")
        await finch.until(task_id, "working")
        one.process.terminate()
        assert await asyncio.to_thread(one.process.wait, 30) == 0
    with provider.running() as two:
        await provider.finch(two).until(task_id, "completed")
    assert [attempt for _, attempt, _ in runs_of(provider)] == ["1", "1"]


async def test_a_task_is_nobody_elses(provider: Provider, tmp_path: Path) -> None:
    foreign_key = "finch.agenton." + str(uuid.uuid4())
    provider.variables["FOREIGN"] = Provider(tmp_path, secret=b"o" * 32).displayed_secret
    provider.more = "\n".join(
        [
            *("[[listings]]", 'name = "other"', 'mount = "/other"', "[listings.backend]", 'type = "python"'),
            *('target = "agent:run"', "[[listings.credentials]]", f'key_id = "{foreign_key}"'),
            'request_secret = "env:FOREIGN"',
        ]
    )
    provider.write()
    with provider.running() as process:
        finch = provider.finch(process)
        task_id = await finch.task("sleep 20")
        other = Finch("127.0.0.1", process.port, foreign_key, b"o" * 32, "/other")
        unknown = "x" * 24
        for act in (lambda one: other.poll(one), lambda one: other.message(one, "x"), lambda one: other.cancel(one)):
            mine, nobodys = await act(task_id), await act(unknown)
            assert (mine.status, mine.code) == (404, "task_not_found")
            assert mine.body == nobodys.body
        assert (await finch.poll(task_id)).json["status"] in ("queued", "working")


@pytest.mark.parametrize(
    "task_id",
    ["..%2F..%2Fetc", "%00", "*", "a%3Ab", "{x}", "x" * 10_000, "%C3%A9", "e%CC%81", "%ff", "a%2Fb", "short", "%2e%2e"],
)
async def test_odd_ids_reach_no_storage(finch: Finch, task_id: str) -> None:
    for method, suffix in (("GET", ""), ("POST", "/messages"), ("POST", "/cancel")):
        answer = await finch.call(method, f"/tasks/{task_id}{suffix}")
        assert answer.status == 404


async def test_a_retiring_revision_finishes_what_it_began(provider: Provider, receiver: Receiver) -> None:
    fresh = ("finch.agenton." + str(uuid.uuid4())) if provider.wire_protocol == "finch_v2" else "eav_ffffffffffffffff"
    with provider.running() as process:
        finch = provider.finch(process)
        envelope = finch.task_envelope("ask", callback=receiver.url())
        receipt = await finch.invoke(envelope)
        task_id = receipt.json["merchant_task_id"]
        await finch.until(task_id, "input_required")
    provider.variables["FRESH"] = Provider(provider.folder, secret=b"f" * 32).displayed_secret
    provider.more = f'[[listings.credentials]]\nkey_id = "{fresh}"\nrequest_secret = "env:FRESH"\n'
    path = provider.write()
    path.write_text(path.read_text().replace('state = "current"', 'state = "retiring"'))
    with provider.running() as process:
        finch = provider.finch(process)
        assert (await finch.invoke(envelope)).body == receipt.body
        assert (await finch.invoke(finch.task_envelope("new"))).status == 401
        assert (await finch.message(task_id, "May")).status == 202
        await finch.until(task_id, "completed")
        await until(lambda: receiver.terminal(task_id) == "completed")


async def test_nonces_are_spent_by_polls_messages_and_cancels(finch: Finch) -> None:
    task_id = await finch.task("work")
    await finch.until(task_id, "completed")
    for method, path in (("GET", ""), ("POST", "/messages"), ("POST", "/cancel")):
        nonce = uuid.uuid4().hex
        body = b"{}" if method == "POST" else b""
        first = await finch.call(method, f"/tasks/{task_id}{path}", body, nonce=nonce)
        assert first.status != 401
        assert (await finch.call("GET", f"/tasks/{task_id}", nonce=nonce)).status == 401


async def test_messages_and_cancels_look_up_the_task_then_read_the_body_then_its_state(finch: Finch) -> None:
    task_id = await finch.task("work")
    await finch.until(task_id, "completed")
    for path in ("/messages", "/cancel"):
        assert (await finch.call("POST", f"/tasks/{'x' * 24}{path}", b"[")).code == "task_not_found"
        assert (await finch.call("POST", f"/tasks/{task_id}{path}", b"[")).code == "body_invalid"
        wrong = b'{"protocol_version":"1.0","message":{"content":[]}}'
        assert (await finch.call("POST", f"/tasks/{task_id}{path}", wrong)).code == "protocol_version_unsupported"
        assert (await finch.call("POST", f"/tasks/{task_id}{path}", b"{}")).code == "envelope_invalid"
