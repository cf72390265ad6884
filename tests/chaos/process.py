"""The parent's side of a gateway process with gates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from support.finch import Finch
from support.gateway import GatewayProcess, Provider

TESTS = Path(__file__).resolve().parents[1]
REACH_LIMIT_S = 60.0


@dataclass(slots=True)
class Life:
    """One life of the gateway: from its start to the signal that ends it."""

    gateway: GatewayProcess
    finch: Finch
    _announced: asyncio.StreamReader
    _transport: asyncio.BaseTransport
    _commands: int

    @classmethod
    async def begin(cls, provider: Provider, *, armed: str = "", bug: str = "", retention_s: float = 0) -> Life:
        announce_out, announce_in = os.pipe()
        commands_out, commands_in = os.pipe()
        orders = {
            "config": str(provider.folder / "finch.toml"),
            "announce": announce_in,
            "commands": commands_out,
            "armed": armed,
            "bug": bug,
            "retention_s": retention_s,
        }
        before = os.environ.get("PYTHONPATH", "")
        log_path = provider.folder / f"stderr-{uuid.uuid4().hex[:8]}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "chaos.child", json.dumps(orders)],
                cwd=provider.folder,
                env={**provider.environ(), "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), before)))},
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(announce_in, commands_out),
                start_new_session=True,
            )
        os.close(announce_in)
        os.close(commands_out)
        gateway = GatewayProcess(process, log_path)
        announced = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(announced), os.fdopen(announce_out, "rb")
        )
        life = cls(gateway, provider.finch(gateway), announced, transport, commands_in)
        try:
            started = await asyncio.to_thread(gateway.wait_for, "server.started")
        except BaseException:
            life.kill()
            raise
        gateway.port = int(started["port"])
        life.finch = provider.finch(gateway)
        return life

    async def reached(self, limit_s: float = REACH_LIMIT_S) -> None:
        """Return once the process waits at its armed point."""
        async with asyncio.timeout(limit_s):
            if not await self._announced.readline():
                raise AssertionError(f"the process ended by itself:\n{self.gateway.log_path.read_text()[-4000:]}")

    def arm(self, point: str) -> None:
        os.write(self._commands, f"arm {point}\n".encode())

    def go(self) -> None:
        """Let the process go on from the point where it waits."""
        os.write(self._commands, b"go\n")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.gateway.process.pid, number)

    def kill(self) -> None:
        """End it as a crash does, whatever it is doing."""
        self.gateway.kill()
        self._transport.close()
        with contextlib.suppress(OSError):
            os.close(self._commands)
            self._commands = -1
