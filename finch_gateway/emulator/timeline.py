"""What Finch learns of one task, callback by callback, and what must never happen among them (wire 7.2, 7.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .exchange import Request, body_summary
from .tasks import Event, State, read_event

MAX_NOTED = 500
"""How many faults, and how many arrivals that are none of the task's events, a timeline keeps."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One delivery: when it came, what it said, what was wrong with it, and what it was answered.

    `answered` is the status that was sent back, 0 where the connection ended without one. `is_repeat` marks an
    event that was accepted before: accepted again, and counted once.
    """

    at: float
    request: Request
    event: Event | None
    faults: tuple[str, ...]
    answered: int = 0
    is_repeat: bool = False

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.answered < 300


@dataclass(frozen=True, slots=True)
class CallbackTrace:
    """A delivery as it may be written down: nothing secret, no text of the agent."""

    at: float
    target: str
    event_id: str
    status: str
    sequence: int
    answered: int
    is_repeat: bool
    faults: tuple[str, ...]
    body: str


def callback_trace(arrival: Arrival) -> CallbackTrace:
    """Return what may be kept of a delivery."""
    event, request = arrival.event, arrival.request
    return CallbackTrace(
        round(arrival.at, 3),
        request.path,
        event.event_id if event else "",
        event.status if event else "",
        event.sequence if event else 0,
        arrival.answered,
        arrival.is_repeat,
        arrival.faults,
        body_summary(request.body),
    )


@dataclass(slots=True)
class History:
    """The states of one task by sequence, from callbacks and snapshots alike."""

    seen: dict[int, State] = field(default_factory=dict)

    def note(self, state: State) -> list[str]:
        """Add a state; return its faults."""
        faults = self.faults(state)
        self.seen.setdefault(state.sequence, state)
        return faults

    @property
    def newest(self) -> State | None:
        return self.seen[max(self.seen)] if self.seen else None

    @property
    def end(self) -> State | None:
        """The final state, where it is known."""
        return next((state for state in self.seen.values() if state.is_final), None)

    def faults(self, state: State) -> list[str]:
        """Return what is wrong with a state beside what is known already."""
        faults = []
        known = self.seen.get(state.sequence)
        if known is not None and not known.agrees_with(state):
            faults.append(f"sequence {state.sequence} is told in two ways: {known.status} and {state.status}")
        end = self.end
        if end is not None and state.sequence > end.sequence:
            faults.append(f"sequence {state.sequence} ({state.status}) comes after the end ({end.status})")
        if state.percent is not None and any(self._is_higher(known, state) for known in self.seen.values()):
            faults.append(f"progress falls to {state.percent} percent at sequence {state.sequence}")
        return faults

    @staticmethod
    def _is_higher(known: State, state: State) -> bool:
        return known.sequence < state.sequence and known.percent is not None and known.percent > (state.percent or 0)


class Timeline:
    """One task's deliveries at the URL that its dispatch named, in the order in which they came."""

    def __init__(self, url: str, target: str, invocation_id: str) -> None:
        self.url = url
        self.target = target
        self.invocation_id = invocation_id
        self.arrivals: list[Arrival] = []
        self.events: list[Event] = []
        self.faults: list[str] = []
        self.history = History()
        self._bodies: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self._watchers: list[Callable[[Arrival], None]] = []

    @property
    def newest(self) -> Event | None:
        """The accepted event with the highest sequence."""
        return self.events[-1] if self.events else None

    @property
    def is_ended(self) -> bool:
        return self.newest is not None and self.newest.is_final

    def watch(self, watcher: Callable[[Arrival], None]) -> None:
        """Call `watcher` with every delivery from now on, as it comes."""
        self._watchers.append(watcher)

    def judge(self, arrival: Arrival) -> Arrival:
        """Return a proven delivery with the event it carries, its faults, and whether it is a repeat."""
        event, faults = read_event(arrival.request.body)
        if event is not None and not faults:
            faults = self._misfits(event, arrival.request.body)
        is_repeat = event is not None and not faults and event.event_id in self._bodies
        return replace(arrival, event=event, faults=(*arrival.faults, *faults), is_repeat=is_repeat)

    def keep(self, arrival: Arrival) -> None:
        """Write a delivery down as it was answered; only what was accepted counts as known to Finch."""
        if len(self.arrivals) < MAX_NOTED or arrival.is_accepted:
            self.arrivals.append(arrival)
        self.faults += arrival.faults if len(self.faults) < MAX_NOTED else ()
        if arrival.event is not None and arrival.is_accepted and not (arrival.is_repeat or arrival.faults):
            self.events.append(arrival.event)
            self._bodies[arrival.event.event_id] = arrival.request.body
            self.history.note(arrival.event)
        for watcher in self._watchers:
            watcher(arrival)
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds after a delivery; False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return holds()
        return True

    def _misfits(self, event: Event, body: bytes) -> list[str]:
        if event.event_id in self._bodies:
            same = self._bodies[event.event_id] == body
            return [] if same else [f"event_id of sequence {event.sequence} has two bodies"]
        faults = []
        if event.invocation_id not in ("", self.invocation_id):
            faults.append("invocation_id is not the dispatch's")
        newest = self.newest
        if newest is not None and newest.merchant_task_id != event.merchant_task_id:
            faults.append("merchant_task_id is not that of the task's earlier events")
        if newest is not None and newest.is_final:
            faults.append(f"sequence {event.sequence} ({event.status}) comes after the end ({newest.status})")
        elif newest is not None and event.sequence <= newest.sequence:
            faults.append(f"sequence {event.sequence} comes after {newest.sequence}: it does not increase")
        elif not faults:
            faults += self.history.faults(event)
        return faults
