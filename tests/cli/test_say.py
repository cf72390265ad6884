"""`say` sends a sentence through a running gateway and prints the answer as a person reads it, or why there is none."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import pytest
from cli.conftest import COMMAND, process_environment, read_terminal

from finch_gateway.cli.screen import plain

AGENT = """
import asyncio
from finch_gateway import Job, JobFailed

async def run(job: Job):
    if "json" in job.text:
        return [{"type": "json", "json": {"größe": [1]}}, "and a text"]
    if "fail" in job.text:
        raise JobFailed("closed_today", "Come back \\x1b[31m tomorrow.")
    if "sleep" in job.text:
        await asyncio.sleep(60)
    if "study" in job.text:
        await job.progress(40, "Reading")
        await asyncio.sleep(0.4)
        period = await job.ask("period", "Which period?")
        size = await job.ask("size", "Which size?")
        return f"Study of {period}, {size}, after {len(job.conversation)} messages."
    return f"You wrote: {job.text}"
"""
CONFIG = """
env_file = ".env"
[server]
port = {port}
[store]
url = "sqlite:///finch.db"
"""
LISTING = """
[[listings]]
name = "{name}"
wire_protocol = "{wire_protocol}"
mount = "/{name}"
modes = {modes}
poll_after_ms = 100
[listings.backend]
type = "python"
target = "agent:run"
[[listings.credentials]]
key_id = "{key_id}"
request_secret = "env:SECRET"
"""
BOTH = ("conversation_turn", "task")
LISTINGS = (
    ("v2", "finch_v2", "finch.agenton.7a0e7e0c-3c0e-4f43-9d39-0d6c3a2f1b10", BOTH),
    ("v0", "agenton_v0", "eav_0123456789abcdef", BOTH),
    ("talks", "finch_v2", "finch.agenton.7a0e7e0c-3c0e-4f43-9d39-0d6c3a2f1b11", BOTH[:1]),
    ("works", "finch_v2", "finch.agenton.7a0e7e0c-3c0e-4f43-9d39-0d6c3a2f1b12", BOTH[1:]),
)
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Gateway:
    """A running gateway's folder and address."""

    folder: Path
    base_url: str

    def say(self, *arguments: str, stdin: str = "", listing: str = "v2", **variables: str) -> Done:
        named = ("--listing", listing) if listing else ()
        done = subprocess.run(
            [*COMMAND, "say", *named, *arguments],
            input=stdin,
            cwd=self.folder,
            env=process_environment(variables),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done


def write(folder: Path, port: int) -> None:
    (folder / "agent.py").write_text(AGENT)
    (folder / ".env").write_text(f"SECRET={'A' * 43}\n")
    listings = (
        LISTING.format(name=name, wire_protocol=wire, key_id=key_id, modes=list(modes)).replace("'", '"')
        for name, wire, key_id, modes in LISTINGS
    )
    (folder / "finch.toml").write_text(CONFIG.format(port=port) + "".join(listings))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway on the very port that its configuration names."""
    folder = tmp_path_factory.mktemp("say")
    with closing(socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    write(folder, port)
    log = folder / "serve.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*COMMAND, "serve"],
            cwd=folder,
            env=process_environment({}),
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    with process:
        try:
            assert process.stdout is not None
            # Printed once it listens.
            assert process.stdout.readline().startswith(b"finch-gateway "), log.read_text()
            yield Gateway(folder, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


@pytest.mark.parametrize("listing", ["v2", "v0"])
@pytest.mark.parametrize("mode", [(), ("--task",)], ids=["turn", "task"])
def test_the_answer_alone_goes_to_the_standard_output(gateway: Gateway, listing: str, mode: tuple[str, ...]) -> None:
    done = gateway.say("Good morning.", *mode, listing=listing)
    assert (done.returncode, done.stdout) == (0, "You wrote: Good morning.\n"), done.stderr
    assert ("completed" in done.stderr) is bool(mode)


def test_json_is_laid_out(gateway: Gateway) -> None:
    assert gateway.say("json please").stdout == '{\n  "größe": [\n    1\n  ]\n}\nand a text\n'


@pytest.mark.parametrize("mode", [(), ("--task",)], ids=["turn", "task"])
def test_a_failure_is_told_and_steers_no_terminal(gateway: Gateway, mode: tuple[str, ...]) -> None:
    done = gateway.say("fail please", *mode)
    assert (done.returncode, done.stdout) == (1, "failed: closed_today: Come back �[31m tomorrow.\n")


def test_a_deadline_that_passes_is_a_failure(gateway: Gateway) -> None:
    turn = gateway.say("sleep", "--deadline", "1")
    assert (turn.returncode, "deadline_exceeded" in turn.stdout) == (1, True)
    task = gateway.say("sleep", "--deadline", "1", "--task")
    assert (task.returncode, task.stdout) == (1, "expired\n")


@pytest.mark.parametrize(("mode", "messages"), [((), 5), (("--task",), 0)], ids=["turn", "task"])
def test_questions_are_answered_by_the_lines_that_follow(
    gateway: Gateway, mode: tuple[str, ...], messages: int
) -> None:
    done = gateway.say("a study", *mode, stdin="spring\n\nlarge\nnever read\n")
    assert (done.returncode, done.stdout) == (0, f"Study of spring, large, after {messages} messages.\n"), done.stderr
    asked = [line for line in done.stderr.splitlines() if line[0] in "?>"]
    assert asked == ["? Which period?", "> spring", "? Which size?", "> large"]


def test_a_task_shows_its_states_as_they_come(gateway: Gateway) -> None:
    shown = gateway.say("a study", "--task", stdin="spring\nlarge\n").stderr
    for words in (" s  working         40 % Reading\n", " s  input_required\n", " s  completed\n"):
        assert words in shown


@pytest.mark.parametrize("mode", [(), ("--task",)], ids=["turn", "task"])
def test_a_question_without_an_answer_could_not_be_done(gateway: Gateway, mode: tuple[str, ...]) -> None:
    done = gateway.say("a study", *mode, stdin="spring\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("finch-gateway: the agent asks, and the standard input holds no answer\n")
    assert ("to end it: finch-gateway tasks cancel task_" in done.stderr) is bool(mode)


@pytest.mark.parametrize("mode", [(), ("--task",)], ids=["turn", "task"])
def test_a_person_at_a_terminal_is_asked(gateway: Gateway, mode: tuple[str, ...]) -> None:
    shown, status = at_a_terminal(gateway, ["a study", *mode], [b"spring\n", b"large\n"])
    assert status == 0, shown
    assert "? Which period?" in shown
    assert "Study of spring, large" in shown


def test_a_person_who_leaves_is_told_that_the_task_goes_on(gateway: Gateway) -> None:
    shown, status = at_a_terminal(gateway, ["a study", "--task"], [None])
    assert status == 1
    assert "The task goes on; to end it: finch-gateway tasks cancel task_" in shown
    assert shown.rstrip().endswith("\nfinch-gateway: aborted")


def at_a_terminal(gateway: Gateway, arguments: list[str], typed: list[bytes | None]) -> tuple[str, int]:
    """Run `say` on a terminal, type the next text at each prompt (None: interrupt); return what was shown, and how
    it ended.
    """
    ours, theirs = pty.openpty()
    command = [*COMMAND, "say", "--listing", "v2", *arguments]
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    shown = b""
    with subprocess.Popen(command, cwd=gateway.folder, env=process_environment({}), **ends) as process:
        os.close(theirs)
        while chunk := read_terminal(ours):
            shown += chunk
            if typed and shown.endswith(b"\n> "):
                answer = typed.pop(0)
                process.send_signal(signal.SIGINT) if answer is None else os.write(ours, answer)
        os.close(ours)
    return shown.decode().replace("\r", ""), process.returncode


@pytest.mark.parametrize(
    ("arguments", "listing", "said"),
    [
        (["hello"], "", "--listing: the configuration has several listings, name one: v2, v0, talks, works"),
        (["hello"], "none", "--listing: the configuration has no listing of that name; it has: v2, v0, talks, works"),
        (["hello", "--task"], "talks", "takes no such work, its modes are conversation_turn; leave out --task"),
        (["hello"], "works", "takes no such work, its modes are task; add --task"),
        (["hello", "--base-url", "ftp://example"], "v2", "--base-url: a base URL is http:// or https://"),
        (["hello", "--base-url", "http://[::1"], "v2", "--base-url: is malformed"),
        (["x" * 10_001], "v2", "refused with 422 envelope_invalid: "),
    ],
)
def test_what_cannot_be_sent_is_one_line(gateway: Gateway, arguments: list[str], listing: str, said: str) -> None:
    done = gateway.say(*arguments, listing=listing)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("finch-gateway: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_base_url_with_the_mount_is_told_apart(gateway: Gateway) -> None:
    done = gateway.say("hello", "--base-url", f"{gateway.base_url}/v2")
    assert done.returncode == 2
    assert "refused with 404 not_found: There is no such endpoint. A base URL ends before the mount." in done.stderr


def test_a_gateway_with_another_secret_is_not_believed(gateway: Gateway) -> None:
    done = gateway.say("hello", SECRET="B" * 42 + "A")
    assert (done.returncode, done.stdout) == (2, "")
    assert "it runs with another secret, or is another program" in done.stderr


def test_where_nothing_listens_one_line_says_what_to_do(tmp_path: Path, run_command: Callable[..., Done]) -> None:
    with closing(socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    write(tmp_path, port)
    done = run_command("say", "hello", "--listing", "v2")
    assert done.returncode == 2
    assert done.stderr == (
        f"finch-gateway: http://127.0.0.1:{port}: no connection: Connection refused; "
        "start the gateway with `finch-gateway serve`, or name another with --base-url\n"
    )
    write(tmp_path, 0)
    done = run_command("say", "hello", "--listing", "v2")
    assert (done.returncode, "name the running gateway with --base-url" in done.stderr) == (2, True)


def test_signs_that_steer_a_terminal_are_replaced() -> None:
    assert plain("a\tb\r\nc \x1b[2J \x9b \r \x00 \u202e \ud800") == "a\tb\nc �[2J � � � � �"
    said = "größe 大　小 1\u00a0000 👩\u200d💻"
    assert plain(said) == said
