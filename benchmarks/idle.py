"""What is measured without load: memory, imports, and the envelope's cost per call."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from dataclasses import dataclass

from finch_gateway.wire.dispatch import read_dispatch
from finch_gateway.wire.documents import digest, read_object

from . import servers, traffic

_BARE = "import uvicorn, starlette.applications, starlette.requests, starlette.responses, starlette.routing"
_CORE = "import uvicorn, finch_gateway.app"
LATE_MODULES = ("redis", "httpx", "aiohttp")
"""What the core must not import before it is used."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What importing a program costs, in a process of its own."""

    seconds: float
    rss_mb: float
    late_modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EnvelopeCost:
    """Microseconds per call on one P1 body of 1.1 KB; `validation_us` is the whole less JSON and digest."""

    whole_us: float
    json_us: float
    digest_us: float

    @property
    def validation_us(self) -> float:
        """Form, types, ids, instants and the value that is built from them."""
        return self.whole_us - self.json_us - self.digest_us


def import_bare(repeats: int) -> Imported:
    """Import what a bare Starlette app under uvicorn needs."""
    return _import(_BARE, repeats)


def import_core(repeats: int) -> Imported:
    """Import the gateway up to its composition root."""
    return _import(_CORE, repeats)


def _import(statement: str, repeats: int) -> Imported:
    code = (
        "import json, sys, time\nstart = time.perf_counter()\n"
        f"{statement}\nseconds = time.perf_counter() - start\n"
        "rss = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS:'))\n"
        f"late = [name for name in {LATE_MODULES!r} if name in sys.modules]\n"
        "print(json.dumps([seconds, int(rss) / 1024, late]))"
    )
    command = [sys.executable, "-c", code]
    runs = []
    for _ in range(repeats):
        output = subprocess.run(command, cwd=servers.ROOT, check=True, stdout=subprocess.PIPE).stdout
        runs.append(json.loads(output))
    seconds, rss, late = zip(*runs, strict=True)
    return Imported(statistics.median(seconds), statistics.median(rss), tuple(late[0]))


def envelope_cost(calls: int) -> EnvelopeCost:
    """Time the reading of one dispatch; the best of five, as interruptions only ever add."""
    body = traffic.sample_body()
    envelope = read_object(body)
    identity = ["conversation_turn", envelope["input"], envelope.get("conversation"), "1", envelope["terms_hash"]]
    return EnvelopeCost(
        _best_us(lambda: read_dispatch(body, "finch_v2"), calls),
        _best_us(lambda: read_object(body), calls),
        _best_us(lambda: digest(identity), calls),
    )


def _best_us(call: Callable[[], object], calls: int) -> float:
    return min(timeit.repeat(call, number=calls, repeat=5)) / calls * 1e6
