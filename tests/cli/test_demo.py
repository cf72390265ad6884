"""`demo` runs anywhere, tells the truth and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from finch_gateway.cli.demo.scenes import SCENES

PACKAGE = Path(__file__).parents[2] / "finch_gateway"
COMMAND = [sys.executable, "-m", "finch_gateway.cli", "demo"]
LAST_OF_TURNS = "the same agent behind the other wire protocol"
SEEN_OF_TURNS = (
    *("POST /finch/v2/invoke", "X-Platform-Signature: v1=", "SHA-256 of the body", "signature verified"),
    *("input_required", "archive_closed", "agent_error", "auth_failed", "ivk_"),
)
SEEN_OF_TASKS = (
    *("polled: ", "40 % Comparing the markets", "Which market matters most?", 'answers "Norway": 202'),
    *("I am watching 0 prices.", "→ 500", "3 attempts, 1 body, 3 signatures"),
    *("kill -9", "the gateway is back", "attempt 2 began after page"),
)


def environ(folder: Path, **more: str) -> dict[str, str]:
    """Return variables under which only `folder` is used for temporary files."""
    (folder / "tmp").mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "PYTHONPATH")}
    return {**kept, "PYTHONPATH": str(PACKAGE.parent), "TMPDIR": str(folder / "tmp"), **more}


def demo(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMAND, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def test_every_scene_goes_as_it_must_and_nothing_is_left(tmp_path: Path) -> None:
    """Settings that are meant for another gateway reach none of it."""
    variables = environ(tmp_path, FINCH_GATEWAY_STORE__URL="redis://127.0.0.1:1/0", FINCH_GATEWAY_CONFIG="none.toml")
    done = demo(tmp_path, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(SCENES)} of {len(SCENES)} as they must be" in done.stdout
    for scene in SCENES:
        assert f"✓ {scene.title}" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    for words in (*SEEN_OF_TURNS, *SEEN_OF_TASKS):
        assert words in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


def test_the_package_alone_is_enough(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "site" / "finch_gateway", ignore=shutil.ignore_patterns("__pycache__"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    told = stopped_at(elsewhere, environ(tmp_path, PYTHONPATH=str(tmp_path / "site")), LAST_OF_TURNS)
    assert "not as it must be" not in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("words", ["A real gateway", "The gateway listens", "polled: "])
def test_a_demo_told_to_stop_takes_its_gateway_with_it(tmp_path: Path, number: signal.Signals, words: str) -> None:
    stopped_at(tmp_path, environ(tmp_path), words, number)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not any(str(tmp_path).encode() in commandline for commandline in commandlines())


def test_a_demo_told_to_stop_takes_its_second_gateway_with_it(tmp_path: Path) -> None:
    stopped_at(tmp_path, environ(tmp_path), "the gateway is back")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not any(str(tmp_path).encode() in commandline for commandline in commandlines())


def stopped_at(folder: Path, variables: dict[str, str], words: str, number: int = signal.SIGTERM) -> str:
    """Run the demo until it says `words`, then tell it to stop; returns what it said until then."""
    told: list[str] = []
    process = subprocess.Popen(COMMAND, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(line)
            if words in line:
                break
        else:
            pytest.fail("".join(told))
        process.send_signal(number)
        process.stdout.read()
    assert process.returncode in (0, 1)
    return "".join(told)


def commandlines() -> list[bytes]:
    """Return the command line of every process of this machine."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((process / "cmdline").read_bytes())
    return found


@pytest.mark.parametrize(("more", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_it_says_no(tmp_path: Path, more: dict[str, str], is_coloured: bool) -> None:
    ours, theirs = pty.openpty()
    variables = environ(tmp_path, TERM="xterm", **more)
    process = subprocess.Popen(COMMAND, cwd=tmp_path, env=variables, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    told = bytearray()
    try:
        while LAST_OF_TURNS.encode() not in told and (chunk := read_terminal(ours)):
            told += chunk
        process.terminate()
        while chunk := read_terminal(ours):
            told += chunk
        assert process.wait(timeout=60) in (0, 1)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert LAST_OF_TURNS.encode() in told
    assert (b"\x1b[3" in told) is is_coloured


def read_terminal(descriptor: int) -> bytes:
    """Return what a terminal shows next; Linux reports its other end's closing as an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
