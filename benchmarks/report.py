"""Prints what was measured: goals and ratios first, raw figures for orientation."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version

from . import servers
from .goals import Result, Spread
from .idle import EnvelopeCost, Imported
from .plan import KINDS, SCENARIOS, Measure, Round


def machine() -> str:
    """Return one line about where this ran."""
    pinned = (
        f"server on core {servers.SERVER_CORE}, generator and stores on core {servers.LOAD_CORE}"
        if servers.SERVER_CORE is not None
        else "one core: server, stores and generator share it"
    )
    packages = ", ".join(f"{name} {version(name)}" for name in ("uvicorn", "starlette", "redis"))
    return f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores: {pinned}"


def goals(results: Sequence[Result]) -> str:
    """Return the table of goals."""
    rows = [("goal", "measured (min - max)", "floor", "stretch", "")]
    for result in results:
        goal, sign = result.goal, ">=" if result.goal.more else "<="
        reached = spread(result.reached) if result.reached else "-"
        rows.append(
            (f"{goal.name} {goal.unit}", reached, f"{sign} {goal.floor:g}", f"{goal.stretch:g}", result.verdict)
        )
    return table(rows)


def scenarios(rounds: Sequence[Round]) -> str:
    """Return one table per scenario: every server against A of the same round."""
    parts = []
    for scenario in SCENARIOS:
        by_server = [one.get(scenario.name, {}) for one in rounds]
        names = [name for name in scenario.servers if all(name in one for one in by_server)]
        if names:
            parts.append(f"{scenario.name}\n" + table([_TITLES, *(_row(name, by_server) for name in names)]))
    return "\n\n".join(parts)


_TITLES = ("server", "x A", "rate/s", "p50 ms", "p99 ms", "CPU us", "store us", "generator", "answers", "verified")


def _row(name: str, by_server: Sequence[dict[str, Measure]]) -> tuple[str, ...]:
    mine = [one[name] for one in by_server]

    def median(pick: Callable[[Measure], float]) -> float:
        return Spread.of([pick(measure) for measure in mine]).median

    over_a = Spread.of([one[name].rate / one["A"].rate for one in by_server]) if "A" in by_server[0] else None
    statuses: Counter[int] = Counter()
    for measure in mine:
        statuses.update(measure.statuses)
    total = sum(statuses.values())
    return (
        name,
        spread(over_a) if over_a else "-",
        f"{median(lambda m: m.rate):,.0f}",
        f"{median(lambda m: m.p50_ms):.2f}",
        f"{median(lambda m: m.p99_ms):.2f}",
        f"{median(lambda m: m.cpu_us):.0f}",
        f"{median(lambda m: m.store_cpu_us):.0f}" if any(m.store_cpu_us for m in mine) else "-",
        f"{median(lambda m: m.generator_cpu):.0%}",
        " ".join(f"{status or 'unanswered'} {count / total:.2%}" for status, count in sorted(statuses.items())),
        f"{sum(m.verified for m in mine)}/{sum(m.sampled for m in mine)}",
    )


def idle(bare: Imported, core: Imported | None, envelope: EnvelopeCost, idle_rss_mb: dict[str, float]) -> str:
    """Return what was measured without load."""
    rss = ", ".join(f"{name} {mb:.1f}" for name, mb in idle_rss_mb.items())
    lines = [
        f"idle RSS in MB: {rss}",
        f"import: bare Starlette and uvicorn {bare.seconds * 1000:.0f} ms and {bare.rss_mb:.1f} MB",
    ]
    if core is not None:
        late = ", ".join(core.late_modules) or "none"
        lines.append(
            f"import: gateway {core.seconds * 1000:.0f} ms and {core.rss_mb:.1f} MB; imported too early: {late}"
        )
    lines.append(
        f"read_dispatch on 1.1 KB: {envelope.whole_us:.1f} us = JSON {envelope.json_us:.1f} + input digest"
        f" {envelope.digest_us:.1f} + validation {envelope.validation_us:.1f}"
    )
    return "\n".join(lines)


def servers_legend(names: Sequence[str]) -> str:
    """Return what each server's name stands for."""
    return "\n".join(f"  {kind.name:<13} {kind.says}" for kind in KINDS if kind.name in names)


def document(results: Sequence[Result], rounds: Sequence[Round], idle_rss_mb: dict[str, float]) -> dict[str, object]:
    """Return everything as JSON values."""
    return {
        "machine": machine(),
        "goals": [
            {
                "goal": result.goal.name,
                "unit": result.goal.unit,
                "floor": result.goal.floor,
                "stretch": result.goal.stretch,
                "reached": asdict(result.reached) if result.reached else None,
                "verdict": result.verdict,
            }
            for result in results
        ],
        "rounds": [
            {scenario: {name: asdict(measure) for name, measure in by.items()} for scenario, by in one.items()}
            for one in rounds
        ],
        "idle_rss_mb": idle_rss_mb,
    }


def spread(values: Spread) -> str:
    """Return a median with its least and greatest."""
    digits = 2 if values.greatest < 100 else 0
    if values.least == values.greatest:
        return f"{values.median:.{digits}f}"
    return f"{values.median:.{digits}f} ({values.least:.{digits}f} - {values.greatest:.{digits}f})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
