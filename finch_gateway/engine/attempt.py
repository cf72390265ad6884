"""One attempt at a turn: what was asked, by when it must be answered, how it is named in the log."""

from __future__ import annotations

import msgspec

from ..listing import Revision
from ..store import TurnKey
from ..wire.dispatch import Dispatch
from .agents import ListedAgent


class Attempt(msgspec.Struct, frozen=True):
    """Instants are in seconds since the epoch; the work ends at `cutoff`, so that the reply leaves in time."""

    agent: ListedAgent
    dispatch: Dispatch
    body: bytes
    revision: Revision
    key: TurnKey
    began: float
    deadline: float
    cutoff: float
    trace_id: str

    @property
    def ids(self) -> dict[str, str]:
        """Finch's ids, for the log (wire 2.5)."""
        return {
            "listing": self.key.listing,
            "invocation_id": self.key.invocation_id,
            "turn_id": self.key.turn_id,
            "dispatch_id": self.dispatch.facts.dispatch_id,
            "key_id": self.revision.key_id,
            "trace_id": self.trace_id,
        }
