"""`contract-test` on a real gateway: what it says, what it keeps, and how it ends."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from finch_gateway.cli.gateway_process import GatewayNotStarted, running_gateway

ROOT = Path(__file__).parents[2]
V2_SECRET = "SHJ6h4ZyfhSKPLZO0H8CfGRjlajFRQI5yQ9GQlae_s8"
V2_CALLBACK_SECRET = "BHJ6h4ZyfhSKPLZO0H8CfGRjlajFRQI5yQ9GQlae_s8"
V0_SECRET = "påss wörd of the old protocol"
SECRETS = {"V2_SECRET": V2_SECRET, "V2_CALLBACK_SECRET": V2_CALLBACK_SECRET, "V0_SECRET": V0_SECRET}
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), **SECRETS}

ANSWERS = "async def run(job):\n    return 'I am useful.'\n"
ASKS = "async def run(job):\n    return await job.ask('scope', 'Which one?')\n"
FAILS = "async def run(job):\n    raise ValueError('private')\n"
# Longer than the shortest deadline that a check gives it, so that it can be canceled and can expire.
WORKS = """
import asyncio
async def run(job):
    for percent in (20, 60) if job.mode == "task" else ():
        await job.progress(percent, "Reading")
        await asyncio.sleep(1)
    return "I am useful."
"""
ASKS_ONCE = """
async def run(job):
    if job.mode == "task":
        await job.ask("scope", "Which one?")
    return "I am useful."
"""
OPEN = '[outbound]\nallow_private = true\nallow_hosts = ["127.0.0.1"]'
TURNS, TASKS = '["conversation_turn"]', '["conversation_turn", "task"]'

LISTINGS = """
[[listings]]
name = "new"
mount = "/finch/v2"
modes = {modes}
poll_after_ms = 200
[listings.backend]
type = "python"
target = "agent:run"
[[listings.credentials]]
key_id = "finch.agenton.7a0e7e0c-3c0e-4f43-9d39-0d6c3a2f1b10"
request_secret = "env:V2_SECRET"
callback_secret = "env:V2_CALLBACK_SECRET"

[[listings]]
name = "old"
mount = "/finch/v0"
wire_protocol = "agenton_v0"
modes = {modes}
poll_after_ms = 200
[listings.backend]
type = "python"
target = "agent:run"
[[listings.credentials]]
key_id = "eav_0123456789abcdef"
request_secret = "env:V0_SECRET"
"""

Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write an agent and its configuration; returns the configuration's file."""

    def write(agent: str = ANSWERS, server: str = "", modes: str = TURNS, outbound: str = "") -> Path:
        (tmp_path / "agent.py").write_text(agent)
        config = tmp_path / "finch.toml"
        listings = LISTINGS.replace("{modes}", modes)
        config.write_text(f'[server]\n{server}\n[store]\nurl = "sqlite:///finch.db"\n{outbound}\n{listings}')
        return config

    return write


def contract_test(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "finch_gateway.cli", "contract-test", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=120)


def unused_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_every_check_passes_on_both_wire_protocols(written: Written) -> None:
    done = contract_test("--config", written())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗" not in done.stdout
    assert "✓ new: 35 of 35" in done.stdout
    assert "✓ old: 35 of 35" in done.stdout
    assert "\x1b" not in done.stdout


def test_json_and_evidence_say_the_same_and_hold_no_secret(written: Written, tmp_path: Path) -> None:
    config, evidence = written(), tmp_path / "evidence.json"
    done = contract_test("--config", config, "--listing", "new", "--json", "--evidence", evidence)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert json.loads(evidence.read_text("utf-8")) == found
    assert stat.S_IMODE(evidence.stat().st_mode) == 0o600
    assert found["configuration"]["sha256"] == hashlib.sha256(config.read_bytes()).hexdigest()
    assert found["ok"] is True
    assert [listing["name"] for listing in found["listings"]] == ["new"]
    turn = next(check for check in found["listings"][0]["checks"] if check["name"] == "contract-test turn")
    assert turn["exchanges"][0]["method"] == "POST"
    for private in (V2_SECRET, V0_SECRET, "I am useful", "Describe your"):
        assert private not in done.stdout + done.stderr


def test_tasks_pass_on_both_wire_protocols_by_signed_callbacks(written: Written, tmp_path: Path) -> None:
    config, evidence = written(WORKS, modes=TASKS, outbound=OPEN), tmp_path / "evidence.json"
    done = contract_test("--config", config, "--evidence", evidence)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗" not in done.stdout
    assert "✓ new: 57 of 57" in done.stdout
    assert "✓ old: 57 of 57" in done.stdout
    assert "polling" not in done.stdout
    for listing in json.loads(evidence.read_text("utf-8"))["listings"]:
        assert listing["by_polling"] == []
        checks = {check["name"]: check for check in listing["checks"]}
        statuses = [callback["status"] for callback in checks["callbacks of the task"]["callbacks"]]
        assert statuses[-1] == "completed"
        # Only what no stranger's agent can be made to show stays untried.
        assert {name for name, check in checks.items() if "not tried" in check["remark"]} == {"repeated answer"}
    for private in (*SECRETS.values(), "I am useful", "Reading"):
        assert private not in evidence.read_text("utf-8")


def test_without_a_way_here_polling_stands_in_and_the_summary_says_where(written: Written) -> None:
    done = contract_test("--config", written(WORKS, modes=TASKS), "--listing", "new")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by polling, as nothing can reach this tester: contract-test task, callbacks of the task" in done.stdout
    assert "--receiver-url" in done.stdout


