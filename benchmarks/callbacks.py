"""Signed callbacks per second of CPU: the gateway's delivery beside one shared httpx client at 64 in flight.

`python -m benchmarks.callbacks [--count N] [--rounds N]`. Both sign every callback and post it to the same
receiver, a bare one on another core; the outbox is kept in memory, so that delivery alone is measured. The goal
is judged with all callbacks going to one host, as they do in life; sixteen hosts are shown beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from io import StringIO

from finch_gateway.observe import Log
from finch_gateway.outbound.callbacks import CallbackDelivery, CallbackSettings, CallbackSigner
from finch_gateway.store import Delivered, Delivery, DeliveryEnd
from finch_gateway.wire.destinations import OutboundRules
from finch_gateway.wire.signing import SigningKey, answer_headers, issue_nonce

from . import receiver, servers, traffic

HOSTS = [f"127.0.0.{number}" for number in range(1, 17)]
"""Sixteen names of this machine; with four connections each they are as many in flight as the reference has."""

IN_FLIGHT = 64
KEY_ID = "finch.agenton.00000000-0000-4000-8000-000000000000"
KEY = SigningKey(b"k" * 32)
BODY = json.dumps({"protocol_version": "2.0", "event_type": "task.completed", "padding": "x" * 500}).encode()
TARGET = traffic.CALLBACK_TARGET.decode()
FLOOR, STRETCH = 8.0, 20.0
"""What one host's ratio is judged by."""


class MemoryOutbox:
    """An outbox of `count` events, spread evenly over the hosts."""

    def __init__(self, count: int, hosts: Sequence[str], port: int) -> None:
        self._waiting = {host: deque(range(number, count, len(hosts))) for number, host in enumerate(hosts)}
        self._left = count
        self._port = port
        self.failed = 0
        self.is_empty = asyncio.Event()

    async def due_hosts(self, now: float) -> Sequence[str]:
        return [host for host, waiting in self._waiting.items() if waiting]

    async def claim_events(self, host: str, op: str, claim_s: float, limit: int, now: float) -> Sequence[Delivery]:
        waiting = self._waiting[host]
        url = f"http://{host}:{self._port}{TARGET}"
        numbers = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        return [Delivery(f"t{n}", 1, op, "bench", KEY_ID, BODY, url, KEY_ID, host, 0, now) for n in numbers]

    async def settle_event(self, delivery: Delivery, end: DeliveryEnd, now: float) -> bool:
        self.failed += not isinstance(end, Delivered)
        self._left -= 1
        if not self._left:
            self.is_empty.set()
        return True


async def deliver(count: int, hosts: Sequence[str], port: int) -> int:
    """Empty an outbox as the gateway does; return how many callbacks failed."""
    outbox = MemoryOutbox(count, hosts, port)
    rules = OutboundRules(allow_hosts=tuple(HOSTS), allow_private=True)
    signer = CallbackSigner(KEY_ID, KEY)
    delivery = CallbackDelivery(outbox, lambda _: signer, rules, CallbackSettings(), Log("info", StringIO()))
    delivery.start()
    await outbox.is_empty.wait()
    await delivery.close()
    return outbox.failed


async def post(count: int, hosts: Sequence[str], port: int) -> int:
    """Post as many through one shared httpx client; return how many callbacks failed."""
    import httpx

    failed, numbers = 0, iter(range(count))

    async def work(client: httpx.AsyncClient) -> None:
        nonlocal failed
        for number in numbers:
            url = f"http://{hosts[number % len(hosts)]}:{port}{TARGET}"
            signed = answer_headers(KEY, KEY_ID, b"POST", TARGET.encode(), BODY, now=time.time(), nonce=issue_nonce())
            headers = [*signed, (b"content-type", b"application/json")]
            failed += (await client.post(url, headers=headers, content=BODY)).status_code != 204

    limits = httpx.Limits(max_connections=IN_FLIGHT, max_keepalive_connections=IN_FLIGHT)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
        await asyncio.gather(*(work(client) for _ in range(IN_FLIGHT)))
    return failed


def measure(contender: str, count: int, hosts: int, port: int) -> float:
    """Run a contender in a process of its own; return its callbacks per second of CPU."""
    command = [sys.executable, "-m", "benchmarks.callbacks", "--contender", contender]
    command += ["--count", str(count), "--hosts", str(hosts), "--port", str(port)]
    on_the_servers_core = partial(servers.pin, servers.SERVER_CORE)
    run = subprocess.run(command, cwd=servers.ROOT, check=True, stdout=subprocess.PIPE, preexec_fn=on_the_servers_core)
    return float(run.stdout)


def run_contender(contender: str, count: int, hosts: Sequence[str], port: int) -> None:
    """Print this process's callbacks per second of CPU."""
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    run = {"gateway": deliver, "httpx": post}[contender]
    asyncio.run(run(IN_FLIGHT * 4, hosts, port))  # imports are not what is measured
    began = time.process_time()
    failed = asyncio.run(run(count, hosts, port))
    if failed:
        sys.exit(f"{failed} of {count} callbacks failed")
    print(count / (time.process_time() - began))


def compare(count: int, hosts: int, rounds: int, port: int) -> float:
    """Measure both in turns, print their rates, and return the median of their ratios."""
    rates = [
        (measure("gateway", count, hosts, port), measure("httpx", max(200, count // 10), hosts, port))
        for _ in range(rounds)
    ]
    ratio = statistics.median(gateway / httpx for gateway, httpx in rates)
    gateway, httpx = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"{hosts:>5} host(s): gateway {gateway:8,.0f}/s   one shared httpx client {httpx:8,.0f}/s   {ratio:5.1f} x")
    return ratio


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit status: 1 when the ratio is below its floor."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.callbacks", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="callbacks of the gateway's run; httpx gets a tenth")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=["gateway", "httpx"], help=argparse.SUPPRESS)
    parser.add_argument("--hosts", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.contender:
        run_contender(options.contender, options.count, HOSTS[: options.hosts], options.port)
        return 0
    print("signed callbacks per second of CPU, medians")
    with receiver.running() as there:
        ratio = compare(options.count, 1, options.rounds, there.port)
        compare(options.count, len(HOSTS), options.rounds, there.port)
    verdict = "stretch" if ratio >= STRETCH else "met" if ratio >= FLOOR else "BELOW"
    print(f"one host: {ratio:.1f} x (floor {FLOOR:.0f}, stretch {STRETCH:.0f}): {verdict}")
    return int(verdict == "BELOW")


if __name__ == "__main__":
    sys.exit(main())
