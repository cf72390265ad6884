"""`demo` runs anywhere, tells the truth and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli.conftest import read_terminal

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


@dataclass(frozen=True)
class Long:
    """The two demos that take long, each in a folder of its own; they run beside the other tests."""

    whole_folder: Path
    whole: Future[subprocess.CompletedProcess[str]]
    stopped_folder: Path
    stopped: Future[str]


@pytest.fixture(scope="module", autouse=True)
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Long]:
    whole, stopped = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("stopped")
    # Settings that are meant for another gateway reach none of it.
    variables = environ(whole, FINCH_GATEWAY_STORE__URL="redis://127.0.0.1:1/0", FINCH_GATEWAY_CONFIG="none.toml")
    with ThreadPoolExecutor(2) as beside:
        yield Long(
            whole,
            beside.submit(demo, whole, variables),
            stopped,
            beside.submit(stopped_at, stopped, environ(stopped), "the gateway is back"),
        )


def demo(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMAND, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def test_the_package_alone_is_enough(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "site" / "finch_gateway", ignore=shutil.ignore_patterns("__pycache__"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    told = stopped_at(elsewhere, environ(tmp_path, PYTHONPATH=str(tmp_path / "site")), LAST_OF_TURNS)
    assert "not as it must be" not in told


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("A real gateway", signal.SIGTERM),
        ("The gateway listens", signal.SIGTERM),
        ("The gateway listens", signal.SIGINT),
        ("polled: ", signal.SIGINT),
    ],
)
def test_a_demo_told_to_stop_takes_its_gateway_with_it(tmp_path: Path, words: str, number: signal.Signals) -> None:
    stopped_at(tmp_path, environ(tmp_path), words, number)
    assert_nothing_left(tmp_path)


def assert_nothing_left(folder: Path) -> None:
    assert list((folder / "tmp").iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["tmp"]
    assert not any(str(folder).encode() in commandline for commandline in commandlines())


def stopped_at(folder: Path, variables: dict[str, str], words: str, number: int = signal.SIGTERM) -> str:
    """Run the demo until it says `words`, then tell it to stop; returns what it said until then."""
    told: list[str] = []
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(COMMAND, cwd=folder, env=variables, text=True, **ends)
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


def test_a_demo_told_to_stop_takes_its_second_gateway_with_it(long: Long) -> None:
    long.stopped.result()
    assert_nothing_left(long.stopped_folder)


def test_every_scene_goes_as_it_must_and_nothing_is_left(long: Long) -> None:
    done = long.whole.result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(SCENES)} of {len(SCENES)} as they must be" in done.stdout
    for scene in SCENES:
        assert f"✓ {scene.title}" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    for words in (*SEEN_OF_TURNS, *SEEN_OF_TASKS):
        assert words in done.stdout
    assert_nothing_left(long.whole_folder)


def test_what_the_demo_tells_is_aligned_and_fits_100_columns(long: Long) -> None:
    told = long.whole.result().stdout.splitlines()
    assert [line for line in told if len(line) > 100] == []
    titles = [f" {number:>2}  {scene.title}" for number, scene in enumerate(SCENES, 1)]
    assert [line for line in told if line in titles] == titles


def test_what_could_be_misread_is_explained(long: Long) -> None:
    told = " ".join(long.whole.result().stdout.split())
    run = re.search(
        r"Both attempts were answered by its run (\d+), and by that alone: a new turn, .* run (\d+)\.", told
    )
    assert run is not None
    assert int(run[2]) == int(run[1]) + 1
    assert re.search(r"401 answer's signature verified", told)
    assert re.search(r"#1, .*did not come: progress that Finch has not taken yet is overtaken", told)
    assert "and 1 more field " in told
