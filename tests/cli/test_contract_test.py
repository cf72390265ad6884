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
V0_SECRET = "påss wörd of the old protocol"
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), "V2_SECRET": V2_SECRET, "V0_SECRET": V0_SECRET}

ANSWERS = "async def run(job):\n    return 'I am useful.'\n"
ASKS = "async def run(job):\n    return await job.ask('scope', 'Which one?')\n"
FAILS = "async def run(job):\n    raise ValueError('private')\n"

LISTINGS = """
[[listings]]
name = "new"
mount = "/finch/v2"
[listings.backend]
type = "python"
target = "agent:run"
[[listings.credentials]]
key_id = "finch.agenton.7a0e7e0c-3c0e-4f43-9d39-0d6c3a2f1b10"
request_secret = "env:V2_SECRET"

[[listings]]
name = "old"
mount = "/finch/v0"
wire_protocol = "agenton_v0"
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

    def write(agent: str = ANSWERS, server: str = "") -> Path:
        (tmp_path / "agent.py").write_text(agent)
        config = tmp_path / "finch.toml"
        config.write_text(f'[server]\n{server}\n[store]\nurl = "sqlite:///finch.db"\n{LISTINGS}')
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
        (("--evidence", "/nowhere/at/all.json", "--listing", "new"), "--evidence"),
    ],
)
def test_a_test_that_cannot_run_says_why_in_one_line(written: Written, arguments: tuple[str, ...], words: str) -> None:
    done = contract_test("--config", written(), *arguments)
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
