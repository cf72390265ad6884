"""Every check of the connection test, in the order in which they run."""

from __future__ import annotations

from .door import DOOR_CHECKS
from .judge import Check
from .repeats import REPEAT_CHECKS
from .requests import REQUEST_CHECKS
from .walk import WALK_CHECKS

CHECKS: tuple[Check, ...] = (*WALK_CHECKS, *DOOR_CHECKS, *REQUEST_CHECKS, *REPEAT_CHECKS)
