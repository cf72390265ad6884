"""A task's life as it happens: one line per callback, with the seconds since its dispatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from ...emulator.following import FollowedTask
from ...emulator.timeline import Arrival

_STATUS_COLOURS = {"completed": "green", "failed": "red", "canceled": "yellow", "expired": "yellow"}


class Watch:
    """Prints what arrives for a task, and what else happens to it, against one clock."""

    def __init__(self, task: FollowedTask, clock: Callable[[], float]) -> None:
        self._task = task
        self._clock = clock
        self._started = clock()
        if task.timeline is not None:
            task.timeline.watch(self._arrived)

    @property
    def faults(self) -> Sequence[str]:
        """Whatever was wrong with the callbacks and snapshots so far."""
        return [*self._task.faults, *(self._task.timeline.faults if self._task.timeline else ())]

    def note(self, words: str) -> None:
        """Print something that is no callback in its place on the timeline."""
        click.echo(f"  {click.style('·', fg='cyan')} {self._since(self._clock())}  {words}")

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds after a callback; False when the time is over first."""
        return self._task.timeline is not None and await self._task.timeline.until(holds, timeout_s)

    def _arrived(self, arrival: Arrival) -> None:
        arrow = click.style("⇠", fg="magenta")
        click.echo(f"  {arrow} {self._since(arrival.at)}  {_what(arrival)}{_proof(arrival)} → {_answered(arrival)}")

    def _since(self, at: float) -> str:
        return click.style(f"{at - self._started:+6.2f} s", dim=True)


def _what(arrival: Arrival) -> str:
    event = arrival.event
    if event is None:
        return f"{'no event of this task':<52}"
    status = click.style(f"{event.status:<15}", fg=_STATUS_COLOURS.get(event.status, "cyan"), bold=True)
    return f"#{event.sequence:<3} {status} {_facts(event.document):<32}"


def _facts(document: dict[str, object]) -> str:
    progress, questions = document.get("progress"), document.get("questions")
    if isinstance(progress, dict):
        return f"{progress.get('percent', 0):>3} % {progress.get('stage', '')}"
    if isinstance(questions, list) and questions:
        return str(questions[0].get("question", ""))
    return ""


def _proof(arrival: Arrival) -> str:
    if arrival.faults:
        return click.style(f" NOT ACCEPTED: {arrival.faults[0]}", fg="red", bold=True)
    return click.style(" signature verified", fg="green")


def _answered(arrival: Arrival) -> str:
    words = f"{arrival.answered}{', known already' if arrival.is_repeat else ''}" if arrival.answered else "no answer"
    return click.style(words, fg="green" if arrival.is_accepted else "yellow", bold=True)
