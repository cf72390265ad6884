"""Every check of the connection test, in the order in which they run."""

from __future__ import annotations

from collections.abc import Collection

from .door import DOOR_CHECKS
from .judge import Check
from .repeats import REPEAT_CHECKS
from .requests import REQUEST_CHECKS
from .task_answers import LATE_CHECKS, REPEAT_TASK_CHECKS
from .task_door import TASK_DOOR_CHECKS
from .task_life import CLOCK_CHECKS, END_CHECKS, LAST_CHECKS, LIFE_CHECKS
from .walk import HEALTH_CHECKS, PLAIN_CHECKS, TURN_CHECKS

TASK_CHECKS: tuple[Check, ...] = (
    *LIFE_CHECKS,
    *REPEAT_TASK_CHECKS,
    *END_CHECKS,
    *LATE_CHECKS,
    *TASK_DOOR_CHECKS,
    *CLOCK_CHECKS,
    *LAST_CHECKS,
)
"""What a listing that takes tasks is tried with, after everything else."""

CHECKS: tuple[Check, ...] = (
    *HEALTH_CHECKS,
    *TURN_CHECKS,
    *PLAIN_CHECKS,
    *DOOR_CHECKS,
    *REQUEST_CHECKS,
    *REPEAT_CHECKS,
)
"""What a listing that takes turns alone is tried with."""


def checks_for(modes: Collection[str]) -> tuple[Check, ...]:
    """Return the checks for a listing that serves these modes."""
    for_turns = frozenset() if "conversation_turn" in modes else frozenset((*TURN_CHECKS, *REPEAT_CHECKS))
    common = tuple(check for check in CHECKS if check not in for_turns)
    return common + (TASK_CHECKS if "task" in modes else ())
