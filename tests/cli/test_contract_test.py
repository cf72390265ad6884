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
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
# The first task of a listing is followed to its end; those after it are canceled, or left to expire.
WORKS = """
import asyncio
from collections import Counter
tasks = Counter()
async def run(job):
    if job.mode == "task":
        tasks[job.listing] += 1
        await job.progress(20, "Reading")
        await asyncio.sleep(60 if tasks[job.listing] > 1 else 0.1)
    return "I am useful."
"""
CHOOSES = """
from finch_gateway import JobFailed
async def run(job):
    if await job.ask("day", "Monday or Tuesday?") not in ("Monday", "Tuesday"):
        raise JobFailed("no_such_day")
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
Done = subprocess.CompletedProcess[str]


def write(folder: Path, agent: str = ANSWERS, server: str = "", modes: str = TURNS, outbound: str = "") -> Path:
    """Write an agent and its configuration; return the configuration's file."""
    (folder / "agent.py").write_text(agent)
    config = folder / "finch.toml"
    listings = LISTINGS.replace("{modes}", modes)
    config.write_text(f'[server]\n{server}\n[store]\nurl = "sqlite:///finch.db"\n{outbound}\n{listings}')
    return config


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes into the test's folder."""
    return partial(write, tmp_path)


def contract_test(*arguments: str | Path) -> Done:
    command = [sys.executable, "-m", "finch_gateway.cli", "contract-test", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=120)


def one_line(text: str) -> str:
    """Return a text without the line breaks that fit it to a terminal."""
    return " ".join(text.split())


def unused_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_every_check_passes_on_both_wire_protocols(written: Written) -> None:
    done = contract_test("--config", written())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗" not in done.stdout
    assert "✓ new: 35 passed\n" in done.stdout
    assert "✓ old: 35 passed\n" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_gateway_that_is_started_leaves_the_configured_store_alone(written: Written, tmp_path: Path) -> None:
    done = contract_test("--config", written(), "--listing", "new")
    assert "A gateway is started for this test, with an SQLite store that is thrown away afterwards" in done.stdout
    assert not (tmp_path / "finch.db").exists()


def test_json_and_evidence_say_the_same_and_hold_no_secret(written: Written, tmp_path: Path) -> None:
    config, evidence = written(), tmp_path / "evidence.json"
    done = contract_test("--config", config, "--listing", "new", "--json", "--evidence", evidence)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert json.loads(evidence.read_text("utf-8")) == found
    assert stat.S_IMODE(evidence.stat().st_mode) == 0o600
    assert found["configuration"]["sha256"] == hashlib.sha256(config.read_bytes()).hexdigest()
    assert found["ok"] is True
    assert found["store"] == "an SQLite store that is thrown away afterwards"
    assert {name: found["listings"][0][name] for name in ("passed", "failed", "not_tried")} == {
        "passed": 35,
        "failed": 0,
        "not_tried": 0,
    }
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
    assert "✗ new: 34 passed, 1 failed\n  failed: contract-test turn\n" in done.stdout
    assert "the agent's turn failed with agent_error" in done.stdout
    assert "private" not in done.stdout + done.stderr


def test_an_agent_that_asks_passes_and_is_remarked(written: Written) -> None:
    done = contract_test("--config", written(ASKS), "--listing", "new")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "asked a question instead, which Finch accepts\n      asked: Which one?\n" in done.stdout


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
    assert done.stdout.count("✗") == 1
    assert "✗ new: 0 passed, 32 failed, 3 not tried\n  Not one answer is signed" in done.stdout
    said = one_line(done.stdout)
    assert "The gateway there runs with another secret, or not restarted since it changed; or another program" in said
    assert "X-Agent-Signature is not over this method, target and these exact bytes" in said


def test_another_program_is_told_apart(written: Written) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        arguments = ("--base-url", f"http://127.0.0.1:{server.server_port}", "--listing", "new")
        done = contract_test("--config", written(modes=TASKS), *arguments)
        server.shutdown()
    assert done.returncode == 1
    assert done.stdout.count("✗") == 1
    assert "Another program answers there, or its configuration has no listing at this mount." in one_line(done.stdout)


