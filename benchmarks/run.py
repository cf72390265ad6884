"""The command: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from . import callbacks, goals, idle, plan, report, servers, tasks


@dataclass(frozen=True, slots=True)
class Depth:
    """How much is run."""

    rounds: int
    time_share: float
    repeats: int
    tasks: int


FULL = Depth(rounds=3, time_share=1.0, repeats=5, tasks=1500)
QUICK = Depth(rounds=1, time_share=0.05, repeats=1, tasks=60)
MORE = "longer runs of the last part: python -m benchmarks.callbacks, python -m benchmarks.tasks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 1 with `--strict` and a goal below its floor, else 0."""
    options = _parser().parse_args(arguments)
    depth = _depth(options)
    kinds = [kind for kind in plan.KINDS if kind.name in options.servers and _usable(kind)]
    scenarios = [
        replace(scenario, seconds=scenario.seconds * depth.time_share)
        for scenario in plan.SCENARIOS
        if scenario.name in options.scenarios
    ]
    servers.pin_generator()
    began = time.monotonic()
    print(report.machine())
    print(report.servers_legend([kind.name for kind in kinds]), flush=True)
    with plan.start(kinds) as running:
        idle_rss_mb = {name: server.idle_rss_mb for name, server in running.items()}
        rounds = [plan.run_round(running, scenarios, _say) for _ in range(depth.rounds)]
    lives = tasks.run_rounds(depth.tasks, depth.rounds, _say) if depth.tasks else []
    bare, core = idle.import_bare(depth.repeats), _import_core(depth)
    envelope = idle.envelope_cost(2000 * depth.repeats)
    results = [*goals.judge(rounds), *_lives_goals(lives), *_idle_goals(core, envelope, idle_rss_mb)]
    print(f"\n{report.goals(results)}\n\n{report.scenarios(rounds)}\n")
    if lives:
        print(f"{tasks.text(lives)}\n{MORE}\n")
    print(report.idle(bare, core, envelope, idle_rss_mb))
    print(f"\ntook {time.monotonic() - began:.0f} s; medians of {depth.rounds} round(s), only ratios of one run count")
    if options.json:
        document = {**report.document(results, rounds, idle_rss_mb), "lives": [asdict(one) for one in lives]}
        options.json.write_text(json.dumps(document, indent=1))
    return int(options.strict and any(result.verdict == "BELOW" for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [kind.name for kind in plan.KINDS]
    loads = [scenario.name for scenario in plan.SCENARIOS]
    parser.add_argument("--quick", action="store_true", help="a short smoke: it shows that it runs, not how fast")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is below its floor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--rounds", type=int, default=0, help="rounds to take the median of (default 3)")
    parser.add_argument("--tasks", type=int, metavar="N", help="tasks of a whole-life batch (default 1500; 0: none)")
    parser.add_argument("--servers", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--scenarios", nargs="+", choices=loads, default=loads, metavar="NAME", help=", ".join(loads))
    return parser


def _depth(options: argparse.Namespace) -> Depth:
    depth = QUICK if options.quick else FULL
    return replace(
        depth,
        rounds=options.rounds or depth.rounds,
        tasks=depth.tasks if options.tasks is None else options.tasks,
    )


def _usable(kind: plan.Kind) -> bool:
    if plan.installed(kind):
        return True
    print(f"{kind.name} is left out, it needs {' and '.join(kind.needs)}: pip install fastapi 'a2a-sdk[http-server]'")
    return False


def _import_core(depth: Depth) -> idle.Imported | None:
    return idle.import_core(depth.repeats) if importlib.util.find_spec("finch_gateway.app") else None


def _lives_goals(lives: Sequence[tasks.Lives]) -> list[goals.Result]:
    if not lives:
        return []
    name, ratios = "Callbacks per core over one shared httpx client", [one.delivery_ratio for one in lives]
    return [goals.apart(name, "x", callbacks.FLOOR, callbacks.STRETCH, *ratios, more=True)]


def _idle_goals(
    core: idle.Imported | None, envelope: idle.EnvelopeCost, idle_rss_mb: dict[str, float]
) -> list[goals.Result]:
    results = [goals.apart("Envelope validation", "us", 5, 2.5, envelope.validation_us)]
    if "redis" in idle_rss_mb:
        results.append(goals.apart("Idle RSS on Redis", "MB", 45, 36, idle_rss_mb["redis"]))
    if core is not None:
        results.append(
            goals.apart(f"Of {', '.join(idle.LATE_MODULES)} imported early", "", 0, 0, len(core.late_modules))
        )
    return results


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
