"""When a callback is tried again, and when it is given up (wire 7.4), as pure functions."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal, TypeAlias

from ..store import Dead, Delivered, Delivery, DeliveryEnd, RetryAt

GONE = 410
_PASSING = frozenset({408, 425, 429})
_SECONDS = re.compile(r"[0-9]{1,9}")
MAX_DATE_CHARS = 40
MAX_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how often an event is tried; all in seconds.

    After a passing failure: within `first_s`, then doubling up to `cap_s`, with full jitter, until `whole_s` past
    the event's creation. Starting low matters: an event waits for its predecessor, so that a receiver that fails
    now and then delays a task by the sum. After a refusal: once more after about each of `refused_gaps_s`.
    """

    whole_s: float = 86_400.0
    first_s: float = 0.25
    cap_s: float = 900.0
    refused_gaps_s: tuple[float, ...] = (5.0, 30.0)


@dataclass(frozen=True, slots=True)
class Status:
    """The receiver answered; `retry_after` is the header's value, empty unless there was exactly one."""

    status: int
    retry_after: str = ""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer came, or none that could be read; `why` is a word for the log."""

    why: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """The event can't be sent at all, now or later; `why` reads as a dead letter's reason."""

    why: str


Outcome: TypeAlias = Status | Unanswered | Impossible
Kind: TypeAlias = Literal["taken", "passing", "refused", "hopeless"]


def kind_of(outcome: Outcome) -> Kind:
    """Sort an attempt's outcome by what follows from it."""
    if isinstance(outcome, Impossible):
        return "hopeless"
    if isinstance(outcome, Unanswered):
        return "passing"
    if 200 <= outcome.status < 300:
        return "taken"
    if outcome.status in _PASSING or 500 <= outcome.status < 600:
        return "passing"
    return "hopeless" if outcome.status == GONE else "refused"


def decide(
    outcome: Outcome, delivery: Delivery, refusals: int, schedule: Schedule, *, now: float, chance: random.Random
) -> DeliveryEnd:
    """Say how an attempt ends; `refusals` counts the event's refused attempts, this one included."""
    kind = kind_of(outcome)
    if kind == "taken":
        return Delivered()
    if kind == "hopeless":
        return Dead(_said(outcome))
    if kind == "refused":
        if refusals > len(schedule.refused_gaps_s):
            return Dead(f"{_said(outcome)}, {refusals} times")
        gap = schedule.refused_gaps_s[refusals - 1]
        return RetryAt(now + gap * chance.uniform(0.5, 1.0))
    delay = _delay(outcome, delivery.attempts, schedule, now, chance)
    if now + delay > delivery.created_at + schedule.whole_s:
        return Dead(f"not taken in {round(schedule.whole_s)} s; at last: {_said(outcome)}")
    return RetryAt(now + delay)


def _delay(outcome: Outcome, attempts: int, schedule: Schedule, now: float, chance: random.Random) -> float:
    ceiling = min(schedule.cap_s, schedule.first_s * 2.0 ** min(attempts, MAX_DOUBLINGS))
    asked = read_retry_after(outcome.retry_after, now) if isinstance(outcome, Status) else None
    if asked is None or not 0 < asked <= schedule.cap_s:
        return chance.uniform(0, ceiling)
    # Not before the receiver wants it, and not everybody at that very moment.
    return min(schedule.cap_s, asked + chance.uniform(0, ceiling))


def read_retry_after(text: str, now: float) -> float | None:
    """Return the seconds a `Retry-After` asks for; None where it is no number of seconds and no HTTP date."""
    if _SECONDS.fullmatch(text):
        return float(text)
    if not text or not text.isascii() or len(text) > MAX_DATE_CHARS:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return None


def only_value(headers: Sequence[tuple[str, str]], name: str) -> str:
    """Return a header's value, or nothing where it is absent or repeated."""
    values = [value for found, value in headers if found == name]
    return values[0].strip() if len(values) == 1 else ""


def _said(outcome: Outcome) -> str:
    return f"the receiver answered {outcome.status}" if isinstance(outcome, Status) else outcome.why


class Pace:
    """Holds back what was overdue when the process began, so that no receiver meets a whole backlog at once.

    Each second lets through `PER_S` events and a small part of what already went through: a large backlog
    leaves within minutes, with no second carrying more than about a twentieth of it.
    """

    PER_S = 5.0
    GROWTH = 0.025
    BURST_S = 0.05

    def __init__(self, now: float) -> None:
        self._through = 0
        self._allowance = self.PER_S
        self._at = now

    def allowed(self, now: float) -> int:
        """Return how many may go now; `now` is in seconds of any steady clock."""
        rate = self.PER_S + self.GROWTH * self._through
        most = max(1.0, self.BURST_S * rate)
        if self._allowance < most:
            self._allowance = min(most, self._allowance + max(0.0, now - self._at) * rate)
        self._at = now
        return int(self._allowance)

    def let_through(self, count: int) -> None:
        """Count events that went."""
        self._through += count
        self._allowance -= count

    def wait_s(self) -> float:
        """Return the seconds until the next may go."""
        return max(0.0, 1.0 - self._allowance) / (self.PER_S + self.GROWTH * self._through)
