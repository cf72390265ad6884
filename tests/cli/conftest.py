"""The real command in a process of its own, and a gateway that runs for as long as a block does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "finch_gateway.cli"]

Done = subprocess.CompletedProcess[str]
RunCommand = Callable[..., Done]
Serving = Callable[..., AbstractContextManager[str]]


def process_environment(changes: dict[str, str]) -> dict[str, str]:
    """This process's variables without any of the gateway's own, plus `changes`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FINCH_", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def read_terminal(descriptor: int) -> bytes:
    """Return what a terminal shows next; Linux reports its other end's closing as an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


@pytest.fixture
def run_command(tmp_path: Path) -> RunCommand:
    """Runs `finch-gateway ARGUMENTS` in the test's folder to its end; never lets a traceback pass."""

    def run(*arguments: str, stdin: str = "", cwd: Path = tmp_path, **variables: str) -> Done:
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            cwd=cwd,
            env=process_environment(variables),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def serving() -> Serving:
    """Runs `finch-gateway serve` on a free port in a folder while the block runs; yields its base URL."""

    @contextmanager
    def serve(folder: Path, **variables: str) -> Iterator[str]:
        with subprocess.Popen(
            [*COMMAND, "serve"],
            cwd=folder,
            env=process_environment({"FINCH_GATEWAY_SERVER__PORT": "0", **variables}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            reader = threading.Thread(target=process.stderr.read)
            try:
                started = next(line for line in process.stderr if '"server.started"' in line)
                reader.start()
                yield f"http://127.0.0.1:{json.loads(started)['port']}"
            finally:
                process.terminate()
                process.wait(timeout=60)
                if reader.ident is not None:
                    reader.join(timeout=20)

    return serve
