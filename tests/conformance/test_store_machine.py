"""Random histories of the turn operations, held against a model that fits a page, on every store."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run

from finch_gateway.store import (
    Answered,
    ClearQuestion,
    Conflict,
    Free,
    Held,
    KeepQuestion,
    Nonce,
    Replayed,
    Running,
    Store,
    TurnClaim,
    TurnEnd,
    TurnKey,
    Verdict,
)

T = TypeVar("T")
START = float(int(time.time()))
KEEP = START + 86_400
TURNS = st.sampled_from(["t1", "t2", "t3"])
CONVERSATIONS = st.sampled_from(["c1", "c2"])
BYTES = st.sampled_from([b"", b"one", b"two\0\xff"])


@dataclass
class Turn:
    """A turn as the model knows it; `lease_until` is None when nobody holds it."""

    digest: str
    epoch: int = 0
    attempt: int = 0
    op: str = ""
    lease_until: float | None = None
    saved: bytes | None = None
    reply: bytes | None = None
    ended_by: int = 0


@dataclass
class Model:
    """The contract in its plainest form: dictionaries and one clock."""

    now: float = START
    spent: dict[str, str] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    questions: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def spend(self, nonce: str, op: str) -> bool:
        return self.spent.setdefault(nonce, op) == op

    def live(self, turn: Turn) -> bool:
        return turn.reply is None and turn.lease_until is not None and turn.lease_until > self.now

    def claim(self, claim: TurnClaim) -> Verdict:
        if claim.nonce and not self.spend(claim.nonce.value, claim.nonce.op):
            return Replayed()
        turn = self.turns.get(claim.key.turn_id) or Turn(claim.input_digest)
        if turn.digest != claim.input_digest:
            return Conflict()
        if turn.reply is not None:
            return Answered(turn.reply)
        if self.live(turn):
            return self.held(turn, claim) if turn.op == claim.op else Running(turn.lease_until or 0)
        if not claim.may_start:
            return Free()
        crashed = turn.lease_until is not None
        turn.attempt += crashed or turn.epoch == 0
        turn.epoch, turn.op, turn.lease_until = turn.epoch + 1, claim.op, self.now + claim.lease_s
        self.turns[claim.key.turn_id] = turn
        return self.held(turn, claim)

    def held(self, turn: Turn, claim: TurnClaim) -> Held:
        record, version = self.questions.get(claim.conversation_id, (None, ""))
        return Held(turn.epoch, turn.attempt, turn.saved, record, version)

    def holding(self, turn_id: str, epoch: int) -> Turn | None:
        turn = self.turns.get(turn_id)
        return turn if turn and turn.epoch == epoch and turn.reply is None and turn.lease_until is not None else None

    def finish(self, end: TurnEnd, version: str) -> bool:
        turn = self.holding(end.key.turn_id, end.epoch)
        if turn is None:
            known = self.turns.get(end.key.turn_id)
            return known is not None and (known.reply, known.ended_by) == (end.reply, end.epoch)
        turn.reply, turn.ended_by, turn.lease_until = end.reply, end.epoch, None
        match end.question:
            case KeepQuestion(record):
                self.questions[end.conversation_id] = (record, version)
            case ClearQuestion(version) if self.questions.get(end.conversation_id, (b"", None))[1] == version:
                del self.questions[end.conversation_id]
        return True


class TurnMachine(RuleBasedStateMachine):
    """Two instances of one store and the model go through the same history."""

    claims: Bundle[TurnClaim] = Bundle("claims")
    holds: Bundle[tuple[TurnKey, int]] = Bundle("holds")
    ends: Bundle[TurnEnd] = Bundle("ends")

    def __init__(self, runner: asyncio.Runner, stores: tuple[Store, Store]) -> None:
        super().__init__()
        self.runner, self.stores = runner, stores
        self.model = Model()
        self.steps = 0

    def ask(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """Let the two instances take turns."""
        self.steps += 1

        async def asked() -> T:
            return await call(self.stores[self.steps % 2])

        return self.runner.run(asked())

    @initialize()
    def start(self) -> None:
        self.listing = uuid.uuid4().hex

    def learn_version(self, verdict: Verdict, expected: Verdict, conversation: str) -> Verdict:
        """Take the version of a new question from the store: the contract leaves its form open."""
        if isinstance(verdict, Held) and isinstance(expected, Held) and expected.question_version == "?":
            known = {version for _, version in self.model.questions.values()}
            assert verdict.question_version
            assert verdict.question_version not in known
            self.model.questions[conversation] = (self.model.questions[conversation][0], verdict.question_version)
            return Held(expected.epoch, expected.attempt, expected.saved, expected.question, verdict.question_version)
        return expected

    def check(self, claim: TurnClaim) -> Any:
        verdict = self.ask(lambda store: store.claim_turn(claim, self.model.now))
        expected = self.learn_version(verdict, self.model.claim(claim), claim.conversation_id)
        assert verdict == expected
        return (claim.key, verdict.epoch) if isinstance(verdict, Held) else multiple()

    @rule(
        target=claims,
        turn=TURNS,
        digest=st.sampled_from(["d1", "d1", "d1", "d2"]),
        conversation=CONVERSATIONS,
        nonce=st.sampled_from(["new", "new", "new", "none", "used"]),
        may_start=st.sampled_from([True, True, False]),
        lease_s=st.sampled_from([10.0, 0.5]),
    )
    def think_of_a_claim(
        self, turn: str, digest: str, conversation: str, nonce: str, may_start: bool, lease_s: float
    ) -> TurnClaim:
        op = uuid.uuid4().hex
        value = "used" if nonce == "used" else f"n{op}"
        return TurnClaim(
            key=TurnKey(self.listing, "i", turn),
            nonce=None if nonce == "none" else Nonce(self.listing, value, KEEP, op),
            input_digest=digest,
            key_id=self.listing,
            conversation_id=conversation,
            op=op,
            lease_s=lease_s,
            keep_until=KEEP,
            may_start=may_start,
            facts=b"{}",
        )

    @rule(target=holds, claim=consumes(claims))
    def claim_once(self, claim: TurnClaim) -> Any:
        return self.check(claim)

    @rule(target=holds, claim=claims)
    def claim_maybe_again(self, claim: TurnClaim) -> Any:
        return self.check(claim)

    @rule(seconds=st.sampled_from([0.25, 1.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.now += seconds

    @rule(hold=holds, seconds=st.sampled_from([0.5, 20.0]))
    def renew(self, hold: tuple[TurnKey, int], seconds: float) -> None:
        now = self.model.now
        turn = self.model.holding(hold[0].turn_id, hold[1])
        assert self.ask(lambda store: store.renew_turn(*hold, now + seconds, now)) == (turn is not None)
        if turn:
            turn.lease_until = now + seconds

    @rule(hold=holds, saved=BYTES)
    def save(self, hold: tuple[TurnKey, int], saved: bytes) -> None:
        turn = self.model.holding(hold[0].turn_id, hold[1])
        assert self.ask(lambda store: store.save_turn(*hold, saved, self.model.now)) == (turn is not None)
        if turn:
            turn.saved = saved

    @rule(hold=holds)
    def release(self, hold: tuple[TurnKey, int]) -> None:
        turn = self.model.holding(hold[0].turn_id, hold[1])
        done = self.ask(lambda store: store.release_turn(*hold, self.model.now))
        if turn:
            assert done
            turn.lease_until = None

    @rule(target=ends, hold=holds, reply=BYTES, conversation=CONVERSATIONS, keep=st.booleans(), record=BYTES)
    def think_of_an_end(
        self, hold: tuple[TurnKey, int], reply: bytes, conversation: str, keep: bool, record: bytes
    ) -> TurnEnd:
        question = KeepQuestion(record, KEEP) if keep else None
        return TurnEnd(*hold, reply, conversation, question, KEEP)

    @rule(target=ends, hold=holds, conversation=CONVERSATIONS)
    def think_of_a_clearing_end(self, hold: tuple[TurnKey, int], conversation: str) -> TurnEnd:
        version = self.model.questions.get(conversation, (b"", ""))[1]
        question = None if version == "?" else ClearQuestion(version)
        return TurnEnd(*hold, b"cleared", conversation, question, KEEP)

    @rule(end=ends)
    def finish(self, end: TurnEnd) -> None:
        expected = self.model.finish(end, "?")
        assert self.ask(lambda store: store.finish_turn(end, self.model.now)) == expected

    @invariant()
    def every_turn_stands_where_the_model_says(self) -> None:
        if not self.model.turns:
            return
        counts = self.ask(lambda store: store.running_turns(self.model.now))
        live = {turn_id for turn_id, turn in self.model.turns.items() if self.model.live(turn)}
        assert counts.get(self.listing, 0) == len(live)
        for turn_id, turn in self.model.turns.items():
            key = TurnKey(self.listing, "i", turn_id)
            seen = self.ask(lambda store, key=key: store.peek_turn(key, self.model.now))  # type: ignore[misc]
            if turn.reply is not None:
                assert seen == Answered(turn.reply)
            else:
                assert seen == (Running(turn.lease_until or 0) if turn_id in live else Free())


def test_every_history_goes_as_the_model_says(new_store: Callable[[], Store]) -> None:
    with asyncio.Runner() as runner:
        stores = new_store(), new_store()
        for store in stores:
            runner.run(store.open())
        try:
            run(
                lambda: TurnMachine(runner, stores),
                settings=settings(
                    max_examples=60,
                    stateful_step_count=40,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            for store in stores:
                runner.run(store.close())
