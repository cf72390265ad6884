"""What is run against what: the servers, the scenarios, and the rounds that interleave them."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import load, servers, traffic
from .servers import Process


@dataclass(frozen=True, slots=True)
class Kind:
    """A server under measurement.

    `fsync` is its Redis's `appendfsync`, empty where it has none; `needs` names modules beyond the development install.
    `module` is a reference's, empty for the gateway, which does `work`; `status` is what every answer must have.
    """

    name: str
    says: str
    module: str = ""
    fsync: str = ""
    signs: bool = True
    make: traffic.Maker = traffic.signed_turns
    needs: tuple[str, ...] = ()
    work: servers.Work = servers.TURNS
    status: int = 200


KINDS = (
    Kind("A", "bare Starlette route", "a_bare", signs=False),
    Kind("B", "A with verify and sign", "b_signed"),
    Kind("B-raw", "B on the gateway's front, a raw ASGI application", "b_raw"),
    Kind("C", "FastAPI, pydantic, redis-py, four round trips", "c_naive", "everysec", needs=("fastapi",)),
    Kind("D", "redis-py, two Lua calls", "d_lua", "everysec"),
    Kind("S", "SQLite FULL, commit per operation", "s_sqlite"),
    Kind(
        "G",
        "a2a-sdk echo, memory store, unsigned",
        "g_a2a",
        signs=False,
        make=traffic.a2a_messages,
        needs=("a2a", "sse_starlette"),
    ),
    Kind("redis", "gateway on Redis, appendfsync everysec", fsync="everysec"),
    Kind("redis-always", "gateway on Redis, appendfsync always", fsync="always"),
    Kind("sqlite", "gateway on SQLite FULL"),
    Kind("redis-tasks", "as redis, dispatches of tasks only", fsync="everysec", work=servers.INTAKE, status=202),
    Kind("sqlite-tasks", "as sqlite, dispatches of tasks only", work=servers.INTAKE, status=202),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load: closed over `connections`, or open at `rate` requests a second over at most as many."""

    name: str
    connections: int
    servers: tuple[str, ...]
    seconds: float
    rate: float | None = None


SCENARIOS = (
    Scenario("c=32", 32, tuple(kind.name for kind in KINDS), 2.5),
    Scenario("c=256", 256, ("A", "C", "D", "redis"), 2.0),
    Scenario("c=1", 1, ("A", "D", "redis", "sqlite"), 1.0),
    Scenario("1000/s", 256, ("A", "D", "redis", "sqlite"), 3.0, 1000),
    Scenario("3000/s", 256, ("A", "D", "redis"), 3.0, 3000),
)
MAX_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class Measure:
    """One server under one scenario in one round.

    `errors` counts answers of another status than the due one; `verified` the sampled answers that had it and, where
    the server signs, carried a good signature.
    """

    requests: int
    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    statuses: dict[int, int]
    errors: int
    sampled: int
    verified: int
    generator_cpu: float
    store_cpu_us: float = 0.0
    commands_per_write: float = 0.0


Round = dict[str, dict[str, Measure]]
"""Measures by scenario, then by server."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is up, what is sent to it, its Redis, and what it weighed before the first request."""

    kind: Kind
    make: traffic.Maker
    process: Process
    store: Process | None
    idle_rss_mb: float


def installed(kind: Kind) -> bool:
    """Whether what a server is built on is here."""
    return all(importlib.util.find_spec(name) for name in kind.needs)


@contextmanager
def start(kinds: Sequence[Kind]) -> Iterator[dict[str, Running]]:
    """Start every server, each with a store of its own; end them all on the way out."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="finch-bench-")))
        yield {kind.name: _start_one(kind, root, stack) for kind in kinds}


def _start_one(kind: Kind, root: Path, stack: ExitStack) -> Running:
    folder = root / kind.name
    (folder / "store").mkdir(parents=True)
    store = stack.enter_context(servers.valkey(folder / "store", kind.fsync)) if kind.fsync else None
    make = kind.make
    if kind.work is servers.INTAKE:
        make = partial(traffic.signed_tasks, callback_port=stack.enter_context(servers.silent_receiver()))
    process = stack.enter_context(_server(kind, folder, store))
    load.drive(process.port, make(1), 1)  # it is up once it has answered
    return Running(kind, make, process, store, process.rss_mb())


def _server(kind: Kind, folder: Path, store: Process | None) -> AbstractContextManager[Process]:
    if kind.module:
        return servers.reference(kind.module, folder, store)
    return servers.gateway(folder, store, kind.work)


def run_round(running: dict[str, Running], scenarios: Sequence[Scenario], say: Callable[[str], None]) -> Round:
    """Measure every scenario once, server after server."""
    result: Round = {}
    for scenario in scenarios:
        for name in scenario.servers:
            if name in running:
                measure = _measure(running[name], scenario)
                result.setdefault(scenario.name, {})[name] = measure
                say(f"{scenario.name:>8}  {name:<13} {measure.rate:>8,.0f}/s  p99 {measure.p99_ms:.2f} ms")
    return result


def _measure(server: Running, scenario: Scenario) -> Measure:
    requests = server.make(_count(server, scenario))
    before, store_before = server.process.cpu_s(), _store_state(server.store)
    outcome = load.drive(server.process.port, requests, scenario.connections, scenario.rate)
    cpu_s, store_after = server.process.cpu_s() - before, _store_state(server.store)
    store_cpu_s, commands, reads = (after - was for after, was in zip(store_after, store_before, strict=True))
    checked = [
        answer.startswith(b"HTTP/1.1 %d" % server.kind.status)
        and (not server.kind.signs or traffic.is_good_answer(requests[index], answer))
        for index, answer in outcome.samples
    ]
    return Measure(
        requests=len(requests),
        rate=len(requests) / outcome.seconds,
        p50_ms=outcome.percentile_ms(50),
        p99_ms=outcome.percentile_ms(99),
        cpu_us=cpu_s / len(requests) * 1e6,
        statuses=dict(outcome.statuses),
        errors=len(requests) - outcome.statuses[server.kind.status],
        sampled=len(checked),
        verified=sum(checked),
        generator_cpu=outcome.own_cpu,
        store_cpu_us=store_cpu_s / len(requests) * 1e6,
        commands_per_write=commands / reads if reads else 0.0,
    )


def _count(server: Running, scenario: Scenario) -> int:
    """Warm the server up and return how many requests fill the scenario's time."""
    if scenario.rate is not None:
        return int(scenario.rate * scenario.seconds)
    warm_up = server.make(max(2 * scenario.connections, int(100 * scenario.seconds)))
    outcome = load.drive(server.process.port, warm_up, scenario.connections)
    return max(50, min(MAX_REQUESTS, int(len(warm_up) / outcome.seconds * scenario.seconds)))


def _store_state(store: Process | None) -> tuple[float, int, int]:
    if store is None:
        return 0.0, 0, 0
    counts = servers.store_counts(store)
    return store.cpu_s(), counts.commands, counts.reads
