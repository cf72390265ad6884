"""A killed process loses no accepted task and ends none twice: some of the points of `make chaos` (wire 6, 7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chaos.points import CALM, SLICE, Point, point_named
from chaos.report import details, table
from chaos.run import Run, Verdict, provider_in
from conftest import Valkey

AT_ONCE = 6
EVENT_OUTSIDE, RECEIPT_FIRST, NO_EPOCH = "event outside the transaction", "202 before the commit", "no epoch check"


SYMPTOMS = {
    EVENT_OUTSIDE: ("end:after", "not everything ran to its end"),
    RECEIPT_FIRST: ("reply:after", "a second receipt for one invocation"),
    NO_EPOCH: ("end, thaw", "1 ended it, after 2 had begun"),
}
"""Where each bug shows, and by which words."""


async def play(plans: list[tuple[Point, str, str]], folder: Path, valkey: Valkey, end_limit_s: float) -> list[Verdict]:
    """Play each point on its store, with its seeded bug where it has one."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, point: Point, store: str, bug: str) -> Verdict:
        async with slots:
            provider = provider_in(folder / f"run-{number}", valkey.url if store == "redis" else "")
            return await Run(point, provider, turn=1, bug=bug, end_limit_s=end_limit_s).play()

    return await asyncio.gather(*(one(number, *plan) for number, plan in enumerate(plans)))


async def test_nothing_is_lost_or_doubled_wherever_the_process_is_killed(tmp_path: Path, valkey: Valkey) -> None:
    plans = [(point_named(name), store, "") for name in SLICE for store in ("sqlite", "redis")]
    verdicts = await play(plans, tmp_path, valkey, 75)
    print("\n" + table(verdicts))
    assert not details(verdicts)


async def test_each_seeded_bug_is_noticed_on_each_store(tmp_path: Path, valkey: Valkey) -> None:
    plans = [(point_named(point), store, bug) for bug, (point, _) in SYMPTOMS.items() for store in ("sqlite", "redis")]
    for (_, store, bug), verdict in zip(plans, await play(plans, tmp_path, valkey, 12), strict=True):
        found = [violation for violation in verdict.violations if SYMPTOMS[bug][1] in violation]
        assert found, f"{bug} on {store}: {verdict.violations}"


async def test_the_seeded_bugs_are_the_kind_that_only_a_crash_shows(tmp_path: Path, valkey: Valkey) -> None:
    plans = [(CALM, "sqlite", bug) for bug in SYMPTOMS]
    assert not details(await play(plans, tmp_path, valkey, 30))
