"""A listing together with the agent behind it, and how much of it is in use."""

from __future__ import annotations

from ..backend import Backend
from ..listing import Listing


class ListedAgent:
    """One listing's backend with its slots for running turns (`max_running_turns`, per process)."""

    def __init__(self, listing: Listing, backend: Backend) -> None:
        self.listing = listing
        self.backend = backend
        self.running_turns = 0

    def take_slot(self) -> bool:
        """Take a slot; False when every slot is in use."""
        if self.running_turns >= self.listing.max_running_turns:
            return False
        self.running_turns += 1
        return True

    def give_slot(self) -> None:
        self.running_turns -= 1
