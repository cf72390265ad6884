"""Whole lives of tasks: dispatched, run by a quick agent, their end told in a signed callback.

`python -m benchmarks.tasks [--count N] [--rounds N]`. On each store a gateway takes a batch of tasks at 32
connections; it is measured from the first dispatch to the last end's callback. Within each round the gateway's
delivery alone and one shared httpx client take turns with them, as in `benchmarks.callbacks`, against the same
receiver. Every callback is verified afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import callbacks, load, receiver, report, servers, traffic
from .goals import Spread

FSYNC = {"redis": "everysec", "sqlite": ""}
"""The stores, and what the Redis among them does about fsync."""

CONNECTIONS = 32
WARM_UP = 200
DELIVERIES = 4
"""How many callbacks delivery alone is measured with, per task of a batch."""

SLOWEST_PER_S = 20
START_S = 30.0


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of tasks on one gateway; `events` counts the callbacks that came, by status."""

    tasks: int
    seconds: float
    cpu_s: float
    events: dict[str, int]

    @property
    def rate(self) -> float:
        """Tasks a second, from the first dispatch to the last end."""
        return self.tasks / self.seconds

    @property
    def per_core_s(self) -> float:
        """Tasks per second of the gateway's CPU, all threads."""
        return self.tasks / self.cpu_s

    @property
    def events_per_task(self) -> float:
        """Callbacks that came per task; progress that a newer event overtakes in its first second is not sent."""
        return sum(self.events.values()) / self.tasks


@dataclass(frozen=True, slots=True)
class Lives:
    """One round: a batch on each store, and callbacks per second of CPU of the two that only deliver."""

    batches: dict[str, Batch]
    delivery: float
    httpx: float

    @property
    def delivery_ratio(self) -> float:
        return self.delivery / self.httpx


def run_rounds(count: int, rounds: int, say: Callable[[str], None]) -> list[Lives]:
    """Start a gateway per store and measure `rounds` batches of `count` tasks on each."""
    with receiver.running() as there, _gateways() as gateways:
        for gateway in gateways.values():
            _run_batch(gateway, there, min(WARM_UP, count))
        return [_run_round(gateways, there, count, say) for _ in range(rounds)]


@contextmanager
def _gateways() -> Iterator[dict[str, servers.Process]]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="finch-bench-")))
        gateways = {}
        for name, fsync in FSYNC.items():
            folder = root / name
            (folder / "store").mkdir(parents=True)
            store = stack.enter_context(servers.valkey(folder / "store", fsync)) if fsync else None
            gateways[name] = stack.enter_context(servers.gateway(folder, store, servers.LIVES))
        yield gateways


