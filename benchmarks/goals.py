"""The goals: what is measured, its floor and its stretch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from .plan import Measure, Round

Verdict = Literal["stretch", "met", "BELOW", "not measured"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the greatest of the rounds."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal; `more` says that more is better. `measure` takes a round and raises `KeyError` where it lacks a part."""

    name: str
    unit: str
    floor: float
    stretch: float
    more: bool
    measure: Callable[[Round], float]


@dataclass(frozen=True, slots=True)
class Result:
    """A goal and what was reached."""

    goal: Goal
    reached: Spread | None

    @property
    def verdict(self) -> Verdict:
        """Whether the median reaches the stretch or the floor."""
        if self.reached is None:
            return "not measured"
        sign = 1 if self.goal.more else -1
        value = sign * self.reached.median
        if value >= sign * self.goal.stretch:
            return "stretch"
        return "met" if value >= sign * self.goal.floor else "BELOW"


def _ratio(scenario: str, over: str, under: str, pick: Callable[[Measure], float]) -> Callable[[Round], float]:
    return lambda rounds: pick(rounds[scenario][over]) / pick(rounds[scenario][under])


def _rate(measure: Measure) -> float:
    return measure.rate


def _p99(measure: Measure) -> float:
    return measure.p99_ms


def _cpu(measure: Measure) -> float:
    return measure.cpu_us


GOALS = (
    Goal("Redis, c=32: rate over A", "x", 0.45, 0.60, True, _ratio("c=32", "redis", "A", _rate)),
    Goal("Redis, c=32: CPU per turn over A", "x", 2.2, 1.5, False, _ratio("c=32", "redis", "A", _cpu)),
    Goal("Redis, c=32: rate over B, same front", "x", 0.70, 0.80, True, _ratio("c=32", "redis", "B-raw", _rate)),
    Goal("Redis, c=32: rate over C", "x", 4, 5, True, _ratio("c=32", "redis", "C", _rate)),
    Goal("Redis, c=32: rate over D", "x", 1.9, 2.5, True, _ratio("c=32", "redis", "D", _rate)),
    Goal("Redis, c=32: rate over G", "x", 18, 28, True, _ratio("c=32", "redis", "G", _rate)),
    Goal("Redis, c=32: G's CPU per turn over ours", "x", 18, 28, True, _ratio("c=32", "G", "redis", _cpu)),
    Goal("Redis, c=256: answers other than 200", "", 0, 0, False, lambda r: r["c=256"]["redis"].errors),
    Goal("Redis, c=256: rate over A", "x", 0.45, 0.55, True, _ratio("c=256", "redis", "A", _rate)),
    Goal("Redis, c=256: p99 over A's", "x", 1.7, 1.4, False, _ratio("c=256", "redis", "A", _p99)),
    Goal(
        "Redis, 1000/s: p99 above A's",
        "ms",
        1.8,
        1.0,
        False,
        lambda r: r["1000/s"]["redis"].p99_ms - r["1000/s"]["A"].p99_ms,
    ),
    Goal("Redis, 3000/s: p99", "ms", 5, 2.5, False, lambda r: r["3000/s"]["redis"].p99_ms),
    Goal(
        "Redis, c=32: appendfsync always over everysec",
        "x",
        0.80,
        0.95,
        True,
        _ratio("c=32", "redis-always", "redis", _rate),
    ),
    Goal("Redis, c=32: commands per write", "", 8, 15, True, lambda r: r["c=32"]["redis"].commands_per_write),
    Goal("Redis, c=32: tasks accepted over A", "x", 0.38, 0.50, True, _ratio("c=32", "redis-tasks", "A", _rate)),
    Goal("SQLite, c=32: rate over A", "x", 0.20, 0.30, True, _ratio("c=32", "sqlite", "A", _rate)),
    Goal("SQLite, c=32: rate over commit per operation", "x", 2.2, 3, True, _ratio("c=32", "sqlite", "S", _rate)),
    Goal("SQLite, 1000/s: p99", "ms", 7, 4, False, lambda r: r["1000/s"]["sqlite"].p99_ms),
)


def judge(rounds: Sequence[Round]) -> list[Result]:
    """Return every goal under load with what the rounds reached."""
    return [Result(goal, _spread(goal, rounds)) for goal in GOALS]


def apart(name: str, unit: str, floor: float, stretch: float, *values: float, more: bool = False) -> Result:
    """Return a goal measured apart from the load, with one value or one of each round."""
    return Result(Goal(name, unit, floor, stretch, more, lambda _: values[0]), Spread.of(values))


def _spread(goal: Goal, rounds: Sequence[Round]) -> Spread | None:
    try:
        return Spread.of([goal.measure(one) for one in rounds])
    except (KeyError, ZeroDivisionError):
        return None
