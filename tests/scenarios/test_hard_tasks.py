"""What costs providers money elsewhere: odd agents, lost answers of the store, jumps and stalls, all under `fail`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Valkey, free_port, start_valkey, stop_valkey
from support.gateway import Provider
from support.receiver import Receiver

AGENT = r"""
import asyncio
from pathlib import Path
from finch_gateway import Job, JobFailed, Reply

HERE = Path(__file__).parent

async def run(job: Job):
    with (HERE / "runs.txt").open("a") as runs:
        runs.write(f"{job.task_id or job.turn_id} {job.attempt}\n")
    word = job.text
    if word == "impatient":
        for number in range(20):
            try:
                async with asyncio.timeout(0.0005):
                    await job.save({"number": number})
            except TimeoutError:
                pass
            saving = asyncio.ensure_future(job.progress(number, f"step {number}"))
            await asyncio.sleep(0)
            saving.cancel()
        return "done"
    if word == "report":
        for number in range(80):
            await job.progress(number, f"step {number}")
            await asyncio.sleep(0.1)
        await job.save({"all": True})
        return "done"
    if word == "sleep":
        await asyncio.sleep(4)
        return "done"
    if word == "fraction":
        await job.progress(33.9)
        await asyncio.sleep(1.2)
        await job.progress(66.1, "b")
        return "done"
    if word == "boolean":
        await job.progress(True)
    if word == "error as message":
        raise JobFailed("bad", ValueError("private"))
    if word == "surrogate message":
        raise JobFailed("bad", "a\ud800")
    if word == "bytes message":
        raise JobFailed("bad", b"bytes")
    if word == "list question":
        await job.ask("q", ["what"])
    if word == "surrogate question":
        await job.ask("q", "a\ud800")
    if word == "text reply":
        return Reply("hello")
    if word == "unknown part":
        return Reply(({"type": "image", "image": 1},))
    if word == "null text":
        return [{"type": "text", "text": None}]
    if word == "large question":
        await asyncio.gather(*(job.ask(f"q{n}", "?" * 9000) for n in range(50)))
    if word == "dispatch":
        job.dispatch["input"]["content"][0]["text"] = "changed"
        job.content[0]["text"] = "changed"
        answer = await job.ask("a", "A?")
        return {"text": job.text, "keys": sorted(job.dispatch), "answer": answer}
    return "done " + word
"""

REDIS_PATIENCE_S = 30


def runs_of(provider: Provider) -> list[list[str]]:
    path = provider.folder / "runs.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


async def until(condition: Any, limit_s: float = 45) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.02)


@pytest.fixture(params=["sqlite", "redis"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    found = Provider(tmp_path, listing={"on_crash": "fail", "max_output_bytes": 65_536})
    if request.param == "redis":
        server: Valkey = request.getfixturevalue("valkey")
        found.store_url, found.store = server.url, {"namespace": uuid.uuid4().hex}
    found.write(AGENT)
    return found


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[tuple[Provider, Valkey]]:
    """A gateway on a Redis of the test's own, which may be stopped."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = start_valkey(folder, free_port())
    provider = Provider(tmp_path, store_url=server.url, listing={"on_crash": "fail"})
    provider.write(AGENT)
    yield provider, server
    stop_valkey(server)


@pytest.fixture
async def receiver(provider: Provider) -> AsyncIterator[Receiver]:
    async with Receiver(provider.secret).listening() as one:
        yield one
        assert one.violations == []


async def test_an_agent_that_gives_up_waiting_for_a_save_keeps_its_task(provider: Provider) -> None:
    with provider.running() as process:
        finch = provider.finch(process)
        task_ids = [await finch.task("impatient") for _ in range(4)]
        for task_id in task_ids:
            assert (await finch.until(task_id, "completed", "failed"))["status"] == "completed"
    assert len(runs_of(provider)) == 4


BAD_AGENTS = {
    "boolean": "agent_error",
    "error as message": "agent_error",
    "surrogate message": "agent_error",
    "bytes message": "agent_error",
    "list question": "agent_error",
    "surrogate question": "agent_error",
    "text reply": "agent_error",
    "unknown part": "agent_error",
    "null text": "agent_error",
    "large question": "output_too_large",
}


