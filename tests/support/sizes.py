"""How large the scenarios are: small in every test run, full in `make chaos`."""

from __future__ import annotations

import os

IS_FULL = os.environ.get("CHAOS") == "full"


def sized(small: int, full: int) -> int:
    """Return how many of something this run takes."""
    return full if IS_FULL else small