async def test_a_base_url_that_ends_in_the_mount_is_hinted_at(written: Written) -> None:
    config = written()
    async with running_gateway(config, ENVIRON) as gateway:
        arguments = ("--config", config, "--base-url", f"{gateway.base_url}/finch/v2", "--listing", "new")
        done = await asyncio.to_thread(contract_test, *arguments)
    assert done.returncode == 1
    hint = f"--base-url ends with the mount /finch/v2, which is added to it: try --base-url {gateway.base_url}"
    assert hint in one_line(done.stdout)
    # Much is wrong there, and all of it is told in lines that fit, one column below the other.
    rows = [line for line in done.stdout.splitlines() if line[:3] in ("  ✓", "  ✗", "  –")]
    assert len(rows) == 35
    assert len({line.rindex(" ms  wire ") for line in rows}) == 1
    assert [line for line in done.stdout.splitlines() if len(line) > 100 and line not in rows] == []


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
        (("--evidence", "/nowhere/at/all.json", "--listing", "new"), "--evidence: /nowhere/at is no folder"),
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


# Tests of tasks take seconds, nearly all of them waiting: they are begun together, and looked at one by one.


def by_callbacks(folder: Path, listing: str) -> Done:
    config = write(folder, WORKS, modes=TASKS, outbound=OPEN)
    return contract_test("--config", config, "--listing", listing, "--evidence", folder / "evidence.json")


def by_polling(folder: Path) -> Done:
    return contract_test("--config", write(folder, WORKS, modes=TASKS), "--listing", "new")


def of_an_agent_that_asks(folder: Path) -> Done:
    config = write(folder, ASKS_ONCE, modes='["task"]', outbound=OPEN)
    return contract_test("--config", config, "--listing", "new")


def of_an_agent_that_wants_another_answer(folder: Path) -> Done:
    config = write(folder, CHOOSES, modes='["task"]', outbound=OPEN)
    return contract_test("--config", config, "--listing", "new", "--evidence", folder / "evidence.json")


def of_an_agent_that_fails(folder: Path) -> Done:
    return contract_test("--config", write(folder, FAILS, modes='["task"]', outbound=OPEN), "--listing", "old")


def by_a_receiver_url(folder: Path) -> Done:
    config = write(folder, WORKS, modes=TASKS, outbound=OPEN.replace("127.0.0.1", "localhost"))
    url = f"http://localhost:{unused_port()}/finch"
    return running(config, ENVIRON, "--receiver-url", url)


def by_a_receiver_url_that_is_not_let_in(folder: Path) -> Done:
    config = write(folder, WORKS, modes='["task"]')
    return running(config, ENVIRON, "--receiver-url", f"http://127.0.0.1:{unused_port()}")


def by_callbacks_under_another_secret(folder: Path) -> Done:
    return running(write(folder, WORKS, modes=TASKS, outbound=OPEN), {**ENVIRON, "V2_CALLBACK_SECRET": V2_SECRET})


def running(config: Path, environ: dict[str, str], *arguments: str) -> Done:
    """Test a gateway that runs already, under an environment of its own."""

    async def test() -> Done:
        async with running_gateway(config, environ) as gateway:
            named = ("--config", config, "--base-url", gateway.base_url, "--listing", "new")
            return await asyncio.to_thread(contract_test, *named, *arguments)

    return asyncio.run(test())


@dataclass(frozen=True)
class Slow:
    """A contract test that may still run, and its folder."""

    folder: Path
    future: Future[Done]

    @property
    def done(self) -> Done:
        return self.future.result()


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Slow]]:
    """Return the contract test that a function makes with these arguments; all of them have begun by then."""
    runs: list[tuple[Callable[..., Done], tuple[str, ...]]] = [
        (by_callbacks, ("new",)),
        (by_callbacks, ("old",)),
        (by_polling, ()),
        (of_an_agent_that_asks, ()),
        (of_an_agent_that_wants_another_answer, ()),
        (of_an_agent_that_fails, ()),
        (by_a_receiver_url, ()),
        (by_a_receiver_url_that_is_not_let_in, ()),
        (by_callbacks_under_another_secret, ()),
    ]
    with ThreadPoolExecutor(len(runs)) as together:
        begun = {}
        for run, arguments in runs:
            folder = tmp_path_factory.mktemp("slow")
            begun[run, arguments] = Slow(folder, together.submit(run, folder, *arguments))
        yield lambda run, *arguments: begun[run, arguments]