async def test_whatever_an_agent_hands_over_is_one_clean_end(provider: Provider, receiver: Receiver) -> None:
    with provider.running() as process:
        finch = provider.finch(process)
        for word, code in BAD_AGENTS.items():
            turn = await finch.turn(word)
            assert (turn.status, turn.code) == (200, code), word
            task_id = await finch.task(word, callback=receiver.url())
            assert (await finch.until(task_id, "completed", "failed"))["error"]["code"] == code, word
            await until(lambda one=task_id: receiver.terminal(one) == "failed")
        assert "private" not in process.log_path.read_text()
    assert len(runs_of(provider)) == 2 * len(BAD_AGENTS)


async def test_a_fraction_of_a_percent_is_cut_off(provider: Provider, receiver: Receiver) -> None:
    with provider.running() as process:
        finch = provider.finch(process)
        task_id = await finch.task("fraction", callback=receiver.url())
        await finch.until(task_id, "completed")
        await until(lambda: receiver.terminal(task_id) == "completed")
    percents = [event["progress"]["percent"] for event in receiver.of(task_id) if "progress" in event]
    assert set(percents) <= {33, 66}
    assert percents


async def test_an_agent_sees_no_callback_and_changes_nothing_that_is_kept(provider: Provider) -> None:
    conversation = str(uuid.uuid4())
    with provider.running() as process:
        finch = provider.finch(process)
        assert (await finch.turn("dispatch", conversation_id=conversation)).code == "input_required"
        answer = await finch.turn("yes", conversation_id=conversation)
    said = answer.json["message"]["content"][0]["json"]
    assert (said["text"], said["answer"]) == ("dispatch", "yes")
    assert "callback" not in said["keys"]
    assert "invocation_id" in said["keys"]


async def test_events_without_a_callback_key_id_are_signed_under_the_dispatching_one(
    provider: Provider, receiver: Receiver
) -> None:
    with provider.running() as process:
        finch = provider.finch(process)
        for callback in ({"url": receiver.url()}, {"url": receiver.url(), "callback_key_id": ""}):
            receipt = await finch.invoke({**finch.task_envelope("x"), "callback": callback})
            task_id = receipt.json["merchant_task_id"]
            await until(lambda one=task_id: receiver.terminal(one) == "completed")
        for odd in ("a\r\nX: 1", " blank ", "é"):
            refused = await finch.invoke(
                {**finch.task_envelope("x"), "callback": {"url": receiver.url(), "callback_key_id": odd}}
            )
            assert (refused.status, refused.code) == (422, "envelope_invalid")


async def test_a_repeat_has_its_receipt_whatever_its_callback_says(provider: Provider) -> None:
    with provider.running() as process:
        finch = provider.finch(process)
        envelope = finch.task_envelope("x", callback="http://127.0.0.1:1/callbacks")
        receipt = await finch.invoke(envelope)
        again = {**envelope, "callback": {"url": "http://10.0.0.1/", "callback_key_id": finch.key_id}}
        assert (await finch.invoke(again)).body == receipt.body
        fresh = {**again, "invocation_id": str(uuid.uuid4())}
        assert (await finch.invoke(fresh)).code == "envelope_invalid"


async def test_a_task_for_another_service_version_is_a_422_that_creates_nothing(provider: Provider) -> None:
    provider.more = ""
    path = provider.write()
    version = str(uuid.uuid4())
    path.write_text(
        path.read_text().replace('state = "current"', f'state = "current"\nservice_version_id = "{version}"')
    )
    with provider.running() as process:
        finch = provider.finch(process)
        refused = await finch.invoke(finch.task_envelope("x"))
        assert (refused.status, refused.code) == (422, "service_version_mismatch")
        assert (await finch.invoke(finch.task_envelope("x", service_version_id=version))).status == 202


