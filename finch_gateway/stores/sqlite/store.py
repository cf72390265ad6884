"""The handle: every call of the store's contract, sent down the lane it belongs to."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...errors import StoreUnavailable
from ...store import Answered, Free, KnownRevision, Nonce, Running, TurnClaim, TurnEnd, TurnKey, Verdict
from . import steps
from .database import Database
from .lanes import Checkpointer, Readers, Writer, aside

T = TypeVar("T")

READERS = 2


class SqliteStore:
    """A `Store` over one SQLite file. A handle belongs to one process and one event loop.

    Answers of calls that change something come after their commit has reached the disk. A caller that goes
    away does not undo its call. While the file is away, full or damaged every call is `StoreUnavailable`.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        self._lanes: tuple[Writer, Readers, Checkpointer] | None = None

    @property
    def commits(self) -> int:
        """How many transactions this handle has committed."""
        return self._open_lanes()[0].commits

    async def open(self) -> None:
        """Create or check the file and start the threads."""
        await aside(self._database.open)
        gate = threading.Lock()
        checkpointer = Checkpointer(self._database, gate)
        writer = Writer(self._database, gate, checkpointer.grown)
        self._lanes = (writer, Readers(self._database, READERS), checkpointer)
        for lane in self._lanes:
            lane.start()

    async def close(self) -> None:
        """Finish what was asked and end the threads; the last handle empties the log into the file."""
        for lane in self._lanes or ():
            await lane.close()
        await aside(self._database.close)

    async def spend(self, nonce: Nonce, now: float) -> bool:
        """Consume a nonce; False when it was consumed before by another operation."""
        return await self._write(partial(steps.spend, nonce=nonce))

    async def probe(self) -> None:
        """Return when a write has reached the disk."""
        await self._write(steps.probe)

    async def claim_turn(self, claim: TurnClaim, now: float) -> Verdict:
        """Spend the claim's nonce, then say what is known of the turn or hand it over."""
        return await self._write(partial(steps.claim_turn, claim=claim, now=now))

    async def peek_turn(self, key: TurnKey, now: float) -> Running | Answered | Free:
        """Say where a turn stands, changing nothing."""
        return await self._read(partial(steps.peek_turn, key=key, now=now))

    async def renew_turn(self, key: TurnKey, epoch: int, lease_until: float, now: float) -> bool:
        """Move the lease's end; False when the epoch no longer holds the turn."""
        return await self._write(partial(steps.renew_turn, key=key, epoch=epoch, lease_until=lease_until, now=now))

    async def save_turn(self, key: TurnKey, epoch: int, saved: bytes, now: float) -> bool:
        """Keep what the agent saved; False when the epoch no longer holds the turn."""
        return await self._write(partial(steps.save_turn, key=key, epoch=epoch, saved=saved, now=now))

    async def release_turn(self, key: TurnKey, epoch: int, now: float) -> bool:
        """Give the turn back unanswered; False when the epoch no longer holds it."""
        return await self._write(partial(steps.release_turn, key=key, epoch=epoch, now=now))

    async def finish_turn(self, end: TurnEnd, now: float) -> bool:
        """Write the answer and the conversation's record; False when the epoch no longer holds the turn."""
        return await self._write(partial(steps.finish_turn, end=end, now=now))

    async def register_revisions(self, revisions: Sequence[KnownRevision]) -> Sequence[KnownRevision]:
        """Record revisions not seen before, all or none."""
        return await self._write(partial(steps.register_revisions, revisions=revisions))

    async def known_revisions(self) -> Sequence[KnownRevision]:
        """Return every revision this store has seen, oldest first."""
        return await self._read(steps.known_revisions)

    async def forget_revision(self, key_id: str) -> bool:
        """Drop a revision's record; False when it was not known."""
        return await self._write(partial(steps.forget_revision, key_id=key_id))

    async def running_turns(self, now: float) -> dict[str, int]:
        """Return the number of turns under a live lease by key id."""
        return await self._read(partial(steps.running_turns, now=now))

    async def purge(self, now: float, limit: int) -> int:
        """Drop up to `limit` records whose time is over; a reader looks for them, so that nobody waits."""
        over = await self._read(partial(steps.find_over, now=now, limit=limit))
        return await self._write(partial(steps.drop_over, over=over, now=now)) if len(over) else 0

    async def _write(self, step: Callable[[sqlite3.Connection], T]) -> T:
        return await self._open_lanes()[0].ask(step)

    async def _read(self, step: Callable[[sqlite3.Connection], T]) -> T:
        return await self._open_lanes()[1].ask(step)

    def _open_lanes(self) -> tuple[Writer, Readers, Checkpointer]:
        if self._lanes is None:
            raise StoreUnavailable("the SQLite store is not open")
        return self._lanes
