"""Cancel, completion and expiry come together, over two instances: one end each, and everybody is told the same."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from support import instances as agent
from support.instances import Clock, Instance, Work, listing_named

from finch_gateway.errors import Refusal
from finch_gateway.store import Store

ROUNDS = 1_000
AT_ONCE = 25
SPREAD_S = 0.006
FINALS = {"completed", "canceled", "expired"}


def dispatch_due(deadline: float) -> bytes:
    envelope = {
        "protocol_version": "2.0",
        "invocation_id": str(uuid.uuid4()),
        "interaction_mode": "task",
        "input": {"content": [{"type": "text", "text": "x"}]},
        "limits": {"deadline_at": datetime.fromtimestamp(deadline, UTC).isoformat()},
        "callback": {"url": "https://finch.example/callbacks", "callback_key_id": "key"},
    }
    return json.dumps(envelope).encode()


async def cancel(instance: Instance, task_id: str) -> int | None:
    """Return the sequence that the answer names; None when the task had another end."""
    try:
        return await instance.cancel(task_id)
    except Refusal as refusal:
        assert refusal.code == "task_terminal"
        return None


async def end_in_three_ways(one: Instance, two: Instance, works: list[Work], chance: random.Random) -> list[int | None]:
    """Complete on one instance, cancel on the other and expire on both; return the cancels' answers."""

    async def soon() -> None:
        await asyncio.sleep(chance.uniform(0, SPREAD_S))

    async def finish(work: Work) -> None:
        await soon()
        work.orders.put_nowait(lambda job: agent.complete(job, "done"))

    async def stop(work: Work) -> int | None:
        await soon()
        return await cancel(two, work.job.task_id)

    async def expire(instance: Instance) -> None:
        await soon()
        await instance.expire()

    answers, *_ = await asyncio.gather(
        asyncio.gather(*(stop(work) for work in works)),
        *(finish(work) for work in works),
        expire(one),
        expire(two),
    )
    await one.quiet()
    return answers


@pytest.mark.timeout(180)
async def test_a_thousand_times_three_ends_at_once_are_one_end(store_pair: tuple[Store, Store]) -> None:
    clock, chance, ends = Clock(), random.Random(7), Counter[str]()
    listing = replace(listing_named(uuid.uuid4().hex), max_running_tasks=AT_ONCE)
    one, two = (Instance(store, listing, clock) for store in store_pair)
    for _ in range(ROUNDS // AT_ONCE):
        task_ids = await asyncio.gather(*(one.accept(dispatch_due(clock.now + 60)) for _ in range(AT_ONCE)))
        for _ in range(AT_ONCE):
            await one.worker.take()
        await one.quiet()
        works = [work for work in one.puppet.works if not work.is_over]
        assert {work.job.task_id for work in works} == set(task_ids)
        clock.now += 61
        answers = await end_in_three_ways(one, two, works, chance)
        for work, answer in zip(works, answers, strict=True):
            ends[await check(one, two, store_pair[0], work.job.task_id, answer)] += 1
        one.puppet.works.clear()
    print(f"\n{sum(ends.values())} races: {dict(ends)}")
    # Each of the three won some: the rounds were races indeed.
    assert set(ends) == FINALS
    assert ends.total() == ROUNDS


async def check(one: Instance, two: Instance, store: Store, task_id: str, answer: int | None) -> str:
    """Hold the polls of both instances, the events and the cancel's answer against each other; return the end."""
    snapshot = await one.poll(task_id)
    assert await two.poll(task_id) == snapshot
    assert snapshot["status"] in FINALS
    assert answer == (snapshot["sequence"] if snapshot["status"] == "canceled" else None)
    assert await cancel(one, task_id) == answer
    told = [json.loads(event.body) for event in await store.list_events(task_id, None, 100)]
    [end] = [event for event in told if event["status"] in FINALS]
    assert (end["status"], end["sequence"]) == (snapshot["status"], snapshot["sequence"])
    assert end["sequence"] == max(event["sequence"] for event in told)
    return str(end["status"])
