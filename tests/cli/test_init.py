"""What `init` writes runs as it is, and it never writes over anything."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from socket import socket
from typing import Any

import pytest

from finch_gateway.config import load
from finch_gateway.emulator.line import SocketLine
from finch_gateway.emulator.platform import Endpoint, Platform
from finch_gateway.emulator.signer import Credential, secret_bytes
from finch_gateway.listing import load_all

RunCommand = Callable[..., subprocess.CompletedProcess[str]]
Serving = Callable[..., AbstractContextManager[str]]

NAMES = ["finch.toml", "agent.py", ".env", ".gitignore"]


@pytest.mark.parametrize("backend", ["python", "http"])
def test_what_is_written_is_whole_without_a_warning(backend: str, run_command: RunCommand, tmp_path: Path) -> None:
    done = run_command("init", "--backend", backend)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)
    loaded = load_all(tmp_path / "finch.toml", {})
    assert loaded.config.warnings == ()
    assert loaded.listings[0].backend_type == backend
    [credential] = loaded.config.listings[0].credentials
    assert re.fullmatch(r"finch\.agenton\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", credential.key_id)
    for secret in (credential.request_secret, credential.callback_secret):
        assert secret is not None
        assert len(base64.urlsafe_b64decode(secret + "=")) == 32
        assert secret not in done.stdout + done.stderr + (tmp_path / "finch.toml").read_text()
    assert credential.request_secret != credential.callback_secret


def test_secrets_are_readable_by_their_owner_only_and_ignored_by_git(run_command: RunCommand, tmp_path: Path) -> None:
    assert run_command("init").returncode == 0
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert {".env", "finch.db*"} <= set((tmp_path / ".gitignore").read_text().splitlines())


def test_two_runs_share_no_credential(run_command: RunCommand, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert run_command("init", name).returncode == 0
    one, two = (load(tmp_path / name / "finch.toml", {}).listings[0].credentials[0] for name in ("one", "two"))
    assert one.key_id != two.key_id
    assert one.request_secret != two.request_secret


def test_the_next_commands_are_said(run_command: RunCommand, tmp_path: Path) -> None:
    here = run_command("init").stdout
    assert '  finch-gateway serve\n  finch-gateway say "A report, please"\n  finch-gateway contract-test\n' in here
    there = run_command("init", "a b", "--backend", "http").stdout
    assert "cd 'a b' && python agent.py\n" in there
    assert "cd 'a b' && finch-gateway serve\n" in there


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_over_and_nothing_else_is_written(
    name: str, run_command: RunCommand, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("mine")
    done = run_command("init")
    assert done.returncode == 2
    assert name in done.stderr
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_link_that_leads_nowhere_counts_as_there(run_command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / ".env").symlink_to(tmp_path / "elsewhere")
    done = run_command("init")
    assert done.returncode == 2
    assert os.listdir(tmp_path) == [".env"]


def test_a_folder_that_cannot_be_made_is_one_line(run_command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/inner"):
        done = run_command("init", folder)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"finch-gateway: {folder}: ")
    assert os.listdir(tmp_path) == ["file"]


def test_an_unknown_backend_is_refused_with_those_there_are(run_command: RunCommand, tmp_path: Path) -> None:
    done = run_command("init", "--backend", "cobol")
    assert done.returncode == 2
    assert "'python', 'http'" in done.stderr
    assert os.listdir(tmp_path) == []


@contextmanager
def own_agent(folder: Path, backend: str) -> Iterator[None]:
    """The agent's own process on a free port, where it has one."""
    if backend == "python":
        yield
        return
    with closing(socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    config = folder / "finch.toml"
    config.write_text(config.read_text().replace(":8000/", f":{port}/"))
    command = [sys.executable, "-u", "agent.py"]
    with subprocess.Popen(command, cwd=folder, env={"PORT": port}, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            assert port in agent.stdout.readline()
            yield
        finally:
            agent.terminate()


async def converse(config: Path, base_url: str, *texts: str) -> list[dict[str, Any]]:
    """Send turns of one conversation, signed as Finch signs them; return the replies, each proven."""
    listing = load(config, {}).listings[0]
    [credential] = listing.credentials
    secret = secret_bytes(credential.request_secret, listing.wire_protocol)
    endpoint = Endpoint(listing.name, listing.wire_protocol, Credential(credential.key_id, secret), listing.mount)
    platform = Platform(endpoint, SocketLine(base_url))
    replies = []
    for text in texts:
        exchange = await platform.invoke(platform.new_call(text, deadline_s=30, conversation_id="conversation-1"))
        assert exchange.proven
        replies.append(json.loads(exchange.answer.body))
    return replies


@pytest.mark.parametrize("backend", ["python", "http"])
def test_what_is_written_runs_passes_the_contract_test_asks_and_answers(
    backend: str, run_command: RunCommand, serving: Serving, tmp_path: Path
) -> None:
    assert run_command("init", "--backend", backend).returncode == 0
    with own_agent(tmp_path, backend), serving(tmp_path) as base_url:
        done = run_command("contract-test", "--base-url", base_url)
        assert done.returncode == 0, done.stdout + done.stderr
        turns = ["Hello", "A report, please", "last month"]
        said, asked, answered = asyncio.run(converse(tmp_path / "finch.toml", base_url, *turns))
    assert said["message"]["content"] == [{"type": "text", "text": "You wrote: Hello"}]
    assert asked["questions"] == [{"id": "period", "question": "Which period should the report cover?"}]
    assert answered["message"]["content"] == [{"type": "text", "text": "Here is your report for last month."}]
