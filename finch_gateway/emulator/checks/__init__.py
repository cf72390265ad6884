"""The connection test: what Finch does with a new listing, and the refusals it relies on (wire 1 to 5)."""

from .judge import Bench, Check, CheckResult, run_check
from .suite import CHECKS

__all__ = ["CHECKS", "Bench", "Check", "CheckResult", "run_check"]