def test_an_agent_that_asks_in_a_task_is_answered(written: Written) -> None:
    done = contract_test("--config", written(ASKS_ONCE, modes='["task"]', outbound=OPEN), "--listing", "new")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the agent asked, and was answered" in done.stdout
    assert "contract-test turn" not in done.stdout


def test_an_agent_that_fails_a_task_fails_the_test_by_name(written: Written) -> None:
    done = contract_test("--config", written(FAILS, modes='["task"]', outbound=OPEN), "--listing", "old")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed: contract-test task\n" in done.stdout
    assert "the agent's task failed with agent_error" in done.stdout
    assert "private" not in done.stdout + done.stderr


async def test_a_running_gateway_calls_back_where_the_receiver_url_says(written: Written) -> None:
    config = written(WORKS, modes=TASKS, outbound=OPEN.replace("127.0.0.1", "localhost"))
    receiver_url = f"http://localhost:{unused_port()}/finch"
    async with running_gateway(config, ENVIRON) as gateway:
        arguments = ("--config", config, "--base-url", gateway.base_url, "--receiver-url", receiver_url)
        done = await asyncio.to_thread(contract_test, *arguments, "--listing", "new")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "polling" not in done.stdout


async def test_callbacks_under_another_secret_are_named(written: Written) -> None:
    config = written(WORKS, modes=TASKS, outbound=OPEN)
    other = {**ENVIRON, "V2_CALLBACK_SECRET": V2_SECRET}
    async with running_gateway(config, other) as gateway:
        arguments = ("--config", config, "--base-url", gateway.base_url, "--listing", "new")
        done = await asyncio.to_thread(contract_test, *arguments)
    assert done.returncode == 1
    assert "signed with the request secret, though there is a callback secret" in done.stdout


def test_evidence_replaces_what_others_could_read(written: Written, tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.json"
    evidence.write_text("old")
    evidence.chmod(0o644)
    assert contract_test("--config", written(), "--listing", "old", "--evidence", evidence).returncode == 0
    assert stat.S_IMODE(evidence.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob(".evidence*")] == []


def test_an_agent_that_fails_the_probe_fails_the_test_by_name(written: Written) -> None:
    done = contract_test("--config", written(FAILS), "--listing", "new")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "✗ new: 34 of 35, failed: contract-test turn" in done.stdout
    assert "the agent's turn failed with agent_error" in done.stdout
    assert "private" not in done.stdout + done.stderr


def test_an_agent_that_asks_passes_and_is_remarked(written: Written) -> None:
    done = contract_test("--config", written(ASKS), "--listing", "new")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "asked a question instead, which Finch accepts" in done.stdout


async def test_a_running_gateway_behind_a_prefix_is_tested_where_it_is(written: Written) -> None:
    config = written(server='public_prefix = "/agents"')
    async with running_gateway(config, ENVIRON) as gateway:
        done = await asyncio.to_thread(contract_test, "--config", config, "--base-url", gateway.base_url)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_gateway_with_another_secret_is_not_believed(written: Written) -> None:
    config = written()
    other = {**ENVIRON, "V2_SECRET": "A" * 43}
    async with running_gateway(config, other) as gateway:
        arguments = ("--config", config, "--base-url", gateway.base_url, "--listing", "new")
        done = await asyncio.to_thread(contract_test, *arguments)
    assert done.returncode == 1
    assert "X-Agent-Signature is not over this method, target and these exact bytes" in done.stdout


async def test_the_started_gateway_ends_with_its_block(written: Written) -> None:
    async with running_gateway(written(), ENVIRON) as gateway:
        os.kill(gateway.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(gateway.pid, 0)


async def test_a_gateway_that_does_not_start_says_why(written: Written) -> None:
    config = written(agent="def walk(job): ...\n")
    with pytest.raises(GatewayNotStarted, match="listings"):
        async with running_gateway(config, ENVIRON):
            pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listing", "none"), "has no listing of that name; it has: new, old"),
        (("--base-url", "ftp://example"), "--base-url"),
        (("--base-url", "example.org"), "--base-url"),
        (("--base-url", "http://[::1"), "--base-url"),
        (("--base-url", "http://127.0.0.1:99999"), "--base-url"),
        (("--base-url", f"http://127.0.0.1:{unused_port()}"), "no connection"),
        (("--receiver-url", "ftp://example"), "--receiver-url"),
        (("--receiver-url", "http://[::1"), "--receiver-url"),
        (("--receiver-url", "https://tunnel.example/finch"), "--receiver-listen"),
        (("--receiver-url", "https://tunnel.example", "--receiver-listen", "x"), "--receiver-listen"),
        (("--receiver-url", "http://127.0.0.1:1", "--receiver-listen", "203.0.113.1:9"), "--receiver-listen"),
        (("--evidence", "/nowhere/at/all.json", "--listing", "new"), "--evidence"),
    ],
)
def test_a_test_that_cannot_run_says_why_in_one_line(written: Written, arguments: tuple[str, ...], words: str) -> None:
    done = contract_test("--config", written(modes=TASKS), *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("agent", ["", "def run(:\n"])
def test_an_agent_that_cannot_be_loaded_is_named_in_one_line(written: Written, agent: str) -> None:
    done = contract_test("--config", written(agent))
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("finch-gateway: listings")
    assert done.stderr.count("\n") == 1


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    done = contract_test("--config", tmp_path / "none.toml")
    assert done.returncode == 2
    assert "does not exist" in done.stderr
