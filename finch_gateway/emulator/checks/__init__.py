"""The connection test: what Finch does with a new listing, and the refusals it relies on (wire 1 to 7)."""

from .judge import Bench, Check, CheckResult, run_check
from .suite import CHECKS, TASK_CHECKS, checks_for
from .task_life import NO_CALLBACK

__all__ = ["CHECKS", "NO_CALLBACK", "TASK_CHECKS", "Bench", "Check", "CheckResult", "checks_for", "run_check"]
