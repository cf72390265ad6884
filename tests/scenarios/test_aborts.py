"""Callers that hang up at any moment: nobody gets another's answer, and nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import Valkey
from support.finch import Connection, Finch, HttpAnswer, request_bytes
from support.gateway import GatewayProcess, Provider

from finch_gateway.store import Store

TURNS = 2_000
AT_ONCE = 200
SLOTS = 600
"""More than callers: a turn whose caller left runs on."""
SEED = 2_000
STORE_FILES = 12

AGENT = """
import asyncio, hashlib
from pathlib import Path
from finch_gateway import Job

RUNS = (Path(__file__).parent / "runs.txt").open("a", buffering=1)

async def run(job: Job) -> str:
    RUNS.write(job.invocation_id + "\\n")
    wish, name = job.text.split()
    await asyncio.sleep(int(hashlib.sha256(name.encode()).hexdigest(), 16) % 50 / 1000)
    return name + "." * (400_000 if wish == "large" else 0)
"""


@dataclass(slots=True)
class Crowd:
    """What came of all the callers."""

    finch: Finch
    random: random.Random = field(default_factory=lambda: random.Random(SEED))
    left: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    abandoned: list[dict[str, object]] = field(default_factory=list)

    async def turn(self) -> None:
        """Begin a turn and leave it at a moment of chance, or stay for the answer."""
        name, wish = uuid.uuid4().hex, self.random.choice(("small", "small", "large"))
        envelope = self.finch.envelope(f"{wish} {name}")
        body = json.dumps(envelope).encode()
        target = f"{self.finch.mount}/invoke".encode()
        raw = request_bytes("POST", target, self.finch.signed("POST", target, body), body)
        when = self.random.choices(("never", "sending", "running", "reading"), (4, 2, 2, 2))[0]
        self.left[when] += 1
        async with self.finch.connection() as connection:
            if when == "never":
                connection.writer.write(raw)
                self.check(await connection.read("POST"), name)
                return
            await self._leave(connection, raw, when, len(body))
            if self.random.random() < 0.5:
                reset(connection)
        if when != "sending":
            self.abandoned.append(envelope)

    async def _leave(self, connection: Connection, raw: bytes, when: str, body_bytes: int) -> None:
        cut = len(raw) - self.random.randrange(1, body_bytes + 1) if when == "sending" else len(raw)
        connection.writer.write(raw[:cut])
        await connection.writer.drain()
        await asyncio.sleep(self.random.random() * 0.03)
        if when == "reading":
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(connection.reader.read(self.random.randrange(1, 500)), 30)

    def check(self, answer: HttpAnswer, name: str) -> None:
        if answer.status != 200 or answer.json["message"]["content"][0]["text"].rstrip(".") != name:
            self.wrong.append(f"{name}: {answer.status} {answer.body[:200]!r}")


def reset(connection: Connection) -> None:
    """Close with a reset instead of an orderly end."""
    sock = connection.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway and a second look into its store."""

    process: GatewayProcess
    finch: Finch
    folder: Path
    open_store: Callable[[], Store]

    def descriptors(self) -> Counter[str]:
        """Count what the process holds open, by what it is; each file of the store by its name."""
        found: Counter[str] = Counter()
        for link in Path(f"/proc/{self.process.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                kind = os.readlink(link).partition(":")[0]
                found["store" if Path(kind).name.startswith("finch.db") else kind] += 1
        return found


@pytest.fixture(params=["sqlite", "redis"])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gateway]:
    provider = Provider(tmp_path, server={"log_level": "info"}, listing={"max_running_turns": SLOTS})
    if request.param == "redis":
        valkey: Valkey = request.getfixturevalue("valkey")
        namespace = f"t{uuid.uuid4().hex}"
        provider.store_url, provider.store = valkey.url, {"namespace": namespace}
    provider.write(AGENT)

    def open_store() -> Store:
        if request.param == "sqlite":
            from finch_gateway.stores.sqlite import SqliteStore

            return SqliteStore(tmp_path / "finch.db")
        from finch_gateway.stores.redis import RedisStore

        return RedisStore(valkey.url, namespace=namespace)

    with provider.running() as process:
        yield Gateway(process, provider.finch(process), tmp_path, open_store)


@pytest.mark.slow
async def test_callers_that_hang_up_leave_nothing_behind_and_get_nobody_elses_answer(gateway: Gateway) -> None:
    finch, crowd = gateway.finch, Crowd(gateway.finch)
    assert (await finch.turn("small warm-up")).status == 200
    assert (await finch.health()).status == 200
    baseline = gateway.descriptors()

    remaining = iter(range(TURNS))

    async def caller() -> None:
        for _ in remaining:
            with contextlib.suppress(ConnectionError):
                await crowd.turn()

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    assert crowd.wrong == []
    assert min(crowd.left.values()) > TURNS / 10

    await _until(lambda: _held(gateway, baseline), 20)
    await _until_none_runs(gateway, 20)
    await _check_retries(crowd)
    await _check_slots(finch)
    runs = Counter((gateway.folder / "runs.txt").read_text().split())
    assert [invocation_id for invocation_id, count in runs.items() if count > 1] == []
    await _until(lambda: _held(gateway, baseline), 20)
    assert (await finch.health()).json == {"status": "ready"}

    began = time.monotonic()
    assert await asyncio.to_thread(gateway.process.end) == 0
    assert time.monotonic() - began < 5
    events = Counter(event["event"] for event in gateway.process.events())
    assert not {"request.failed", "loop.trouble", "drain.grace_over", "turn.lost", "turn.superseded"} & set(events)


async def _check_retries(crowd: Crowd) -> None:
    """A turn whose caller left is answered with its own reply, twice the same."""
    for envelope in crowd.abandoned[:50]:
        first, second = await crowd.finch.invoke(envelope), await crowd.finch.invoke(envelope)
        content = envelope["input"]["content"]  # type: ignore[index]
        crowd.check(first, content[0]["text"].split()[1])
        assert first.body == second.body
    assert crowd.wrong == []


async def _check_slots(finch: Finch) -> None:
    """Every slot is free again: as many turns as there are slots run at once."""
    answers = await asyncio.gather(*(finch.turn(f"small s{index}") for index in range(SLOTS)))
    assert Counter(answer.status for answer in answers) == {200: SLOTS}


async def _until(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        await asyncio.sleep(0.1)


async def _until_none_runs(gateway: Gateway, limit_s: float) -> None:
    store = gateway.open_store()
    await store.open()
    try:
        until = time.monotonic() + limit_s
        while await store.running_turns(time.time()):
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
    finally:
        await store.close()


def _held(gateway: Gateway, baseline: Counter[str]) -> bool:
    """Say whether nothing is held that was not before, but for the store's threads, which open files as they need."""
    now = gateway.descriptors()
    return now.pop("store", 0) <= STORE_FILES and now <= baseline
