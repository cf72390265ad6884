"""A gateway of one's own in a process of its own, on a free port, gone when its block is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

_T = TypeVar("_T")

_START_LIMIT_S = 60
_STOP_LIMIT_S = 30
_LINE_BYTES = 1024 * 1024
_OVERRIDES = {
    "FINCH_GATEWAY_SERVER__HOST": "127.0.0.1",
    # The line that says where it listens is an `info` line.
    "FINCH_GATEWAY_SERVER__LOG_LEVEL": "info",
}


class GatewayNotStarted(Exception):
    """The gateway ended, or stayed silent, before it listened; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that listens."""

    base_url: str
    pid: int


def run_orderly(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end; SIGTERM ends it like Ctrl-C, so that no gateway and no file outlives it."""

    async def cancellable() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise click.Abort from None


@asynccontextmanager
async def running_gateway(
    config_file: Path, environ: Mapping[str, str], port: int = 0
) -> AsyncIterator[RunningGateway]:
    """Run `serve` on this machine for as long as the block runs; raise `GatewayNotStarted`.

    Port 0 is a free one. A gateway that was killed meanwhile is gone already when its block is left.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "finch_gateway.cli", "serve", "--config", str(config_file)),
        env={**environ, **_OVERRIDES, "FINCH_GATEWAY_SERVER__PORT": str(port)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
    )
    log = process.stderr
    if log is None:
        raise AssertionError("the process was started with a pipe")
    draining: asyncio.Task[None] | None = None
    try:
        base_url = await _listening(log)
        draining = asyncio.create_task(_drain(log))
        yield RunningGateway(base_url, process.pid)
    finally:
        await _end(process)
        if draining is not None:
            await draining


async def _listening(log: asyncio.StreamReader) -> str:
    said = ""
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while line := await log.readline():
                text = line.decode("utf-8", "replace").strip()
                event = _event(text)
                if event.get("event") == "server.started":
                    return f"http://{event['host']}:{event['port']}"
                said = said or (text if not event else "")
    except TimeoutError as error:
        raise GatewayNotStarted(f"the gateway did not start within {_START_LIMIT_S} s") from error
    except ValueError as error:
        raise GatewayNotStarted("the gateway wrote a line that is too long before it listened") from error
    raise GatewayNotStarted(said.removeprefix("finch-gateway: ") or "the gateway ended before it listened")


def _event(text: str) -> dict[str, object]:
    try:
        event = json.loads(text)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


async def _drain(log: asyncio.StreamReader) -> None:
    # A pipe nobody reads fills up, and its writer then waits for ever.
    while await log.read(_LINE_BYTES):
        pass


async def _end(process: asyncio.subprocess.Process) -> None:
    _send(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        _send(process, signal.SIGKILL)
        await process.wait()


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    # Not process.terminate(): it would reap a child that has just ended before asyncio's own watcher does,
    # which then says so on standard error.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
