"""P1: one run and one answer per turn, over attempts, instances and crashes (wire 5)."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Refusal, StoreUnavailable
from ..listing import Revision
from ..observe import Log
from ..store import Answered, Conflict, Free, Held, Nonce, Replayed, Running, TurnClaim, TurnKey, Turns, Verdict
from ..wire.dispatch import Dispatch
from ..wire.signing import issue_nonce
from .agents import ListedAgent, deadline_of
from .attempt import Attempt
from .holding import Holdings
from .turn_run import TurnRun

MARGIN_SHARE = 0.15
MAX_MARGIN_S = 1.0
"""The reply leaves this much before the deadline: 15 % of what was left, at most a second (wire 5.3)."""

FIRST_LOOK_S = 0.05
SLOWEST_LOOK_S = 0.5


class TurnEngine:
    """Answers synchronous turns; one engine serves every listing of a process.

    `lease_s` is how long a turn is held without a sign of life, `retention_s` how long answers are kept.
    """

    def __init__(
        self, store: Turns, log: Log, clock: Callable[[], float], *, lease_s: float, retention_s: float
    ) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._lease_s = lease_s
        self._retention_s = retention_s
        self.holdings = Holdings(store, lease_s, log, clock)
        self._turn_run = TurnRun(store, self.holdings, log, clock, retention_s)

    async def answer(
        self,
        agent: ListedAgent,
        dispatch: Dispatch,
        body: bytes,
        revision: Revision,
        take_nonce: Callable[[], Nonce],
        trace_id: str = "",
    ) -> bytes:
        """Return the turn's one reply (wire 5.2).

        Raises `Refusal` where the attempt cannot be answered with a reply, and `StoreUnavailable`.
        """
        if self.holdings.draining:
            raise Refusal("unavailable", reason="draining", retry_after_s=1)
        attempt = self._attempt(agent, dispatch, body, revision, trace_id)
        nonce: Nonce | None = take_nonce()
        while True:
            reply = await self._claim_and_run(attempt, nonce) or await self._wait(attempt)
            if reply is not None:
                return reply
            nonce = None

    def _attempt(
        self, agent: ListedAgent, dispatch: Dispatch, body: bytes, revision: Revision, trace_id: str
    ) -> Attempt:
        now = self._clock()
        deadline = deadline_of(agent.listing, dispatch, now)
        margin = min(MAX_MARGIN_S, MARGIN_SHARE * max(0.0, deadline - now))
        key = TurnKey(agent.listing.name, dispatch.invocation_id, dispatch.conversation.turn_id)
        return Attempt(agent, dispatch, body, revision, key, now, deadline, deadline - margin, trace_id)

    async def _claim_and_run(self, attempt: Attempt, nonce: Nonce | None) -> bytes | None:
        """Return the stored answer, or run the turn; None while another attempt holds it."""
        # The slot is taken before the claim, so that a turn once claimed can start. A waiting repeat has none.
        # Where this process still runs the turn, a lease that ended in an outage of the store is no crash.
        runs_here = self.holdings.holds(attempt.key)
        slot = attempt.revision.state == "current" and not runs_here and attempt.agent.take_slot()
        verdict: Verdict | None = None
        try:
            verdict = await self._claim(attempt, nonce, may_start=slot)
        finally:
            if slot and not isinstance(verdict, Held):
                attempt.agent.give_slot()
        match verdict:
            case Held():
                return await self._turn_run.run(attempt, verdict)
            case Answered(reply):
                self._log.info("turn.repeated", **attempt.ids)
                return reply
            case Running():
                return None
            case Replayed():
                raise Refusal("auth_failed", reason="nonce_replayed")
            case Conflict():
                raise Refusal("idempotency_conflict")
            case Free() if runs_here:
                return None
            case Free():
                if attempt.revision.state == "retiring":
                    raise Refusal("auth_failed", reason="key_retiring")
                raise Refusal("overloaded", reason="running_turns", retry_after_s=1)

    async def _claim(self, attempt: Attempt, nonce: Nonce | None, *, may_start: bool) -> Verdict:
        now = self._clock()
        claim = TurnClaim(
            key=attempt.key,
            nonce=nonce,
            input_digest=attempt.dispatch.input_digest,
            key_id=attempt.revision.key_id,
            conversation_id=attempt.dispatch.conversation.conversation_id,
            op=nonce.op if nonce else issue_nonce(),
            lease_s=self._lease_s,
            keep_until=now + self._retention_s,
            may_start=may_start,
            facts=attempt.dispatch.facts.to_bytes(),
        )
        try:
            return await self._store.claim_turn(claim, now)
        except StoreUnavailable:
            if may_start:
                # It may be claimed all the same; left so, it would look like a crash to the next attempt.
                self.holdings.give_back_later(claim)
            raise

    async def _wait(self, attempt: Attempt) -> bytes | None:
        """Wait for the attempt that holds the turn; None when its lease ended and the turn can be claimed."""
        patience_s = FIRST_LOOK_S
        # Half a margin later than the holder's own cut-off, so that the holder's answer is still seen.
        last_look = (attempt.cutoff + attempt.deadline) / 2
        while (left_s := last_look - self._clock()) > 0 and not self.holdings.interrupting:
            await self.holdings.next_answer(attempt.key, min(patience_s, left_s))
            patience_s = min(patience_s * 1.5, SLOWEST_LOOK_S)
            seen = await self._store.peek_turn(attempt.key, self._clock())
            if isinstance(seen, Answered):
                self._log.info("turn.repeated", waited_s=round(self._clock() - attempt.began, 3), **attempt.ids)
                return seen.reply
            if isinstance(seen, Free) and not self.holdings.holds(attempt.key):
                return None
        raise Refusal("unavailable", reason="turn_still_running", retry_after_s=1)
