"""An operator finds, ends and re-tells work by the commands, on both stores, while gateways run or not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Valkey
from support.gateway import Provider
from support.receiver import Receiver

AGENT = """
import asyncio
from pathlib import Path

async def run(job):
    if job.text == "sleep":
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            (Path(__file__).parent / "stopped").touch()
            raise
    return "a private answer"
"""


@pytest.fixture(params=["sqlite", "redis"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    found = Provider(tmp_path)
    if request.param == "redis":
        server: Valkey = request.getfixturevalue("valkey")
        found.store_url, found.store = server.url, {"namespace": uuid.uuid4().hex}
    found.write(AGENT)
    return found


@pytest.fixture
async def receiver(provider: Provider) -> AsyncIterator[Receiver]:
    async with Receiver(provider.secret).listening() as one:
        yield one
        assert one.violations == []


async def run(provider: Provider, *arguments: str) -> subprocess.CompletedProcess[str]:
    def command() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "finch_gateway.cli", *arguments],
            cwd=provider.folder,
            env={**provider.environ(), "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return await asyncio.to_thread(command)


async def until(condition: Any, limit_s: float = 45) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.02)


async def test_before_anything_ran_there_is_nothing_to_list(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    for group in ("tasks", "callbacks"):
        done = await run(provider, group, "list")
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 1
    assert not (tmp_path / "finch.db").exists()


async def test_a_task_is_listed_shown_and_canceled_while_it_runs(provider: Provider, receiver: Receiver) -> None:
    with provider.running() as process:
        finch = provider.finch(process)
        task_id = await finch.task("sleep", callback=receiver.url())
        await finch.until(task_id, "working")
        listed = await run(provider, "tasks", "list", "--open")
        assert task_id in listed.stdout
        assert "working" in listed.stdout
        shown = await run(provider, "tasks", "show", task_id)
        assert "callbacks to:     127.0.0.1" in shown.stdout
        credentials = await run(provider, "credentials")
        assert credentials.stdout.splitlines()[1].split()[-1] == "1"
        done = await run(provider, "tasks", "cancel", task_id, "--yes")
        assert done.stdout == f"Canceled: {task_id}.\n", done.stderr
        await until((provider.folder / "stopped").exists)
        assert (await finch.poll(task_id)).json["status"] == "canceled"
        await until(lambda: receiver.terminal(task_id) == "canceled")
        assert (await run(provider, "tasks", "cancel", task_id, "--yes")).returncode == 0
        ended = await finch.task("work")
        await finch.until(ended, "completed")
        refused = await run(provider, "tasks", "cancel", ended, "--yes")
        assert (refused.returncode, "completed" in refused.stderr) == (1, True)
        assert "private" not in (await run(provider, "tasks", "show", ended)).stdout
    assert (await run(provider, "tasks", "show", "x" * 24)).returncode == 1
    assert task_id not in (await run(provider, "tasks", "list", "--open")).stdout


async def test_a_callback_that_waits_is_told_from_its_task_and_hurried_by_its_sequence(
    provider: Provider, receiver: Receiver
) -> None:
    receiver.answer = lambda body: 503
    with provider.running() as process:
        finch = provider.finch(process)
        task_id = await finch.task("work", callback=receiver.url())
        await finch.until(task_id, "completed")
    header, row = (await run(provider, "callbacks", "list")).stdout.splitlines()
    assert row[header.index("STATUS") :].startswith("completed ")
    assert row[header.index("STATE") :] == "waiting for delivery"
    sequence = row[header.index("SEQUENCE") :].split()[0]
    refused = await run(provider, "callbacks", "resend", task_id)
    assert (refused.returncode, f"name its SEQUENCE: {sequence}." in refused.stderr) == (1, True)
    assert (await run(provider, "callbacks", "resend", task_id, sequence)).stdout == "Due again: 1.\n"


async def test_a_dead_callback_is_listed_shown_and_resent(provider: Provider, receiver: Receiver) -> None:
    receiver.answer = lambda body: 410
    with provider.running() as process:
        finch = provider.finch(process)
        task_id = await finch.task("work", callback=receiver.url())
        await finch.until(task_id, "completed")

        async def dead() -> bool:
            listed = await run(provider, "callbacks", "list", "--dead", "--task", task_id)
            return any("completed" in row and "dead: " in row for row in listed.stdout.splitlines())

        end = time.monotonic() + 45
        while not await dead():
            assert time.monotonic() < end
        receiver.answer = lambda body: 204
        sequence = str((await finch.poll(task_id)).json["sequence"])
        shown = await run(provider, "callbacks", "show", task_id, sequence)
        assert '"event_type":"task.completed"' in shown.stdout
        done = await run(provider, "callbacks", "resend", task_id, sequence)
        assert done.stdout == "Due again: 1.\n", done.stderr
        await until(lambda: receiver.terminal(task_id) == "completed")
    gone = await run(provider, "callbacks", "show", task_id, sequence)
    assert gone.returncode == 1
    assert (await run(provider, "callbacks", "resend")).returncode == 2
