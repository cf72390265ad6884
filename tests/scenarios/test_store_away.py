"""The store goes away under load: signed refusals meanwhile, no turn lost, doubled or replayed, healthy by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Valkey, free_port, start_valkey, stop_valkey
from support.finch import Finch, Headers, HttpAnswer
from support.gateway import GatewayProcess, Provider

TURNS_PER_S = 50

AGENT = """
import asyncio, os
from pathlib import Path
from finch_gateway import Job

RUNS = os.open(Path(__file__).parent / "runs.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def run(job: Job) -> str:
    os.write(RUNS, (job.invocation_id + "\\n").encode())
    await asyncio.sleep(float(job.text.split()[0]))
    return job.text
"""


@dataclass(slots=True)
class Load:
    """Turns sent at a steady rate, each repeated under a new nonce until it is answered."""

    finch: Finch
    answers: list[tuple[float, int]] = field(default_factory=list)
    accepted: list[tuple[float, Headers, bytes]] = field(default_factory=list)
    replies: dict[str, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    stopped: bool = False
    count: int = 0
    callers: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> None:
        """Begin turns until stopped, then wait for the answer of each."""
        while not self.stopped:
            self.count += 1
            self.callers.append(asyncio.create_task(self._turn(f"0.03 turn {self.count}")))
            await asyncio.sleep(1 / TURNS_PER_S)
        await asyncio.gather(*self.callers)

    async def _turn(self, text: str) -> None:
        envelope = self.finch.envelope(text)
        answer = await self.insist(envelope)
        assert answer.json["message"]["content"] == [{"type": "text", "text": text}]
        self.replies[envelope["invocation_id"]] = (envelope, answer.body)

    async def insist(self, envelope: dict[str, Any]) -> HttpAnswer:
        """Send a turn again and again until it is answered; only a signed 503 may come before that."""
        body = json.dumps(envelope).encode()
        target = f"{self.finch.mount}/invoke".encode()
        until = time.monotonic() + 60
        while True:
            headers = self.finch.signed("POST", target, body)
            answer = await self.finch.send("POST", target, headers, body)
            self.finch.verify(answer, "POST", target)
            self.answers.append((time.time(), answer.status))
            if answer.status == 200:
                self.accepted.append((time.time(), headers, body))
                return answer
            assert (answer.status, answer.code) == (503, "unavailable")
            assert answer.header("Retry-After")
            assert time.monotonic() < until
            await asyncio.sleep(0.3)

    def statuses(self, since: float = 0, until: float = float("inf")) -> Counter[int]:
        return Counter(status for at, status in self.answers if since <= at <= until)


@contextlib.asynccontextmanager
async def under_load(finch: Finch) -> AsyncIterator[Load]:
    """Keep turns coming while the block runs; after it, every one of them is answered."""
    load = Load(finch)
    running = asyncio.create_task(load.run())
    try:
        yield load
        load.stopped = True
        await running
    finally:
        running.cancel()


async def check_once_each(load: Load, folder: Path) -> None:
    """Every turn ran once, keeps its one reply, and no request that was accepted is accepted again."""
    runs = Counter((folder / "runs.txt").read_text().split())
    assert {invocation_id: runs[invocation_id] for invocation_id in load.replies if runs[invocation_id] != 1} == {}
    for envelope, reply in list(load.replies.values())[::10]:
        assert (await load.finch.invoke(envelope)).body == reply
    assert Counter((folder / "runs.txt").read_text().split()) == runs
    target = f"{load.finch.mount}/invoke".encode()
    for _, headers, body in load.accepted[::5]:
        assert (await load.finch.send("POST", target, headers, body)).code == "auth_failed"


async def ready_again(finch: Finch, limit_s: float = 10) -> None:
    until = time.monotonic() + limit_s
    while (await finch.health()).status != 200:
        assert time.monotonic() < until
        await asyncio.sleep(0.1)


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[list[Valkey]]:
    """A server of the test's own, to be killed and replaced in the list."""
    (tmp_path / "valkey").mkdir()
    servers = [start_valkey(tmp_path / "valkey", free_port())]
    yield servers
    stop_valkey(servers[-1])


def kill(server: Valkey) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


@contextlib.contextmanager
def gateway(folder: Path, store_url: str, **settings: Any) -> Iterator[tuple[Finch, GatewayProcess]]:
    provider = Provider(folder, store_url=store_url, listing={"max_running_turns": 500}, **settings)
    provider.write(AGENT)
    with provider.running() as process:
        yield provider.finch(process), process
        assert process.process.poll() is None
        events = {event["event"] for event in process.events()}
        assert not events & {"request.failed", "loop.trouble", "lease.renewal_failed"}


@pytest.mark.slow
@pytest.mark.parametrize(("away_s", "lease_s"), [(10, 15), (6, 3)])
async def test_a_redis_that_dies_under_load_costs_signed_503s_and_nothing_else(
    tmp_path: Path, own_valkey: list[Valkey], away_s: float, lease_s: float
) -> None:
    with gateway(tmp_path / "p", own_valkey[0].url, store={"lease_s": lease_s}) as (finch, _):
        async with under_load(finch) as load:
            await asyncio.sleep(2)
            kill(own_valkey[0])
            away_at = time.time()
            await asyncio.sleep(away_s)
            assert (await finch.health()).status == 503
            own_valkey.append(start_valkey(tmp_path / "valkey", own_valkey[0].port))
            back_at = time.time()
            await ready_again(finch, 5)
            await asyncio.sleep(2)
        assert set(load.statuses(until=away_at)) == {200}
        # An answer on its way when the server died may still arrive.
        assert set(load.statuses(away_at + 1, back_at)) == {503}
        assert set(load.statuses(back_at + 5)) <= {200}
        await check_once_each(load, tmp_path / "p")


@pytest.mark.slow
async def test_a_turn_that_outlives_its_lease_in_an_outage_is_not_begun_again_beside_itself(
    tmp_path: Path, own_valkey: list[Valkey]
) -> None:
    with gateway(tmp_path / "p", own_valkey[0].url, store={"lease_s": 3}) as (finch, _):
        load = Load(finch)
        envelope = finch.envelope("9 seconds")
        attempts = [asyncio.create_task(load.insist(envelope))]
        await asyncio.sleep(1)
        kill(own_valkey[0])
        for _ in range(20):
            # Out of step with each other, so that one of them is the first to reach the store again.
            await asyncio.sleep(0.015)
            attempts.append(asyncio.create_task(load.insist(envelope)))
        await asyncio.sleep(5)
        own_valkey.append(start_valkey(tmp_path / "valkey", own_valkey[0].port))
        answers = await asyncio.gather(*attempts)
        assert len({answer.body for answer in answers}) == 1
        assert Counter((tmp_path / "p" / "runs.txt").read_text().split()) == {envelope["invocation_id"]: 1}


async def test_a_script_flush_under_load_is_not_noticed(tmp_path: Path, own_valkey: list[Valkey]) -> None:
    with gateway(tmp_path / "p", own_valkey[0].url) as (finch, _):
        async with under_load(finch) as load:
            for _ in range(30):
                await asyncio.sleep(0.1)
                flush_scripts(own_valkey[0])
        assert set(load.statuses()) == {200}
        await check_once_each(load, tmp_path / "p")


def flush_scripts(server: Valkey) -> None:
    with socket.create_connection((server.host, server.port), timeout=5) as connection:
        connection.sendall(b"SCRIPT FLUSH\r\n")
        assert connection.recv(16) == b"+OK\r\n"


def sqlite_folder(tmp_path: Path) -> Path:
    (tmp_path / "p" / "state").mkdir(parents=True)
    return tmp_path / "p"


SQLITE = "sqlite:///state/finch.db"


async def test_a_sqlite_file_locked_by_another_process_for_seconds_only_delays(tmp_path: Path) -> None:
    folder = sqlite_folder(tmp_path)
    with gateway(folder, SQLITE) as (finch, _):
        async with under_load(finch) as load:
            await asyncio.sleep(1)
            locked_at = time.time()
            with contextlib.closing(sqlite3.connect(folder / "state" / "finch.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                await asyncio.sleep(3)
                unlocked_at = time.time()
                other.execute("ROLLBACK")
            await ready_again(finch)
            await asyncio.sleep(1)
        assert set(load.statuses()) == {200}
        assert set(load.statuses(locked_at + 0.5, unlocked_at)) == set()
        await check_once_each(load, folder)


async def test_a_sqlite_folder_that_goes_away_is_missed_and_found_again(tmp_path: Path) -> None:
    folder = sqlite_folder(tmp_path)
    with gateway(folder, SQLITE) as (finch, _):
        async with under_load(finch) as load:
            await asyncio.sleep(1)
            (folder / "state").rename(folder / "elsewhere")
            away_at = time.time()
            await asyncio.sleep(3.5)
            assert (await finch.health()).status == 503
            (folder / "elsewhere").rename(folder / "state")
            back_at = time.time()
            await ready_again(finch)
            await asyncio.sleep(1)
        assert set(load.statuses(away_at + 1, back_at)) == {503}
        await check_once_each(load, folder)


@contextlib.contextmanager
def full_disk(process: GatewayProcess, limit_bytes: int) -> Iterator[None]:
    """Let no file of the process grow beyond a size: to it, the disk is full."""
    pid = process.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_under_sqlite_refuses_and_then_recovers(tmp_path: Path) -> None:
    folder = sqlite_folder(tmp_path)
    with gateway(folder, SQLITE) as (finch, process):
        async with under_load(finch) as load:
            await asyncio.sleep(1)
            full_at = time.time()
            with full_disk(process, (folder / "state" / "finch.db-wal").stat().st_size + 16_384):
                await _until(lambda: load.statuses(full_at)[503] > 20)
            room_at = time.time()
            await ready_again(finch)
            await asyncio.sleep(1)
        assert set(load.statuses(room_at + 2)) <= {200}
        await check_once_each(load, folder)


async def test_a_log_that_cannot_be_written_keeps_nobody_from_an_answer(tmp_path: Path, valkey: Valkey) -> None:
    with gateway(tmp_path / "p", valkey.url, store={"namespace": "fulldisk"}) as (finch, process):
        with full_disk(process, process.log_path.stat().st_size):
            stranger = replace(finch, secret=b"another")
            target = f"{finch.mount}/health".encode()
            headers = stranger.signed("GET", target)
            refused = await asyncio.wait_for(finch.send("GET", target, headers), 5)
            finch.verify(refused, "GET", target)
            assert refused.status == 401
            assert (await finch.health()).status == 200
            assert (await finch.invoke({})).status == 422
        assert (await finch.turn("0 more")).status == 200


async def _until(condition: Callable[[], bool], limit_s: float = 20) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
