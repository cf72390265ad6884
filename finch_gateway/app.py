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
from dataclasses import replace
from pathlib import Path
from typing import Any

from .backend import Backend, BackendEnv
from .config import Config, StoreSettings
from .engine.agents import ListedAgent
from .engine.desk import Desk
from .engine.health import HealthBoard, Part
from .engine.sweeper import expire_forever, sweep_forever
from .engine.tasks import TaskEngine
from .engine.turns import TurnEngine
from .engine.worker import Worker
from .errors import ConfigError, Problem, StoreUnavailable
from .inbound.agenton import AgentOn
from .inbound.capture import Capture
from .inbound.edge import DoorLimits, Edge, Mount
from .listing import Listing
from .observe import Log
from .outbound.callbacks import CallbackDelivery, CallbackSettings, Schedule
from .outbound.keys import CallbackKeys
from .store import KnownRevision, Store
from .wire.destinations import OutboundRules

BACKENDS = {
    "python": "finch_gateway.backends.python:PythonBackend",
    "http": "finch_gateway.backends.http:HttpBackend",
}
"""Each backend's type and class, imported only where a listing uses it."""

DAY_S = 86_400.0
CALLBACK_GRACE_S = 3.0
"""How long attempts under way may take to end after a drain; what they leave is delivered later."""
CAPTURE_FOLDER = "captures"


def open_store(settings: StoreSettings) -> Store:
    """Return the store that a URL names, not opened yet."""
    if settings.sqlite_path is not None:
        from .stores.sqlite import SqliteStore

        return SqliteStore(settings.sqlite_path)
    from .stores.redis import RedisStore

    return RedisStore(settings.url, namespace=settings.namespace)


def backend_problems(config: Config, listings: Sequence[Listing]) -> list[Problem]:
    """Return what is wrong with the listings' backends, as far as it shows without starting one."""
    problems = [
        Problem(f"listings[{index}].backend.type", f"is no backend of this version; it has: {', '.join(BACKENDS)}")
        for index, settings in enumerate(config.listings)
        if settings.backend.type and settings.backend.type not in BACKENDS
    ]
    for listing in listings:
        if listing.backend_type in BACKENDS:
            backend = new_backend(listing.backend_type)
            try:
                _check_modes(listing, backend)
                backend.check(backend_env(config, listing))
            except ConfigError as error:
                problems += error.problems
    return placed(config, problems)


def placed(config: Config, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems with the lines of the file that their settings stand on."""
    return [replace(problem, line=problem.line or config.line(problem.setting)) for problem in problems]


def backend_env(config: Config, listing: Listing) -> BackendEnv:
    """Return what a listing's backend starts with."""
    return BackendEnv(
        listing=listing.name,
        setting=f"{listing.setting}.backend",
        options=listing.backend_options,
        folder=config.folder,
        max_jobs=listing.max_running_turns + listing.max_running_tasks,
        max_output_bytes=listing.max_output_bytes,
    )


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
        if problems := backend_problems(config, listings):
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
        retention_s = config.store.retention_days * DAY_S
        outbound = config.outbound
        rules = OutboundRules(outbound.allow_hosts, outbound.allow_private)
        self.callbacks = CallbackDelivery(
            self.store,
            CallbackKeys(listings, log).signer,
            rules,
            CallbackSettings(schedule=Schedule(whole_s=outbound.callback_schedule_s)),
            log,
            clock,
        )
        desk = Desk(self.store, clock, retention_s, self.callbacks.wake)
        self.worker = Worker(self.store, desk, self._agents, log, clock, config.store.lease_s)
        self.tasks = TaskEngine(
            self.store,
            desk,
            rules,
            log,
            clock,
            retention_s=retention_s,
            on_ready=self.worker.wake,
            on_ended=self.worker.end,
        )
        self._desk = desk
        self._started: list[Backend] = []
        self._loops: list[asyncio.Task[None]] = []
        self._edge = self._build_edge(captures)

    def _build_edge(self, captures: int) -> Edge:
        server = self._config.server
        self.health.add(Part("store", self._probe_store))
        mounts = []
        for agent in self._agents:
            part = f"agent:{agent.listing.name}"
            self.health.add(Part(part, _agent_probe(agent.backend)))
            self.health.need(agent.listing.name, "store", part)
            endpoints = AgentOn(agent, self.turns, self.tasks, self.store, self.health.is_ready, self._clock)
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
            await self._refuse_abandoned_tasks()
            for agent in self._agents:
                await agent.backend.start(backend_env(self._config, agent.listing))
                self._started.append(agent.backend)
        except ConfigError as error:
            await self._close_all()
            raise ConfigError(placed(self._config, error.problems)) from error
        except BaseException:
            await self._close_all()
            raise
        self.turns.holdings.start()
        self.worker.start()
        self.callbacks.start()
        loop = asyncio.get_running_loop()
        self._loops = [
            loop.create_task(sweep_forever(self.store, self._log, self._clock)),
            loop.create_task(expire_forever(self.store, self._desk, self._log, self._clock, self.worker.end)),
        ]

    async def drain(self) -> None:
        """Turn health bad, admit no new work, let what runs finish within the grace time (wire 3.1, 6.8)."""
        self._log.info("gateway.draining")
        self.health.draining = True
        self.tasks.draining = True
        grace_s = self._config.server.grace_s
        await asyncio.gather(self.turns.holdings.drain(grace_s), self.worker.drain(grace_s))
        # Last, so that the ends that the drain let happen are still told.
        await self.callbacks.drain(CALLBACK_GRACE_S)

    async def stop(self) -> None:
        """Stop everything that `start` began."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.worker.close()
        await self.callbacks.close()
        await self.turns.holdings.close()
        await self._close_all()

    async def _close_all(self) -> None:
        for backend in self._started:
            await backend.close()
        await self.store.close()

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

    async def _refuse_abandoned_tasks(self) -> None:
        """A revision that open tasks were dispatched under stays in the file until they have ended (wire 1.12)."""
        try:
            open_tasks = await self.store.open_tasks()
        except StoreUnavailable as error:
            raise ConfigError.one("store.url", f"the store does not answer: {error}") from error
        known = {key_id for listing in self._listings for key_id in listing.revisions}
        gone = sorted(set(open_tasks) - known)
        if gone:
            raise ConfigError(
                [
                    Problem(
                        "listings.credentials",
                        f"key id {key_id} is gone from the file but has {open_tasks[key_id]} open tasks; put it back, "
                        'with state = "retiring", until they have ended',
                    )
                    for key_id in gone
                ]
            )

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


def _check_modes(listing: Listing, backend: Backend) -> None:
    missing = [mode for mode in listing.modes if mode not in backend.supports.modes]
    if missing:
        raise ConfigError.one(
            f"{listing.setting}.modes",
            f'the {listing.backend_type} backend does not serve "{missing[0]}"; leave it out',
        )


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
