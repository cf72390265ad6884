"""A listing together with the agent behind it, and how much of it is in use."""

from __future__ import annotations

from ..backend import Backend
from ..listing import Listing
from ..wire.dispatch import PROBE_TEXT, Dispatch


class ListedAgent:
    """One listing's backend with its slots, per process: for turns and, apart from them, for tasks (wire 6.9)."""

    def __init__(self, listing: Listing, backend: Backend) -> None:
        self.listing = listing
        self.backend = backend
        self.running_turns = 0
        self.running_tasks = 0

    def take_slot(self) -> bool:
        """Take a slot for a turn; False when every one is in use."""
        if self.running_turns >= self.listing.max_running_turns:
            return False
        self.running_turns += 1
        return True

    def give_slot(self) -> None:
        self.running_turns -= 1


def deadline_of(listing: Listing, dispatch: Dispatch, now: float) -> float:
    """Return the instant by which a dispatch's work must be done (wire 4.4)."""
    deadline = now + listing.default_deadline_s if dispatch.deadline is None else dispatch.deadline
    return min(deadline, now + listing.max_deadline_s)


def answers_from_capabilities(listing: Listing, dispatch: Dispatch) -> bool:
    """Say whether a dispatch may be answered from the listing's capability answer (wire 4.6, 4.7, 13).

    finch_v2: its flag, or either hint. agenton_v0 may show the flag on paid work: its text alone decides.
    """
    if not listing.capabilities:
        return False
    by_text = dispatch.text == PROBE_TEXT
    if dispatch.wire_protocol == "agenton_v0":
        return by_text
    return dispatch.contract_test or by_text or dispatch.parameters.get("contract_test") is True
