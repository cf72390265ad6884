"""What a store tells, and lets be changed, at start, to the sweeper and to the commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .tasks import TaskRow


@dataclass(frozen=True, slots=True)
class KnownRevision:
    """A credential revision as the store knows it: never the secret, only its fingerprint."""

    key_id: str
    listing: str
    fingerprint: str
    first_seen: float


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event in the outbox, for the operator; `reason` is empty unless `is_dead`."""

    task_id: str
    sequence: int
    listing: str
    host: str
    attempts: int
    created_at: float
    due_at: float
    is_dead: bool
    reason: str
    body: bytes


class Operator(Protocol):
    """Used at start, by the sweeper and by the commands."""

    async def register_revisions(self, revisions: Sequence[KnownRevision]) -> Sequence[KnownRevision]:
        """Record revisions not seen before, in one step.

        Returns what the store holds under a key id with another fingerprint or listing; then nothing is written.
        """

    async def known_revisions(self) -> Sequence[KnownRevision]:
        """Return every revision this store has seen, oldest first."""

    async def forget_revision(self, key_id: str) -> bool:
        """Drop a revision's record; False when it was not known."""

    async def running_turns(self, now: float) -> dict[str, int]:
        """Return the number of turns under a live lease by key id."""

    async def purge(self, now: float, limit: int) -> int:
        """Drop up to `limit` records whose time is over; return how many."""


class TaskOperator(Protocol):
    """Used by the commands and at start."""

    async def list_tasks(self, listing: str | None, is_open: bool | None, limit: int) -> Sequence[TaskRow]:
        """Return tasks, newest first."""

    async def list_events(self, task_id: str | None, is_dead: bool | None, limit: int) -> Sequence[EventRow]:
        """Return events that are still in the outbox, oldest first."""

    async def resend_event(self, task_id: str, sequence: int, now: float) -> bool:
        """Make an event due at once with a fresh schedule (no attempts, created now); False when it is not there."""

    async def open_tasks(self) -> dict[str, int]:
        """Return the number of open tasks by key id."""
