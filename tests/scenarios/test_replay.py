"""One request is accepted once, whatever process it reaches and whenever it comes again (wire 1.7)."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections import Counter
from pathlib import Path

from conftest import Valkey
from support.finch import Finch, HttpAnswer
from support.gateway import Provider

AGENT = """
import os
from pathlib import Path

async def run(job):
    with (Path(__file__).parent / "runs.txt").open("a") as runs:
        runs.write(job.invocation_id + "\\n")
    return f"ran in {os.getpid()}"
"""


def runs_of(provider: Provider) -> list[str]:
    path = provider.folder / "runs.txt"
    return path.read_text().split() if path.exists() else []


async def fire(finches: list[Finch], times: int) -> tuple[list[HttpAnswer], bytes, list[tuple[bytes, bytes]]]:
    """Send one signed turn `times` times at once, over all callers; return the answers and the request."""
    first = finches[0]
    target = first.mount.encode() + b"/invoke"
    body = json.dumps(first.envelope("once")).encode()
    headers = first.signed("POST", target, body)
    sends = [finches[number % len(finches)].send("POST", target, headers, body) for number in range(times)]
    answers = await asyncio.gather(*sends)
    for answer in answers:
        first.verify(answer, "POST", target)
    return answers, body, headers


async def test_one_request_fired_50_times_at_two_instances_is_accepted_once(tmp_path: Path, valkey: Valkey) -> None:
    provider = Provider(tmp_path, store_url=valkey.url, store={"namespace": uuid.uuid4().hex})
    provider.write(AGENT)
    with provider.running() as one, provider.running() as two:
        finches = [provider.finch(one), provider.finch(two)]
        answers, body, headers = await fire(finches, 50)
        assert Counter(answer.status for answer in answers) == {200: 1, 401: 49}
        one.kill()
        two.kill()
    with provider.running() as again:
        finch = provider.finch(again)
        assert (await finch.send("POST", b"/finch/v2/invoke", headers, body)).status == 401
    assert len(runs_of(provider)) == 1


async def test_one_request_fired_50_times_at_four_workers_on_sqlite_is_accepted_once(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    with provider.running("--workers", "4") as gateway:
        assert len({event["pid"] for event in gateway.events("worker.started")}) == 4
        answers, body, headers = await fire([provider.finch(gateway)], 50)
        assert Counter(answer.status for answer in answers) == {200: 1, 401: 49}
        gateway.kill()
    with provider.running() as again:
        finch = provider.finch(again)
        assert (await finch.send("POST", b"/finch/v2/invoke", headers, body)).status == 401
    assert len(runs_of(provider)) == 1


async def test_bad_signatures_leave_no_row(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    with provider.running() as gateway:
        finch = provider.finch(gateway)
        stranger = finch.with_key(finch.key_id, b"another secret")
        target = b"/finch/v2/invoke"
        for _ in range(50):
            body = json.dumps(finch.envelope()).encode()
            answer = await stranger.send("POST", target, stranger.signed("POST", target, body), body)
            assert answer.status == 401
    with sqlite3.connect(tmp_path / "finch.db") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts = {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    assert sum(count for name, count in counts.items() if "nonce" in name or "turn" in name) == 0
    assert any("nonce" in name for name in counts)


async def test_one_nonce_serves_two_key_ids_but_no_key_id_twice(tmp_path: Path) -> None:
    other = "finch.agenton." + str(uuid.uuid4())
    provider = Provider(tmp_path)
    provider.more = f'[[listings.credentials]]\nkey_id = "{other}"\nrequest_secret = "env:OTHER"\nstate = "retiring"\n'
    provider.variables["OTHER"] = Provider(tmp_path, secret=b"o" * 32).displayed_secret
    provider.write(AGENT)
    with provider.running() as gateway:
        finch = provider.finch(gateway)
        second = finch.with_key(other, b"o" * 32)
        assert (await finch.call("GET", "/health", nonce="same")).status == 200
        assert (await second.call("GET", "/health", nonce="same")).status == 200
        assert (await finch.call("GET", "/health", nonce="same")).status == 401
        # A key id with the other's secret is nobody's.
        mixed = finch.with_key(other, finch.secret)
        target = b"/finch/v2/health"
        assert (await mixed.send("GET", target, mixed.signed("GET", target))).status == 401