async def test_a_record_that_cannot_be_read_ends_cleanly_and_holds_up_nobody(tmp_path: Path) -> None:
    provider = Provider(tmp_path, listing={"max_running_tasks": 1})
    provider.write(AGENT)
    with provider.running() as process:
        finch = provider.finch(process)
        broken = await finch.task("sleep")
        process.kill()
    with sqlite3.connect(tmp_path / "finch.db") as database:
        database.execute("UPDATE records SET record = x'7b7d'")
    with provider.running() as process:
        finch = provider.finch(process)
        listed = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "finch_gateway.cli", "tasks", "list"),
            cwd=tmp_path,
            env={**provider.environ(), "PYTHONPATH": os.getcwd()},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await listed.communicate()
        assert (listed.returncode, errors) == (0, b"")
        assert broken.encode() in output
        good = await finch.task("x")
        assert (await finch.until(broken, "failed"))["error"]["code"] == "internal_error"
        await finch.until(good, "completed")


async def test_a_store_that_stands_still_costs_no_reporting_task(own_redis: tuple[Provider, Valkey]) -> None:
    provider, server = own_redis
    with provider.running() as process:
        finch = provider.finch(process)
        task_ids = [await finch.task("report") for _ in range(6)]
        await until(lambda: len(runs_of(provider)) == 6)
        await asyncio.sleep(1)
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(6)
        server.process.send_signal(signal.SIGCONT)
        for task_id in task_ids:
            assert (await finch.until(task_id, "completed", "failed"))["status"] == "completed"
    assert [attempt for _, attempt in runs_of(provider)] == ["1"] * 6


async def test_an_outage_longer_than_the_lease_does_not_begin_a_task_again_beside_itself(
    own_redis: tuple[Provider, Valkey],
) -> None:
    provider, server = own_redis
    provider.store = {"lease_s": 3}
    provider.write()
    with provider.running() as process:
        finch = provider.finch(process)
        task_ids = [await finch.task("sleep") for _ in range(6)]
        await until(lambda: len(runs_of(provider)) == 6)
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(6)
        server.process.send_signal(signal.SIGCONT)
        for task_id in task_ids:
            assert (await finch.until(task_id, "completed", "failed"))["status"] == "completed"
    assert [attempt for _, attempt in runs_of(provider)] == ["1"] * 6


async def test_a_drain_with_a_full_queue_counts_no_crash(provider: Provider) -> None:
    provider.server = {"grace_s": 1}
    provider.listing = {"on_crash": "fail", "max_running_tasks": 2}
    provider.store = {**provider.store, "lease_s": 3}
    provider.write()
    task_ids: list[str] = []
    for _ in range(3):
        with provider.running() as process:
            finch = provider.finch(process)
            task_ids += [await finch.task("sleep") for _ in range(4)]
            await until(lambda: len(runs_of(provider)) >= 2)
            process.process.send_signal(signal.SIGTERM)
            # The door stays open while it drains: a signed 503, not a closed connection.
            health = await finch.health()
            assert health.status in (200, 503)
            assert await asyncio.to_thread(process.process.wait, 60) == 0
    with provider.running() as process:
        finch = provider.finch(process)
        for task_id in task_ids:
            snapshot = await finch.until(task_id, "completed", "failed", limit_s=90)
            assert snapshot["status"] == "completed", json.dumps(snapshot)
    assert {attempt for _, attempt in runs_of(provider)} == {"1"}


async def test_500_tasks_on_timers_all_end_and_are_told_under_constant_collection(tmp_path: Path) -> None:
    provider = Provider(tmp_path, listing={"max_running_tasks": 500, "max_queue": 1000})
    provider.write(
        "import asyncio, gc, threading, time\n"
        "def collect():\n    while True:\n        gc.collect()\n        time.sleep(0.01)\n"
        "threading.Thread(target=collect, daemon=True).start()\n"
        "async def run(job):\n    await asyncio.sleep(1)\n    return 'x'\n"
    )
    async with Receiver(provider.secret).listening() as receiver:
        with provider.running() as process:
            finch = provider.finch(process)
            limit = asyncio.Semaphore(50)

            async def dispatch() -> str:
                async with limit:
                    return await finch.task("x", callback=receiver.url(), deadline_s=300)

            task_ids = await asyncio.gather(*(dispatch() for _ in range(500)))
            await until(lambda: all(receiver.terminal(task_id) == "completed" for task_id in task_ids), limit_s=120)
        assert receiver.violations == []