def _run_round(
    gateways: dict[str, servers.Process], there: receiver.Receiver, count: int, say: Callable[[str], None]
) -> Lives:
    batches = {}
    for name, gateway in gateways.items():
        batches[name] = batch = _run_batch(gateway, there, count)
        say(f"   lives  {name:<13} {batch.rate:>8,.0f}/s  {batch.per_core_s:,.0f} per second of CPU")
    lives = Lives(
        batches,
        callbacks.measure("gateway", count * DELIVERIES, 1, there.port),
        callbacks.measure("httpx", max(200, count // 10), 1, there.port),
    )
    say(f"callbacks alone: {lives.delivery:,.0f} per second of CPU, httpx {lives.httpx:,.0f}")
    return lives


def _run_batch(gateway: servers.Process, there: receiver.Receiver, count: int) -> Batch:
    dispatches = traffic.signed_tasks(count, there.port)
    there.expect(count)
    cpu_s, began = gateway.cpu_s(), time.perf_counter()
    outcome = load.drive(gateway.port, dispatches, CONNECTIONS)
    received = there.received(START_S + count / SLOWEST_PER_S)
    cpu_s = gateway.cpu_s() - cpu_s
    if outcome.statuses != {202: count}:
        raise RuntimeError(f"not every dispatch was accepted: {dict(outcome.statuses)}")
    if not all(traffic.is_good_answer(dispatches[index], answer) for index, answer in outcome.samples):
        raise RuntimeError("a receipt does not verify")
    return Batch(count, received.last_end_at - began, cpu_s, _events(dispatches, received.messages))


def _events(dispatches: Sequence[bytes], messages: Sequence[bytes]) -> dict[str, int]:
    """Return the callbacks by status; raise `RuntimeError` unless each is signed and each task has its one good end."""
    open_tasks = {json.loads(_body(dispatch))["invocation_id"] for dispatch in dispatches}
    told: dict[str, tuple[int, bytes]] = {}
    statuses: Counter[str] = Counter()
    for message in messages:
        body = _body(message)
        event = json.loads(body)
        task, sequence, status = event["invocation_id"], event["sequence"], event["status"]
        if not traffic.is_signed(message, traffic.CALLBACK_TARGET):
            raise RuntimeError("a callback does not verify")
        last_sequence, last_body = told.get(task, (0, b""))
        if body != last_body and (sequence <= last_sequence or task not in open_tasks):
            raise RuntimeError("a callback came out of order, after its task's end, or for nobody's task")
        told[task] = sequence, body
        statuses[status] += 1
        if status == "completed" and event["message"]["content"][0]["text"] == traffic.TEXT:
            open_tasks.discard(task)
    if open_tasks or len(told) != len(dispatches):
        raise RuntimeError(f"of {len(dispatches)} tasks {len(open_tasks)} have no good end: {dict(statuses)}")
    return dict(statuses)


def _body(message: bytes) -> bytes:
    return message.partition(b"\r\n\r\n")[2]


def text(rounds: Sequence[Lives]) -> str:
    """Return what the rounds came to, as a table."""
    titles = (
        "lives on",
        "tasks/s",
        "per core-s",
        "CPU us",
        "x httpx",
        "callbacks/task",
        "callbacks per core-s",
        "x httpx",
    )
    delivery, httpx = (Spread.of([getattr(one, name) for one in rounds]) for name in ("delivery", "httpx"))
    ratio = Spread.of([one.delivery_ratio for one in rounds])
    return "\n".join(
        (
            report.table([titles, *(_row(name, rounds) for name in rounds[0].batches)]),
            f"callbacks alone, one host, per core-s: gateway {delivery.median:,.0f}, one shared httpx client "
            f"{httpx.median:,.0f}: {report.spread(ratio)} x",
            *(_told(name, [one.batches[name] for one in rounds]) for name in rounds[0].batches),
        )
    )


def _row(name: str, rounds: Sequence[Lives]) -> tuple[str, ...]:
    batches = [one.batches[name] for one in rounds]
    per_core_s = Spread.of([batch.per_core_s for batch in batches]).median
    events = Spread.of([batch.events_per_task for batch in batches]).median
    told = Spread.of([batch.events_per_task * batch.per_core_s for batch in batches]).median
    return (
        name,
        f"{Spread.of([batch.rate for batch in batches]).median:,.0f}",
        f"{per_core_s:,.0f}",
        f"{1e6 / per_core_s:,.0f}",
        report.spread(Spread.of([one.batches[name].per_core_s / one.httpx for one in rounds])),
        f"{events:.2f}",
        f"{told:,.0f}",
        report.spread(
            Spread.of([one.batches[name].events_per_task * one.batches[name].per_core_s / one.httpx for one in rounds])
        ),
    )


def _told(name: str, batches: Sequence[Batch]) -> str:
    total: Counter[str] = Counter()
    for batch in batches:
        total.update(batch.events)
    tasks = sum(batch.tasks for batch in batches)
    return f"told per task on {name}: " + ", ".join(
        f"{status} {count / tasks:.2f}" for status, count in total.most_common()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--count", type=int, default=3_000, help="tasks of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    servers.pin_generator()
    print(report.machine(), flush=True)
    rounds = run_rounds(options.count, options.rounds, lambda line: print(line, file=sys.stderr, flush=True))
    print(f"\n{text(rounds)}")
    print(f"medians of {options.rounds} round(s) of {options.count:,} tasks; only ratios of one run count")
    return 0


if __name__ == "__main__":
    sys.exit(main())
