"""The composition root: builds every object, names the concrete backends and stores, owns start and stop.

A request passes, outermost first: `inbound.edge` → `inbound.agenton` → `engine.turns` → `backends.*`, and back.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from .backend import Backend, BackendEnv
from .config import Config, StoreSettings
from .engine.agents import ListedAgent
from .engine.health import HealthBoard, Part
from .engine.sweeper import sweep_forever
from .engine.turns import TurnEngine
from .errors import ConfigError, Problem, StoreUnavailable
from .inbound.agenton import AgentOn
from .inbound.capture import Capture
from .inbound.edge import DoorLimits, Edge, Mount
from .listing import Listing
from .observe import Log
from .store import KnownRevision, Store

BACKENDS = {
    "python": "finch_gateway.backends.python:PythonBackend",
    "http": "finch_gateway.backends.http:HttpBackend",
}
"""Each backend's type and class, imported only where a listing uses it."""

DAY_S = 86_400.0
CAPTURE_FOLDER = "captures"


def open_store(settings: StoreSettings) -> Store:
    """Return the store that a URL names, not opened yet."""
    if settings.sqlite_path is not None:
        from .stores.sqlite import SqliteStore

        return SqliteStore(settings.sqlite_path)
    from .stores.redis import RedisStore

    return RedisStore(settings.url, namespace=settings.namespace)


def unknown_backends(config: Config) -> list[Problem]:
    """Return a problem for each listing whose backend type this version does not have."""
    return [
        Problem(
            f"listings[{index}].backend.type",
            f"is no backend of this version; it has: {', '.join(BACKENDS)}",
            config.line(f"listings[{index}].backend.type"),
        )
        for index, listing in enumerate(config.listings)
        if listing.backend.type and listing.backend.type not in BACKENDS
    ]


def new_backend(backend_type: str) -> Backend:
    """Return a backend of a configured type, not started yet."""
    module, _, name = BACKENDS[backend_type].partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)()
    return backend


class Gateway:
    """The whole gateway as one ASGI application; `start` before the first request, `drain` and `stop` at the end."""

    def __init__(
        self,
        config: Config,
        listings: Sequence[Listing],
        log: Log,
        *,
        captures: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if problems := unknown_backends(config):
            raise ConfigError(problems)
        self._config = config
        self._listings = listings
        self._log = log
        self._clock = clock
        self.store = open_store(config.store)
        self.health = HealthBoard(log)
        self.turns = TurnEngine(
            self.store,
            log,
            clock,
            lease_s=config.store.lease_s,
            retention_s=config.store.retention_days * DAY_S,
        )
        self._agents = [ListedAgent(listing, new_backend(listing.backend_type)) for listing in listings]
        self._started: list[Backend] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._edge = self._build_edge(captures)

    def _build_edge(self, captures: int) -> Edge:
        server = self._config.server
        self.health.add(Part("store", self._probe_store))
        mounts = []
        for agent in self._agents:
            part = f"agent:{agent.listing.name}"
            self.health.add(Part(part, _agent_probe(agent.backend)))
            self.health.need(agent.listing.name, "store", part)
            endpoints = AgentOn(agent, self.turns, self.store, self.health.is_ready, self._clock)
            mounts.append(Mount(agent.listing, endpoints))
        capture = None
        if captures:
            capture = Capture(self._config.folder / CAPTURE_FOLDER, captures, self._log, self._clock)
        return Edge(
            mounts,
            self.store,
            DoorLimits(server.max_body_bytes, server.body_timeout_s, server.max_unverified_bytes),
            self._log,
            clock=self._clock,
            public_prefix=server.public_prefix,
            capture=capture,
        )

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] == "http":
            await self._edge(scope, receive, send)

    async def start(self) -> None:
        """Open the store, check the credentials against it, start every agent; raise `ConfigError`."""
        adopt_environment(self._config)
        await self.store.open()
        try:
            await self._register_revisions()
            for agent in self._agents:
                await agent.backend.start(self._backend_env(agent))
                self._started.append(agent.backend)
        except BaseException:
            await self._close_all()
            raise
        self.turns.holdings.start()
        self._sweeper = asyncio.get_running_loop().create_task(sweep_forever(self.store, self._log, self._clock))

    async def drain(self) -> None:
        """Turn health bad, admit no new turn, let running ones finish within the grace time (wire 3.1, 6.8)."""
        self._log.info("gateway.draining")
        self.health.draining = True
        await self.turns.holdings.drain(self._config.server.grace_s)

    async def stop(self) -> None:
        """Stop everything that `start` began."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.turns.holdings.close()
        await self._close_all()

    async def _close_all(self) -> None:
        for backend in self._started:
            await backend.close()
        await self.store.close()

    def _backend_env(self, agent: ListedAgent) -> BackendEnv:
        listing = agent.listing
        return BackendEnv(
            listing=listing.name,
            setting=f"{listing.setting}.backend",
            options=listing.backend_options,
            folder=self._config.folder,
            max_jobs=listing.max_running_turns,
            max_output_bytes=listing.max_output_bytes,
        )

    async def _register_revisions(self) -> None:
        now = self._clock()
        revisions = [
            KnownRevision(revision.key_id, listing.name, revision.fingerprint, now)
            for listing in self._listings
            for revision in listing.revisions.values()
        ]
        try:
            strangers = await self.store.register_revisions(revisions)
        except StoreUnavailable as error:
            raise ConfigError.one("store.url", f"the store does not answer: {error}") from error
        if strangers:
            raise ConfigError([self._stranger(known) for known in strangers])

    def _stranger(self, known: KnownRevision) -> Problem:
        """Say that a key id is known under another secret or listing (wire 1.12)."""
        listing = next(listing for listing in self._listings if known.key_id in listing.revisions)
        setting = f"{listing.setting}.credentials"
        what = "another secret" if known.listing == listing.name else f"listing {known.listing!r}"
        return Problem(
            setting,
            f"the store knows key id {known.key_id} with {what}; a rotation takes a new key id. If the first entry "
            f"was a mistake: finch-gateway credentials forget {known.key_id}",
            self._config.line(setting),
        )

    async def _probe_store(self) -> str:
        try:
            await self.store.probe()
        except StoreUnavailable as error:
            return f"store: {error}"
        return ""


def _agent_probe(backend: Backend) -> Callable[[], Awaitable[str]]:
    async def probe() -> str:
        health = await backend.health()
        return "" if health.ready else (health.detail or "the agent says it is not ready")

    return probe


def adopt_environment(config: Config) -> None:
    """Give this process what the agents expect: the file's folder first on the import path, `env_file`'s variables."""
    folder = str(Path(config.folder))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for name, value in config.variables.items():
        os.environ.setdefault(name, value)
