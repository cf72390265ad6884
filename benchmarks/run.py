"""The command: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import goals, idle, plan, report, servers


@dataclass(frozen=True, slots=True)
class Depth:
    """How much is run."""

    rounds: int
    time_share: float
    repeats: int


FULL = Depth(rounds=3, time_share=1.0, repeats=5)
QUICK = Depth(rounds=1, time_share=0.05, repeats=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 1 with `--strict` and a goal below its floor, else 0."""
    options = _parser().parse_args(arguments)
    depth = replace(QUICK if options.quick else FULL, **({"rounds": options.rounds} if options.rounds else {}))
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
    bare, core = idle.import_bare(depth.repeats), _import_core(depth)
    envelope = idle.envelope_cost(2000 * depth.repeats)
    results = [*goals.judge(rounds), *_idle_goals(core, envelope, idle_rss_mb)]
    print(f"\n{report.goals(results)}\n\n{report.scenarios(rounds)}\n")
    print(report.idle(bare, core, envelope, idle_rss_mb))
    print(f"\ntook {time.monotonic() - began:.0f} s; medians of {depth.rounds} round(s), only ratios of one run count")
    if options.json:
        options.json.write_text(json.dumps(report.document(results, rounds, idle_rss_mb), indent=1))
    return int(options.strict and any(result.verdict == "BELOW" for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [kind.name for kind in plan.KINDS]
    loads = [scenario.name for scenario in plan.SCENARIOS]
    parser.add_argument("--quick", action="store_true", help="a short smoke: it shows that it runs, not how fast")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is below its floor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--rounds", type=int, default=0, help="rounds to take the median of (default 3)")
    parser.add_argument("--servers", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--scenarios", nargs="+", choices=loads, default=loads, metavar="NAME", help=", ".join(loads))
    return parser


def _usable(kind: plan.Kind) -> bool:
    if plan.installed(kind):
        return True
    print(f"{kind.name} is left out, it needs {' and '.join(kind.needs)}: pip install fastapi 'a2a-sdk[http-server]'")
    return False


def _import_core(depth: Depth) -> idle.Imported | None:
    return idle.import_core(depth.repeats) if importlib.util.find_spec("finch_gateway.app") else None


def _idle_goals(
    core: idle.Imported | None, envelope: idle.EnvelopeCost, idle_rss_mb: dict[str, float]
) -> list[goals.Result]:
    results = [goals.fixed("Envelope validation", "us", 5, 2.5, envelope.validation_us)]
    if "redis" in idle_rss_mb:
        results.append(goals.fixed("Idle RSS on Redis", "MB", 45, 36, idle_rss_mb["redis"]))
    if core is not None:
        results.append(
            goals.fixed(f"Of {', '.join(idle.LATE_MODULES)} imported early", "", 0, 0, len(core.late_modules))
        )
    return results


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
