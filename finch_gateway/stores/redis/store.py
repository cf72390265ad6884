"""The store on Redis or Valkey: each method is one call of one script over one shared connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ...errors import ConfigError, StoreUnavailable
from ...store import (
    AdmissionVerdict,
    Answered,
    Delivery,
    DeliveryEnd,
    EventRow,
    Free,
    HeldTask,
    KnownRevision,
    Nonce,
    Replayed,
    Running,
    TaskAdmission,
    TaskChange,
    TaskRow,
    TurnClaim,
    TurnEnd,
    TurnKey,
    Verdict,
)
from . import operator, outbox, scripts, tasks, turns
from .address import SETTING, Address
from .checks import check_server, unreachable
from .connection import Limits, SharedConnection
from .failures import NotConnected, Refused
from .keys import nonce_name, tag_of
from .reading import Reply
from .replies import counts, nonsense, number, rows, text
from .scripts import Fact, Script, pack, word

_log = logging.getLogger(__name__)


class RedisStore:
    """A `Store` that several instances share.

    `warnings` holds, after `open`, what an operator should know of the server.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "finch",
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ConfigError.one("store.namespace", "a namespace is at least one character, without braces")
        self._address = Address(url)
        self._tag = word(tag_of(namespace))
        self._clock = clock
        loading = [pack(("SCRIPT", "LOAD", script.source)) for script in scripts.ALL]
        self.connection = SharedConnection(self._address, loading, limits or Limits())
        self.warnings: tuple[str, ...] = ()

    async def open(self) -> None:
        """Connect and check the server; raise `ConfigError` naming the setting and the remedy."""
        try:
            await self.connection.open()
        except NotConnected as error:
            raise unreachable(self._address, error) from None
        try:
            self.warnings = await check_server(self.connection, self._address, self._clock)
            await self.probe()
        except StoreUnavailable as error:
            await self.connection.close()
            remedy = "free its memory, see to its disk and its permissions, or name another server"
            raise ConfigError.one(SETTING, f"{self._address} takes no writes ({error}); {remedy}") from None
        except BaseException:
            await self.connection.close()
            raise
        for warning in self.warnings:
            _log.warning("store.warning", extra={"reason": warning})

    async def close(self) -> None:
        """Let the calls under way end, and disconnect."""
        await self.connection.close()

    # Admission

    async def spend(self, nonce: Nonce, now: float) -> bool:
        """Consume a nonce; False when it was consumed before by another operation."""
        return await self._run(scripts.SPEND, (now, nonce.op, nonce.expires_at), (nonce_name(nonce),)) == 1

    async def probe(self) -> None:
        """Write something small; raise `StoreUnavailable` when that fails."""
        if await self._run(scripts.PROBE) != 1:
            raise nonsense()

    # Turns

    async def claim_turn(self, claim: TurnClaim, now: float) -> Verdict:
        """Spend the claim's nonce, then say what is known of the turn or hand it over."""
        return turns.verdict(await self._run(scripts.CLAIM_TURN, *turns.claim(claim, now)))

    async def peek_turn(self, key: TurnKey, now: float) -> Running | Answered | Free:
        """Say where a turn stands, changing nothing."""
        return turns.standing(await self._run(scripts.PEEK_TURN, *turns.of(key, now)))

    async def renew_turn(self, key: TurnKey, epoch: int, lease_until: float, now: float) -> bool:
        """Move the lease's end; False when the epoch no longer holds the turn."""
        return await self._run(scripts.RENEW_TURN, *turns.of(key, now, epoch, lease_until)) == 1

    async def save_turn(self, key: TurnKey, epoch: int, saved: bytes, now: float) -> bool:
        """Keep what the agent saved; False when the epoch no longer holds the turn."""
        return await self._run(scripts.SAVE_TURN, *turns.of(key, now, epoch, raw=(saved,))) == 1

    async def release_turn(self, key: TurnKey, epoch: int, now: float) -> bool:
        """Give the turn back unanswered; True also for the same epoch once more."""
        return await self._run(scripts.RELEASE_TURN, *turns.of(key, now, epoch)) == 1

    async def finish_turn(self, end: TurnEnd, now: float) -> bool:
        """Write the answer and the conversation's record; True also for the same end once more."""
        return await self._run(scripts.FINISH_TURN, *turns.finish(end, now)) == 1

    # Tasks

    async def admit_task(self, admission: TaskAdmission, now: float) -> AdmissionVerdict:
        """Spend the nonce and accept the dispatch: task, receipt and first event, in one step."""
        return tasks.verdict(await self._run(scripts.ADMIT_TASK, *tasks.admit(admission, now)))

    async def read_task(self, task_id: str, listing: str, nonce: Nonce | None, now: float) -> TaskRow | Replayed | None:
        """Spend the nonce, if one is given, and return the task; None where the listing has no such task."""
        return tasks.seen(await self._run(scripts.READ_TASK, *tasks.read(task_id, listing, nonce, now)))

    async def lease_task(self, listing: str, op: str, lease_s: float, now: float) -> TaskRow | None:
        """Hand out a task whose lease ended, else the longest waiting one; None without one."""
        return tasks.row_or_none(await self._run(scripts.LEASE_TASK, (now, listing, op, now + lease_s)))

    async def renew_tasks(self, held: Sequence[HeldTask], lease_until: float, now: float) -> Sequence[HeldTask]:
        """Move the leases' end; return those that the epoch no longer holds."""
        return tasks.lost(await self._run(scripts.RENEW_TASKS, (lease_until, *tasks.held(held))), held)

    async def lost_tasks(self, held: Sequence[HeldTask]) -> Sequence[HeldTask]:
        """Return those that the epoch no longer holds, changing nothing."""
        return tasks.lost(await self._run(scripts.LOST_TASKS, tasks.held(held)), held)

    async def commit_task(self, change: TaskChange, now: float) -> bool:
        """Write a change and its event in one step; True also for the same `op` once more."""
        return await self._run(scripts.COMMIT_TASK, *tasks.commit(change, now)) == 1

    async def release_task(self, held: HeldTask, now: float) -> bool:
        """Give a held task back, without counting a crash; True also for the same epoch once more."""
        return await self._run(scripts.RELEASE_TASK, (now, held.task_id, held.epoch)) == 1

    async def due_tasks(self, now: float, limit: int) -> Sequence[TaskRow]:
        """Return open tasks whose deadline has come, longest overdue first."""
        return [tasks.row(one) for one in rows(await self._run(scripts.DUE_TASKS, (now, limit)))]

    # Outbox

    async def due_hosts(self, now: float) -> Sequence[str]:
        """Return the hosts that have an event due and not being delivered, longest due first."""
        return [text(host) for host in rows(await self._run(scripts.DUE_HOSTS, (now,)))]

    async def claim_events(self, host: str, op: str, claim_s: float, limit: int, now: float) -> Sequence[Delivery]:
        """Claim up to `limit` due events of a host; the same `op` again gets those it still has."""
        facts = (now, host, op, now + claim_s, limit)
        return outbox.deliveries(await self._run(scripts.CLAIM_EVENTS, facts), op)

    async def settle_event(self, delivery: Delivery, end: DeliveryEnd, now: float) -> bool:
        """Write how a claimed delivery ended; False when `op` no longer has the claim."""
        return await self._run(scripts.SETTLE_EVENT, *outbox.settle(delivery, end)) == 1

    # Operator

    async def register_revisions(self, revisions: Sequence[KnownRevision]) -> Sequence[KnownRevision]:
        """Record revisions not seen before; return those held under another fingerprint or listing."""
        told = operator.revisions(revisions)
        return operator.known_revisions(await self._run(scripts.REGISTER_REVISIONS, told))

    async def known_revisions(self) -> Sequence[KnownRevision]:
        """Return every revision this store has seen, oldest first."""
        known = operator.known_revisions(await self._run(scripts.KNOWN_REVISIONS))
        return sorted(known, key=lambda one: (one.first_seen, one.key_id))

    async def forget_revision(self, key_id: str) -> bool:
        """Drop a revision's record; False when it was not known."""
        return await self._run(scripts.FORGET_REVISION, (key_id,)) == 1

    async def running_turns(self, now: float) -> dict[str, int]:
        """Return the number of turns under a live lease by key id."""
        return counts(await self._run(scripts.RUNNING_TURNS, (now,)))

    async def open_tasks(self) -> dict[str, int]:
        """Return the number of open tasks by key id."""
        return counts(await self._run(scripts.OPEN_TASKS))

    async def list_tasks(self, listing: str | None, is_open: bool | None, limit: int) -> Sequence[TaskRow]:
        """Return tasks, newest first."""
        facts = (operator.one_or_all(listing), operator.one_kind_or_both(is_open), limit)
        return [tasks.row(one) for one in rows(await self._run(scripts.LIST_TASKS, facts))]

    async def list_events(self, task_id: str | None, is_dead: bool | None, limit: int) -> Sequence[EventRow]:
        """Return events that are still in the outbox, oldest first."""
        facts = (operator.one_or_all(task_id), operator.one_kind_or_both(is_dead), limit)
        return outbox.events(await self._run(scripts.LIST_EVENTS, facts))

    async def resend_event(self, task_id: str, sequence: int, now: float) -> bool:
        """Make an event due at once with a fresh schedule; False when it is not there."""
        return await self._run(scripts.RESEND_EVENT, (now, task_id, sequence)) == 1

    async def purge(self, now: float, limit: int) -> int:
        """Drop up to `limit` ended leases and ended tasks; everything else expires on the server by itself."""
        return number(await self._run(scripts.PURGE, (now, limit)))

    async def _run(self, script: Script, facts: tuple[Fact, ...] = (), raw: tuple[bytes, ...] = ()) -> Reply:
        answer = await self.connection.call(script.by_name(self._tag, facts, raw))
        if isinstance(answer, Refused) and answer.code == "NOSCRIPT":
            # The server's scripts were flushed; bringing the script along cannot fail the same way.
            answer = await self.connection.call(script.in_full(self._tag, facts, raw))
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer
