"""What a store must promise. Two keep it: `stores.sqlite` and `stores.redis`; one conformance suite holds both.

Each method is one atomic step. Instants are seconds since the epoch and are passed in; a store reads no
clock for its decisions. Every mutation carries an operation id (`op`) or an epoch, so that a repeat after a
lost answer recognises itself. Records are opaque blobs beside a short clear index, listed per class here.

Every method may raise `StoreUnavailable`: then the step happened or did not, and asking again tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Nonce:
    """A verified nonce that is not consumed yet; remembered until `expires_at` (wire 1.7). Scope: `key_id`."""

    key_id: str
    value: str
    expires_at: float
    op: str


@dataclass(frozen=True, slots=True)
class TurnKey:
    """A turn's identity (wire 5.2); `turn_id` is empty where none was sent."""

    listing: str
    invocation_id: str
    turn_id: str


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """An attempt at a turn. Clear index: `key`, `key_id`, `conversation_id`, lease; blob: `facts`.

    `nonce` is None when the same attempt asks again (a waiter); then no nonce is spent. With `may_start`
    false the claim learns what is known and never takes the turn. `lease_s` is the length of the lease in
    seconds, `keep_until` the instant until which the record must be kept.
    """

    key: TurnKey
    nonce: Nonce | None
    input_digest: str
    key_id: str
    conversation_id: str
    op: str
    lease_s: float
    keep_until: float
    may_start: bool
    facts: bytes


@dataclass(frozen=True, slots=True)
class Held:
    """The right to run the turn. Once the lease has ended another may take the turn over; until one does, the
    epoch still holds it and may renew, save, release and finish.

    `epoch` grows with every new holder and fences the old one. `attempt` counts from 1 and grows when a
    lease ended without an answer (a crash), not when it was given back. `saved` is what the agent last
    saved, or None. `question` is the conversation's open question record and `question_version` its version,
    empty where there is none.
    """

    epoch: int
    attempt: int
    saved: bytes | None
    question: bytes | None
    question_version: str


@dataclass(frozen=True, slots=True)
class Running:
    """Another attempt holds the turn until `lease_until`."""

    lease_until: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The turn has its answer: exactly these bytes."""

    reply: bytes


@dataclass(frozen=True, slots=True)
class Conflict:
    """The identity was used with another input."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The nonce was consumed before; nothing else was looked at or changed."""


@dataclass(frozen=True, slots=True)
class Free:
    """Nobody runs the turn and it has no answer; only said to a claim that may not start."""


Verdict: TypeAlias = Held | Running | Answered | Conflict | Replayed | Free


@dataclass(frozen=True, slots=True)
class KeepQuestion:
    """Put `record` in the conversation's place; kept until `keep_until`."""

    record: bytes
    keep_until: float


@dataclass(frozen=True, slots=True)
class ClearQuestion:
    """Drop the conversation's record if it is still the one with this `version`."""

    version: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A turn's answer and what it does to its conversation, committed together (wire 5.4)."""

    key: TurnKey
    epoch: int
    reply: bytes
    conversation_id: str
    question: KeepQuestion | ClearQuestion | None
    keep_until: float


@dataclass(frozen=True, slots=True)
class KnownRevision:
    """A credential revision as the store knows it: never the secret, only its fingerprint."""

    key_id: str
    listing: str
    fingerprint: str
    first_seen: float


class Admission(Protocol):
    """Used by the door."""

    async def spend(self, nonce: Nonce, now: float) -> bool:
        """Consume a nonce; False when it was consumed before by another operation."""

    async def probe(self) -> None:
        """Return when the store can be written to; raise `StoreUnavailable` otherwise."""


class Turns(Protocol):
    """Used by the engine for synchronous turns."""

    async def claim_turn(self, claim: TurnClaim, now: float) -> Verdict:
        """Spend the claim's nonce, then say what is known of the turn or hand it over, in one step.

        In this order: a consumed nonce is `Replayed`; another input is `Conflict`; an answer is `Answered`;
        a live lease is `Running` (or `Held` again for the same `op`); else, where the claim may start,
        `Held` with the next epoch, otherwise `Free`. The nonce stays spent whatever comes back.
        """

    async def peek_turn(self, key: TurnKey, now: float) -> Running | Answered | Free:
        """Say where a turn stands, changing nothing; an ended lease and an unknown turn are `Free`."""

    async def renew_turn(self, key: TurnKey, epoch: int, lease_until: float, now: float) -> bool:
        """Move the lease's end; False when the epoch no longer holds the turn."""

    async def save_turn(self, key: TurnKey, epoch: int, saved: bytes, now: float) -> bool:
        """Keep what the agent saved; False when the epoch no longer holds the turn."""

    async def release_turn(self, key: TurnKey, epoch: int, now: float) -> bool:
        """Give the turn back unanswered, without counting a crash; False when the epoch no longer holds it."""

    async def finish_turn(self, end: TurnEnd, now: float) -> bool:
        """Write the answer and the conversation's record; True also for the same end once more.

        False when the epoch no longer holds the turn: then nothing is written.
        """


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


class Store(Admission, Turns, Operator, Protocol):
    """The whole store, with its life: `open` before anything else, `close` last; both may be called once."""

    async def open(self) -> None:
        """Connect and check the store; raise `ConfigError` naming the setting and the remedy."""

    async def close(self) -> None:
        """Finish what was begun and let go of files and connections."""
