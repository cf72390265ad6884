"""Agents that never come back: their own turns end in time, and nobody else waits for them (wire 5.3)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest
from support.finch import Finch, HttpAnswer
from support.gateway import GatewayProcess, Provider

AGENT = """
import asyncio, threading, time
from finch_gateway import Job

async def blocks(job: Job) -> str:
    if job.text == "stick":
        time.sleep(60)
    return "echo " + job.text

def never_returns(job: Job) -> str:
    if job.text == "stick":
        threading.Event().wait()
    return "echo " + job.text

async def in_the_pool(job: Job) -> str:
    if job.text == "stick":
        await asyncio.to_thread(threading.Event().wait)
    return "echo " + job.text

async def clings(job: Job) -> str:
    while job.text == "stick":
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
    return "echo " + job.text

def spins(job: Job) -> str:
    while job.text == "stick":
        pass
    return "echo " + job.text

async def fine(job: Job) -> str:
    return "echo " + job.text
"""

OTHER_LISTING = """
[[listings]]
name = "other"
mount = "/finch/other"
backend = {{ type = "python", target = "agent:fine" }}
credentials = [{{ key_id = "{key_id}", request_secret = "env:REQUEST_SECRET" }}]
"""

STUCK = ["blocks", "never_returns", "in_the_pool", "clings", "spins"]
GRACE_S = 2


@dataclass(frozen=True, slots=True)
class Stuck:
    """A gateway with an agent that can get stuck, and another listing beside it."""

    process: GatewayProcess
    finch: Finch
    other: Finch


@pytest.fixture(params=STUCK)
def stuck(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stuck]:
    other_key = f"finch.agenton.{uuid.uuid4()}"
    provider = Provider(
        tmp_path,
        server={"grace_s": GRACE_S},
        backend={"type": "python", "target": f"agent:{request.param}"},
        more=OTHER_LISTING.format(key_id=other_key),
    )
    provider.write(AGENT)
    process = GatewayProcess.start(provider)
    try:
        finch = provider.finch(process)
        yield Stuck(process, finch, replace(finch, mount="/finch/other", key_id=other_key))
    finally:
        process.kill()


async def test_a_stuck_turn_fails_before_its_deadline_while_everybody_else_is_answered(stuck: Stuck) -> None:
    envelope = stuck.finch.envelope("stick", deadline_s=2)
    deadline = datetime.fromisoformat(envelope["limits"]["deadline_at"]).timestamp()
    turn = asyncio.create_task(_timed(stuck.finch, envelope))

    await asyncio.sleep(0.3)
    slowest_s = 0.0
    while not turn.done():
        took_s, statuses = await _look_round(stuck)
        assert statuses == [200, 200]
        slowest_s = max(slowest_s, took_s)

    answer, arrived_at = await turn
    assert (answer.status, answer.json["status"], answer.code) == (200, "failed", "deadline_exceeded")
    assert arrived_at < deadline
    assert slowest_s < 1


async def _timed(finch: Finch, envelope: dict[str, object]) -> tuple[HttpAnswer, float]:
    answer = await finch.invoke(envelope)
    return answer, time.time()


async def _look_round(stuck: Stuck) -> tuple[float, list[int]]:
    began = time.monotonic()
    answers = await asyncio.gather(stuck.other.turn("hello"), stuck.other.health())
    return time.monotonic() - began, [answer.status for answer in answers]


async def test_another_turn_of_the_same_listing_is_answered_beside_a_stuck_one(stuck: Stuck) -> None:
    turn = asyncio.create_task(stuck.finch.turn("stick", deadline_s=6))
    await asyncio.sleep(0.2)
    answer = await stuck.finch.turn("hello", deadline_s=5)
    assert answer.json["message"]["content"] == [{"type": "text", "text": "echo hello"}]
    assert not turn.done()
    turn.cancel()


async def test_a_stuck_agent_turns_its_own_health_bad_and_not_its_neighbours(stuck: Stuck) -> None:
    assert (await stuck.finch.turn("stick", deadline_s=1)).code == "deadline_exceeded"
    until = time.monotonic() + 15
    while (await stuck.finch.health()).status == 200:
        assert time.monotonic() < until
        await asyncio.sleep(0.2)
    assert (await stuck.finch.health()).json == {"status": "unavailable"}
    assert (await stuck.other.health()).json == {"status": "ready"}


async def test_a_stuck_agent_does_not_keep_the_process_from_ending(stuck: Stuck) -> None:
    left_behind = await stuck.finch.turn("stick", deadline_s=1)
    assert left_behind.code == "deadline_exceeded"
    running = asyncio.create_task(stuck.finch.turn("stick", deadline_s=60))
    await asyncio.sleep(0.5)

    began = time.monotonic()
    stuck.process.process.terminate()
    answer = await running
    assert (answer.status, answer.code) == (503, "unavailable")
    assert await asyncio.to_thread(stuck.process.process.wait, 30) == 0
    assert time.monotonic() - began < GRACE_S + 6
