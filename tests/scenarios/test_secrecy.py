"""What must stay private appears nowhere: not in a log line at debug, not on a stream, not in an answer (wire 2.5)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import Valkey, free_port, start_valkey, stop_valkey
from support.finch import Finch, HttpAnswer, request_bytes
from support.gateway import GatewayProcess, Provider

PROMPT = "planted-prompt-7f3a"
EXCEPTION = "planted-exception-91bc"
ENV_VALUE = "planted-env-value-55d0"
PASSWORD = "planted-password-c2e8"
QUERY = "planted-query-0b1d"

AGENT = f"""
import asyncio, os
from finch_gateway import Job

class Odd:
    def __repr__(self):
        return "{EXCEPTION}"

async def later():
    raise ValueError("{EXCEPTION}")

class Agent:
    async def run(self, job: Job):
        wish = job.text.partition(" ")[0]
        if wish == "raise":
            raise ValueError("{EXCEPTION} " + job.text)
        if wish == "chain":
            try:
                raise KeyError("{EXCEPTION}")
            except KeyError as error:
                raise RuntimeError(job.text) from error
        if wish == "group":
            raise ExceptionGroup("{EXCEPTION}", [ValueError("{EXCEPTION}"), TypeError(job.text)])
        if wish == "exit":
            raise SystemExit("{EXCEPTION}")
        if wish == "object":
            return Odd()
        if wish == "nested":
            return {{"x": [Odd()]}}
        if wish == "nan":
            return {{"{EXCEPTION}": float("nan")}}
        if wish == "surrogate":
            return "{EXCEPTION}\\ud800"
        if wish == "save":
            await job.save({{"{EXCEPTION}": Odd()}})
        if wish == "background":
            asyncio.get_running_loop().create_task(later())
            await asyncio.sleep(0.05)
        if wish == "unawaited":
            asyncio.get_running_loop().call_soon(lambda: 1 / 0 if "{EXCEPTION}" else None)
            await asyncio.sleep(0.05)
        if wish == "ask":
            await job.ask("q" * 300, job.text)
        assert os.environ["PLANTED"] == "{ENV_VALUE}"
        return "fine"

    def health(self):
        raise ValueError("{EXCEPTION}")

agent = Agent()
"""

WISHES = [
    "raise",
    "chain",
    "group",
    "exit",
    "object",
    "nested",
    "nan",
    "surrogate",
    "save",
    "background",
    "unawaited",
    "ask",
    "fine",
]


@dataclass(slots=True)
class Plants:
    """A gateway with everything planted in it, and all that it ever said."""

    provider: Provider
    process: GatewayProcess
    finch: Finch
    answers: list[HttpAnswer] = field(default_factory=list)

    async def turn(self, text: str) -> HttpAnswer:
        answer = await self.finch.turn(text)
        self.answers.append(answer)
        return answer

    def said(self) -> str:
        """Return everything that left the process: answers, standard error, standard output."""
        parts = [answer.body.decode() + repr(answer.headers) for answer in self.answers]
        folder = self.provider.folder
        return "\n".join([*parts, self.process.log_path.read_text(), (folder / "stdout").read_text()])

    def secrets(self) -> list[str]:
        keys = [self.provider.secret, b"c" * 31 + b"\xff"]
        forms = [
            form for key in keys for form in (displayed(key), base64.b64encode(key).decode().rstrip("="), key.hex())
        ]
        return [*forms, repr(self.provider.secret)[2:-1], PASSWORD, ENV_VALUE, PROMPT, EXCEPTION, QUERY]


def displayed(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).rstrip(b"=").decode()


@pytest.fixture
def guarded_valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A server that asks for a password."""
    (tmp_path / "valkey").mkdir()
    server = start_valkey(tmp_path / "valkey", free_port())
    with socket.create_connection((server.host, server.port), timeout=5) as connection:
        connection.sendall(f"CONFIG SET requirepass {PASSWORD}\r\n".encode())
        assert connection.recv(16) == b"+OK\r\n"
    yield server
    stop_valkey(server)


def planted(folder: Path, store: Valkey, password: str = PASSWORD) -> Provider:
    provider = Provider(
        folder,
        store_url=f"redis://:{password}@{store.host}:{store.port}/0",
        backend={"type": "python", "target": "agent:agent"},
        more='callback_secret = "env:CALLBACK_SECRET"',
        variables={"CALLBACK_SECRET": displayed(b"c" * 31 + b"\xff")},
    )
    path = provider.write(AGENT)
    path.write_text('env_file = ".env"\n' + path.read_text())
    (folder / ".env").write_text(f"PLANTED={ENV_VALUE}\n")
    return provider


@pytest.fixture
def plants(tmp_path: Path, guarded_valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plants]:
    provider = planted(tmp_path / "p", guarded_valkey)
    # The harness gives standard output away; here it is looked at.
    python = provider.folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@" > "{provider.folder}/stdout"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    process = GatewayProcess.start(provider)
    monkeypatch.undo()
    try:
        yield Plants(provider, process, provider.finch(process))
    finally:
        process.end()


