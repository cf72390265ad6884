"""What a store promises for synchronous turns: one holder at a time, one answer."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from .admission import Nonce


class TurnKey(msgspec.Struct, frozen=True):
    """A turn's identity (wire 5.2); `turn_id` is empty where none was sent."""

    listing: str
    invocation_id: str
    turn_id: str


class TurnClaim(msgspec.Struct, frozen=True):
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


class Held(msgspec.Struct, frozen=True):
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


class Running(msgspec.Struct, frozen=True):
    """Another attempt holds the turn until `lease_until`."""

    lease_until: float


class Answered(msgspec.Struct, frozen=True):
    """The turn has its answer: exactly these bytes."""

    reply: bytes


class Conflict(msgspec.Struct, frozen=True):
    """The identity was used with another input."""


class Replayed(msgspec.Struct, frozen=True):
    """The nonce was consumed before; nothing else was looked at or changed."""


class Free(msgspec.Struct, frozen=True):
    """Nobody runs the turn and it has no answer; only said to a claim that may not start."""


Verdict: TypeAlias = Held | Running | Answered | Conflict | Replayed | Free


class KeepQuestion(msgspec.Struct, frozen=True):
    """Put `record` in the conversation's place; kept until `keep_until`."""

    record: bytes
    keep_until: float


class ClearQuestion(msgspec.Struct, frozen=True):
    """Drop the conversation's record if it is still the one with this `version`."""

    version: str


class TurnEnd(msgspec.Struct, frozen=True):
    """A turn's answer and what it does to its conversation, committed together (wire 5.4)."""

    key: TurnKey
    epoch: int
    reply: bytes
    conversation_id: str
    question: KeepQuestion | ClearQuestion | None
    keep_until: float


class Turns(Protocol):
    """Used by the engine for synchronous turns."""

    async def claim_turn(self, claim: TurnClaim, now: float) -> Verdict:
        """Spend the claim's nonce, then say what is known of the turn or hand it over, in one step.

        In this order: a consumed nonce is `Replayed`; another input, or a task of the same identity, is
        `Conflict`; an answer is `Answered`;
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
