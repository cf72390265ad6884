"""The gateway as a process: captures, workers that die, signals, a parent that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from support.gateway import Provider

AGENT = "import os\nasync def run(job):\n    return str(os.getpid())\n"


async def until(condition: Any, limit_s: float = 45) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_the_last_refused_requests_are_kept_for_the_owner_alone(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    with provider.running("--capture", "3") as process:
        finch = provider.finch(process)
        for number in range(5):
            target = f"/finch/v2/invoke?n={number}".encode()
            headers = finch.with_key(finch.key_id, b"wrong").signed("POST", target, b'{"a": 1}')
            assert (await finch.send("POST", target, headers, b'{"a": 1}')).status == 401
        assert (await finch.turn("x")).status == 200
    folder = tmp_path / "captures"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kept = [json.loads(path.read_text()) for path in sorted(folder.iterdir())]
    assert [record["target"][-1] for record in kept] == ["2", "3", "4"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert kept[0]["reason"] == "signature"
    assert kept[0]["body_base64"] == "eyJhIjogMX0="
    assert ["x-platform-key-id", finch.key_id] in kept[0]["headers"]


async def test_without_the_option_nothing_is_captured(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    with provider.running() as process:
        target = b"/finch/v2/invoke"
        assert (await provider.finch(process).send("POST", target, [], b"{}")).status == 401
    assert not (tmp_path / "captures").exists()


async def test_a_dead_worker_is_replaced_and_all_end_together(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    with provider.running("--workers", "3") as process:
        finch = provider.finch(process)
        pids = [event["pid"] for event in process.events("worker.started")]
        assert len(set(pids)) == 3
        os.kill(pids[0], signal.SIGKILL)
        await until(lambda: len(process.events("worker.started")) == 4)
        for _ in range(20):
            assert (await finch.turn("x")).status == 200
        pids = [event["pid"] for event in process.events("worker.started")]
        process.process.terminate()
        assert await asyncio.to_thread(process.process.wait, 60) == 0
        assert not any(is_alive(pid) for pid in pids)


async def test_a_killed_parent_leaves_no_worker_behind(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    with provider.running("--workers", "2") as process:
        pids = [event["pid"] for event in process.events("worker.started")]
        os.kill(process.process.pid, signal.SIGKILL)
        process.process.wait()
        await until(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(tmp_path: Path, number: int) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    with provider.running() as process:
        assert (await provider.finch(process).turn("x")).status == 200
        os.kill(process.process.pid, number)
        assert await asyncio.to_thread(process.process.wait, 60) == 0
        assert process.events("server.stopped")


async def test_a_public_prefix_is_part_of_what_is_signed(tmp_path: Path) -> None:
    provider = Provider(tmp_path, server={"public_prefix": "/agents"})
    provider.write(AGENT)
    with provider.running() as process:
        finch = provider.finch(process)
        signed, sent = b"/agents/finch/v2/health?a=%2F", b"/finch/v2/health?a=%2F"
        answer = await finch.send("GET", sent, finch.signed("GET", signed))
        assert answer.status == 200
        finch.verify(answer, "GET", signed)
        assert (await finch.send("GET", sent, finch.signed("GET", sent))).status == 401


async def test_the_paths_are_the_providers_own(tmp_path: Path) -> None:
    paths = {
        "paths.health": "/up",
        "paths.invoke": "/do",
        "paths.task": "/jobs/{merchant_task_id}",
        "paths.messages": "/jobs/{merchant_task_id}/say",
        "paths.cancel": "/stop/{merchant_task_id}",
    }
    provider = Provider(tmp_path, listing=paths)
    provider.write(AGENT)
    with provider.running() as process:
        finch = provider.finch(process)
        assert (await finch.call("GET", "/up")).status == 200
        assert (await finch.call("GET", "/health")).status == 404
        receipt = await finch.call("POST", "/do", json.dumps(finch.task_envelope()).encode())
        task_id = receipt.json["merchant_task_id"]
        assert (await finch.call("GET", f"/jobs/{task_id}")).status == 200
        assert (await finch.call("POST", f"/jobs/{task_id}/say", b"{}")).status == 422
        assert (await finch.call("POST", f"/stop/{task_id}")).status in (200, 409)
        assert (await finch.call("GET", f"/tasks/{task_id}")).status == 404
