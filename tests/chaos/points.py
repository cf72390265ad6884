"""The points at which a process is killed, each with what it is doing then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

How = Literal["kill", "during", "thaw", "calm"]


@dataclass(frozen=True, slots=True)
class Point:
    """`gate` is where the process waits; it is killed there, or let go and killed a moment later (`during`), or
    frozen until another process has its work, and thawed (`thaw`), or left alone (`calm`).

    `first` is a gate of a life before, whose crash makes the work; with `terminates` the process is told to stop
    first. `turns` gates are counted: the n-th run stops at the n-th time, over that many. With `purges` ended tasks
    are soon forgotten.
    """

    gate: str
    how: How = "kill"
    errands: tuple[str, ...] = ("report", "brief")
    first: str = ""
    terminates: bool = False
    turns: int = 1
    purges: bool = False

    @property
    def name(self) -> str:
        return self.gate if self.how == "kill" else f"{self.gate.partition(':')[0]}, {self.how}"


def _both(name: str, **more: object) -> tuple[Point, Point]:
    return Point(f"{name}:before", **more), Point(f"{name}:after", **more)  # type: ignore[arg-type]


ARRIVED = "send:after"
"""The receiver has the callback and has not answered it."""

POINTS: tuple[Point, ...] = (
    *_both("admit"),
    Point("admit:before", "during"),
    *_both("reply"),
    Point("nonce:after"),
    *_both("lease"),
    *_both("start"),
    *_both("progress"),
    *_both("save"),
    *_both("ask"),
    *_both("answer"),
    *_both("taken"),
    *_both("return"),
    *_both("end", turns=2),
    Point("end:before", "during", turns=2),
    *_both("cancel", errands=("canceled", "brief")),
    *_both("claim", turns=3),
    *_both("send", turns=3),
    Point("accept:after", turns=3),
    *_both("settle", turns=3),
    *_both("renew"),
    Point("renew:before", "during"),
    *_both("take-over", first="progress:after"),
    Point("take-over:before", "during", first="save:after"),
    Point("sweep:found", errands=("report", "unanswered")),
    *_both("expire", errands=("unanswered", "expired"), turns=2),
    *_both("purge", errands=("report", "long"), purges=True),
    Point("purge:before", "during", errands=("report", "long"), purges=True),
    Point("drain:before", terminates=True, errands=("report", "long")),
    Point("drain:before", "during", terminates=True, errands=("report", "long")),
    *_both("release", terminates=True, errands=("report", "long")),
    Point("progress:before", "thaw", errands=("report",)),
    Point("end:before", "thaw", errands=("report",)),
)

CALM = Point("calm", "calm")

SLICE: tuple[str, ...] = ("admit:after", "reply:after", "ask:before", "answer:after", "end:after", "send:after")
"""The handful that every test run tries."""


def point_named(name: str) -> Point:
    return next(point for point in POINTS if point.name == name)
