"""What every scene of the demo stands on: Finch's side, the gateway's process, and how an answer is read."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...emulator.exchange import Exchange
from ...emulator.platform import Platform
from ...emulator.receiver import Receiver
from ..gateway_process import RunningGateway, running_gateway

DEADLINE_S = 30


class Machine:
    """The demo's gateway: one process, which a scene may kill and start again at the same address."""

    def __init__(self, config_file: Path, environ: Mapping[str, str]) -> None:
        self._config_file = config_file
        self._environ = environ
        self._life = AsyncExitStack()
        self._gateway: RunningGateway | None = None

    @property
    def base_url(self) -> str:
        return self._running.base_url

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> RunningGateway:
        if self._gateway is None:
            raise AssertionError("the gateway was started before a scene plays")
        return self._gateway

    async def start(self) -> None:
        """Start the gateway, again where it was before; raise `GatewayNotStarted`."""
        port = urlsplit(self._gateway.base_url).port or 0 if self._gateway else 0
        self._gateway = await self._life.enter_async_context(running_gateway(self._config_file, self._environ, port))

    async def kill(self) -> None:
        """Take the process away without a warning."""
        os.kill(self.pid, signal.SIGKILL)
        await self.stop()

    async def stop(self) -> None:
        """End the process, if there is one."""
        await self._life.aclose()


@dataclass(frozen=True, slots=True)
class Stage:
    """Finch's side towards the demo's two listings, its receiver for callbacks, and the gateway itself."""

    finch_v2: Platform
    agenton_v0: Platform
    receiver: Receiver
    machine: Machine


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a scene went as it must, and the one sentence about it."""

    ok: bool
    said: str


@dataclass(frozen=True, slots=True)
class Scene:
    """A title, what is about to happen, and the play itself."""

    title: str
    story: str
    play: Callable[[Stage], Awaitable[Verdict]]


def is_proven(exchange: Exchange, status: int) -> bool:
    """Say whether an answer is the listing's own and has this status."""
    return exchange.proven and exchange.answer.status == status


def json_of(exchange: Exchange) -> dict[str, Any]:
    """Return the object that an answer is, or an empty one."""
    try:
        value = json.loads(exchange.answer.body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def text_of(document: Mapping[str, Any]) -> str:
    """Return the text of a reply's or an event's message."""
    parts = document.get("message", {}).get("content", [])
    return "".join(part.get("text", "") for part in parts)
