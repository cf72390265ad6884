"""A real gateway process for tests, on a free port, ended by process id."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .finch import Finch

START_LIMIT_S = 60.0


@dataclass(slots=True)
class Provider:
    """A provider's folder: configuration, secrets in variables, an agent; and how Finch calls it."""

    folder: Path
    store_url: str = "sqlite:///finch.db"
    wire_protocol: str = "finch_v2"
    mount: str = "/finch/v2"
    key_id: str = field(default_factory=lambda: f"finch.agenton.{uuid.uuid4()}")
    secret: bytes = field(default_factory=lambda: os.urandom(32))
    server: Mapping[str, object] = field(default_factory=dict)
    store: Mapping[str, object] = field(default_factory=dict)
    listing: Mapping[str, object] = field(default_factory=dict)
    outbound: Mapping[str, object] = field(
        default_factory=lambda: {"allow_private": True, "allow_hosts": ["127.0.0.1"]}
    )
    backend: Mapping[str, object] = field(default_factory=lambda: {"type": "python", "target": "agent:run"})
    more: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def displayed_secret(self) -> str:
        return base64.urlsafe_b64encode(self.secret).rstrip(b"=").decode()

    def write(self, agent: str | None = None) -> Path:
        """Write the configuration and the agent; return the configuration's path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if agent is not None:
            (self.folder / "agent.py").write_text(agent)
        path = self.folder / "finch.toml"
        path.write_text(self.toml())
        return path

    def toml(self) -> str:
        server = {"port": 0, "log_level": "debug", **self.server}
        listing = {"name": "agent", "wire_protocol": self.wire_protocol, "mount": self.mount, **self.listing}
        return "\n".join(
            [
                "[server]",
                *_lines(server),
                "[store]",
                *_lines({"url": "env:STORE_URL", **self.store}),
                "[outbound]",
                *_lines(self.outbound),
                "[[listings]]",
                *_lines(listing),
                "[listings.backend]",
                *_lines(self.backend),
                "[[listings.credentials]]",
                *_lines({"key_id": self.key_id, "request_secret": "env:REQUEST_SECRET", "state": "current"}),
                self.more,
                "",
            ]
        )

    def environ(self) -> dict[str, str]:
        secret = self.displayed_secret if self.wire_protocol == "finch_v2" else "a v0 secret ü " + self.displayed_secret
        # Coverage and other measuring belong to the test process alone.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "FINCH_GATEWAY_"))}
        return {
            **kept,
            "REQUEST_SECRET": secret,
            "STORE_URL": self.store_url,
            "PYTHONUNBUFFERED": "1",
            **self.variables,
        }

    def finch(self, process: GatewayProcess) -> Finch:
        secret = self.secret
        if self.wire_protocol == "agenton_v0":
            secret = self.environ()["REQUEST_SECRET"].encode()
        return Finch("127.0.0.1", process.port, self.key_id, secret, self.mount, self.wire_protocol)

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[GatewayProcess]:
        """Run `finch-gateway serve` until the block ends."""
        process = GatewayProcess.start(self, *arguments)
        try:
            yield process
        finally:
            process.end()


@dataclass(slots=True)
class GatewayProcess:
    """A running `finch-gateway serve`; its standard error is kept in a file, as an operator would."""

    process: subprocess.Popen[bytes]
    log_path: Path
    port: int = 0

    @classmethod
    def start(cls, provider: Provider, *arguments: str) -> GatewayProcess:
        log_path = provider.folder / f"stderr-{uuid.uuid4().hex[:8]}.log"
        command = [sys.executable, "-m", "finch_gateway.cli", "serve", "--config", str(provider.folder / "finch.toml")]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=provider.folder,
                env=provider.environ(),
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        gateway = cls(process, log_path)
        try:
            gateway.port = int(gateway.wait_for("server.started")["port"])
        except BaseException:
            gateway.kill()
            raise
        return gateway

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the log's events; every line must be one JSON object."""
        lines = self.log_path.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if name in (None, event["event"])]

    def wait_for(self, name: str, limit_s: float = START_LIMIT_S) -> dict[str, Any]:
        """Return the first event of this name once it is there."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            text = self.log_path.read_text()
            if f'"event":"{name}"' in text:
                return self.events(name)[0]
            if self.process.poll() is not None:
                raise AssertionError(f"the gateway ended with {self.process.returncode}:\n{text}")
            time.sleep(0.02)
        raise AssertionError(f"no {name} within {limit_s} s:\n{self.log_path.read_text()}")

    def kill(self) -> None:
        """End it as a crash does, with everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Ask it to stop and return its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self.process.returncode


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{name} = {json.dumps(value)}" for name, value in table.items()]