@pytest.mark.parametrize("listing", ["new", "old"])
def test_tasks_pass_on_both_wire_protocols_by_signed_callbacks(slow: Callable[..., Slow], listing: str) -> None:
    test = slow(by_callbacks, listing)
    assert test.done.returncode == 0, test.done.stdout + test.done.stderr
    assert "✗" not in test.done.stdout
    assert f"✓ {listing}: 56 passed, 1 not tried\n" in test.done.stdout
    assert "  – repeated answer                not tried " in test.done.stdout
    assert "polling" not in test.done.stdout
    kept = (test.folder / "evidence.json").read_text("utf-8")
    [found] = json.loads(kept)["listings"]
    assert (found["passed"], found["failed"], found["not_tried"], found["by_polling"]) == (56, 0, 1, [])
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["callbacks of the task"]["callbacks"][-1]["status"] == "completed"
    # Only what no stranger's agent can be made to show stays untried.
    assert [name for name, check in checks.items() if not check["tried"]] == ["repeated answer"]
    for private in (*SECRETS.values(), "I am useful", "Reading"):
        assert private not in kept


def test_without_a_way_here_polling_stands_in_and_the_summary_says_where(slow: Callable[..., Slow]) -> None:
    done = slow(by_polling).done
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  – callbacks of the task " in done.stdout
    summary = one_line(done.stdout.partition("✓ new: 55 passed, 2 not tried")[2])
    assert "by polling, as nothing can reach this tester: contract-test task; cancel; expiry" in summary
    for words in ("--receiver-url URL", 'allow_hosts = ["127.0.0.1"]', "allow_private = true", "for local work only"):
        assert words in summary


def test_an_agent_that_asks_in_a_task_is_answered(slow: Callable[..., Slow]) -> None:
    done = slow(of_an_agent_that_asks).done
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the agent asked, and was answered" in done.stdout
    assert "asked: Which one?" in done.stdout
    assert "contract-test turn" not in done.stdout


def test_an_agent_that_cannot_use_the_answer_is_shown_how_to_pass(slow: Callable[..., Slow]) -> None:
    test = slow(of_an_agent_that_wants_another_answer)
    told = test.done.stdout
    assert test.done.returncode == 1, told + test.done.stderr
    assert "the agent's task failed with no_such_day" in told
    assert "      asked: Monday or Tuesday?\n      answered: Whatever suits you best.\n" in told
    assert "`capabilities` in the listing" in one_line(told)
    assert "job.contract_test" in one_line(told)
    assert "Monday" not in (test.folder / "evidence.json").read_text("utf-8")


def test_an_agent_that_fails_a_task_fails_the_test_by_name(slow: Callable[..., Slow]) -> None:
    done = slow(of_an_agent_that_fails).done
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed: contract-test task\n" in done.stdout
    assert "the agent's task failed with agent_error" in done.stdout
    assert "private" not in done.stdout + done.stderr


def test_a_running_gateway_calls_back_where_the_receiver_url_says(slow: Callable[..., Slow]) -> None:
    done = slow(by_a_receiver_url).done
    assert done.returncode == 0, done.stdout + done.stderr
    assert "polling" not in done.stdout


def test_a_gateway_that_may_not_call_here_is_told_apart(slow: Callable[..., Slow]) -> None:
    done = slow(by_a_receiver_url_that_is_not_let_in).done
    assert done.returncode == 1
    summary = one_line(done.stdout.partition("✗ new: ")[2])
    assert "failed: contract-test task; five dispatches at once; " in summary
    assert "probably as the gateway may not call http://127.0.0.1:" in summary
    assert "To let it, for local work only, set [outbound] allow_hosts" in summary


def test_callbacks_under_another_secret_are_named(slow: Callable[..., Slow]) -> None:
    done = slow(by_callbacks_under_another_secret).done
    assert done.returncode == 1
    assert "signed with the request secret, though there is a callback secret" in done.stdout