async def test_nothing_planted_appears_in_any_log_line_stream_or_answer(plants: Plants) -> None:
    finch = plants.finch
    for wish in WISHES:
        answer = await plants.turn(f"{wish} {PROMPT}")
        assert (answer.status, answer.code) in ((200, "agent_error"), (200, "completed")), wish
    for target in (f"/health?token={QUERY}", f"/nowhere?token={QUERY}"):
        plants.answers.append(await finch.call("GET", target))
    plants.answers.append(await finch.invoke({PROMPT: PROMPT, "protocol_version": PROMPT}))
    plants.answers.append(await finch.invoke(finch.envelope(PROMPT, quantity=PROMPT, dispatch_id=[PROMPT])))
    plants.answers.append(await finch.call("POST", "/invoke", PROMPT.encode()))
    target = f"{finch.mount}/invoke?x={QUERY}".encode()
    wrong = finch.with_key(finch.key_id, b"wrong").signed("POST", target, PROMPT.encode())
    plants.answers.append(await finch.send("POST", target, wrong, PROMPT.encode()))
    async with finch.connection() as connection:
        connection.writer.write(b"GET /" + QUERY.encode() + b"\x01 HTTP/1.1\r\n\r\n")
        plants.answers.append(await connection.read())
    plants.process.end()

    said = plants.said()
    assert "turn.answered" in said
    assert "finch-gateway" in said
    assert [secret for secret in plants.secrets() if secret in said] == []
    check_lines(plants.process)


def check_lines(process: GatewayProcess) -> None:
    """Each line of the log is one JSON record in visible ASCII; what an attacker wrote is no event."""
    for line in process.log_path.read_bytes().split(b"\n")[:-1]:
        assert line.isascii(), line
        assert line.decode().isprintable(), line
        assert isinstance(json.loads(line)["event"], str), line
        assert json.loads(line)["event"] != "forged"


FORGED = '\r\n{"event":"forged"}\r\n\x1b[2J\u2028{"event":"forged"}\u0085\x7f\u202e'


async def test_nobody_writes_a_line_of_the_log_but_the_gateway(plants: Plants) -> None:
    finch = plants.finch
    for name in ("turn_id", "conversation_id"):
        await finch.invoke(finch.envelope("fine", **{name: FORGED}))
    await finch.invoke(
        finch.envelope("fine " + FORGED, dispatch_id=FORGED, terms_hash=FORGED, service_version_id=FORGED)
    )
    await finch.invoke(finch.envelope("raise " + FORGED, offer_id=FORGED))
    await finch.invoke(finch.envelope("fine", invocation_id=str(uuid.uuid4()) + FORGED))
    mount = finch.mount.encode()
    odd = FORGED.encode().replace(b"\r\n", b"")
    for target in (b"/%0d%0a%7b%22event%22:%22forged%22%7d", b'/{"event":"forged"}', b"/" + odd, b"/health?" + odd):
        await send_raw(finch, request_bytes("GET", mount + target, finch.signed("GET", mount + target)))
    for name in (b"Idempotency-Key", b"traceparent", b"X-Platform-Key-Id", b"X-Platform-Nonce", b"User-Agent"):
        for value in (
            odd,
            b"\r\n" + FORGED.strip().encode(),
            b'a\n{"event":"forged"}',
            '\u2028{"event":"forged"}'.encode(),
        ):
            body = json.dumps(finch.envelope("fine")).encode()
            headers = [*finch.signed("POST", mount + b"/invoke", body)]
            kept = [pair for pair in headers if pair[0] != name]
            await send_raw(finch, request_bytes("POST", mount + b"/invoke", [*kept, (name, value)], body))
    await send_raw(finch, odd + b"\r\n\r\n")
    await send_raw(finch, request_bytes("G\x1bT", mount + b"/health", []))
    plants.process.end()

    assert len(plants.process.events("turn.answered")) >= 3
    check_lines(plants.process)


async def send_raw(finch: Finch, raw: bytes) -> None:
    """Send bytes as they are; whatever the answer, it comes soon or the connection ends."""
    async with finch.connection() as connection:
        connection.writer.write(raw)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            await asyncio.wait_for(connection.read(), 1)


def serve(provider: Provider) -> subprocess.CompletedProcess[str]:
    """Run `serve` where it is to fail."""
    command = [sys.executable, "-m", "finch_gateway.cli", "serve", "--config", str(provider.folder / "finch.toml")]
    return subprocess.run(
        command, cwd=provider.folder, env=provider.environ(), capture_output=True, text=True, timeout=60, check=False
    )


def test_an_agent_that_cannot_be_imported_is_told_without_its_words(tmp_path: Path, guarded_valkey: Valkey) -> None:
    provider = planted(tmp_path / "p", guarded_valkey)
    for text in (
        f'raise ValueError("{EXCEPTION}")',
        f'raise ImportError("{EXCEPTION}")',
        f'raise SystemExit("{EXCEPTION}")',
        f'import sys\ntry:\n    raise KeyError("{EXCEPTION}")\nfinally:\n    int("{EXCEPTION}")',
        f'"{EXCEPTION}" = 1',
        f'class agent:\n    def __init__(self):\n        raise ValueError("{EXCEPTION}")',
    ):
        (provider.folder / "agent.py").write_text(text)
        ended = serve(provider)
        assert ended.returncode == 2, text
        assert "listings[0].backend.target" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1, ended.stderr
        assert [
            plant
            for plant in (EXCEPTION, PASSWORD, ENV_VALUE, provider.displayed_secret)
            if plant in ended.stderr + ended.stdout
        ] == []


def test_a_store_that_refuses_the_password_is_told_without_it(tmp_path: Path, guarded_valkey: Valkey) -> None:
    provider = planted(tmp_path / "p", guarded_valkey, password="planted-wrong-password")
    ended = serve(provider)
    assert ended.returncode == 2
    assert "store.url" in ended.stderr
    assert "planted" not in ended.stderr + ended.stdout
    assert len(ended.stderr.splitlines()) == 1
