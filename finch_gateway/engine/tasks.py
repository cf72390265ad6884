"""P2 and P3 from Finch's side: accept, look up, answer, cancel (wire 6). Each is one durable step before its answer."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from hashlib import sha256

from ..errors import Refusal
from ..listing import Listing, Revision
from ..observe import Log
from ..store import Admitted, Conflict, Free, Nonce, QueueFull, Replayed, TaskAdmission, Tasks
from ..wire import task as life
from ..wire.destinations import DestinationRefused, OutboundRules, read_destination
from ..wire.dispatch import Dispatch, read_cancel, read_message
from .agents import ListedAgent, deadline_of
from .desk import Desk, TaskFile, event_of, index_of

YEAR_S = 365 * 86_400.0
TASK_ID_PREFIX = "task_"
TASK_ID_BYTES = 18
"""144 random bits behind a prefix: an id that is never mistaken for a command's option."""

RACES = 20
"""How often a move is tried again against a task that others move at the same time."""

_KEY_ID = re.compile(r"[!-~]{1,256}")

TakeNonce = Callable[[], Nonce]


class TaskEngine:
    """Answers everything Finch asks about tasks; one engine serves every listing of a process.

    `on_ready` is called with the listing's name when a task waits for a worker, `on_ended` with the task's id
    when Finch has ended one.
    """

    def __init__(
        self,
        store: Tasks,
        desk: Desk,
        rules: OutboundRules,
        log: Log,
        clock: Callable[[], float],
        *,
        retention_s: float,
        on_ready: Callable[[str], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self._store = store
        self._desk = desk
        self._rules = rules
        self._log = log
        self._clock = clock
        self._retention_s = retention_s
        self._on_ready = on_ready
        self._on_ended = on_ended
        self.draining = False

    async def accept(
        self,
        agent: ListedAgent,
        dispatch: Dispatch,
        body: bytes,
        revision: Revision,
        take_nonce: TakeNonce,
        trace_id: str = "",
    ) -> bytes:
        """Make the task durable and return its receipt, the same for every repeat (wire 6.1); raise `Refusal`."""
        if self.draining:
            raise Refusal("unavailable", reason="draining", retry_after_s=1)
        now = self._clock()
        task_id = TASK_ID_PREFIX + secrets.token_urlsafe(TASK_ID_BYTES)
        receiver, refused = read_receiver(dispatch, revision.key_id, self._rules)
        task = life.accepted(task_id, dispatch.invocation_id, dispatch.mode, now, receiver)
        receipt = life.receipt(dispatch.invocation_id, task.id, agent.listing.poll_after_ms)
        nonce = take_nonce()
        admission = TaskAdmission(
            task_id=task.id,
            listing=agent.listing.name,
            invocation_id=dispatch.invocation_id,
            key_id=revision.key_id,
            nonce=nonce,
            input_digest=dispatch.input_digest,
            op=nonce.op,
            dispatch=body,
            record=task.to_bytes(),
            index=index_of(task, deadline_of(agent.listing, dispatch, now), is_ready=True),
            event=event_of(task, now),
            receipt=receipt,
            max_queue=agent.listing.max_queue,
            # A repeat has its receipt whatever its callback says; only a new task needs one that can be used.
            may_start=revision.state == "current" and refused is None,
            receipt_until=now + YEAR_S,
            keep_until=now + self._retention_s,
        )
        ids = {
            "listing": agent.listing.name,
            "invocation_id": dispatch.invocation_id,
            "dispatch_id": dispatch.facts.dispatch_id,
            "key_id": revision.key_id,
            "trace_id": trace_id,
        }
        match await self._store.admit_task(admission, now):
            case Admitted(stored, is_new):
                if is_new:
                    self._log.info("task.accepted", merchant_task_id=task.id, **ids)
                    self._on_ready(agent.listing.name)
                else:
                    self._log.info("task.repeated", **ids)
                return stored
            case Replayed():
                raise Refusal("auth_failed", reason="nonce_replayed")
            case Conflict():
                raise Refusal("idempotency_conflict")
            case QueueFull():
                raise Refusal("queue_full", retry_after_s=5)
            case Free():
                raise refused or Refusal("auth_failed", reason="key_retiring")

    async def poll(self, listing: Listing, task_id: str, take_nonce: TakeNonce) -> bytes:
        """Return the task's snapshot (wire 6.3)."""
        file = await self._open(listing, task_id, take_nonce())
        return life.snapshot(file.task, listing.poll_after_ms)

    async def answer(
        self, listing: Listing, task_id: str, body: bytes, idempotency_key: str, take_nonce: TakeNonce
    ) -> bytes:
        """Take a message as the answer to the task's open questions; once, however often it comes (wire 6.4)."""
        nonce: Nonce | None = take_nonce()
        key = sha256(idempotency_key.encode()).hexdigest() if idempotency_key else ""
        taken = life.TakenInput(key, sha256(body).hexdigest())
        text: str | None = None
        for _ in range(RACES):
            file = await self._open(listing, task_id, nonce)
            nonce = None
            text = read_message(body) if text is None else text
            if taken in file.task.inputs:
                return life.message_taken(task_id)
            if key and any(known.key == key for known in file.task.inputs):
                raise Refusal("idempotency_conflict")
            if file.task.is_final:
                raise Refusal("task_terminal")
            if not file.is_waiting:
                raise Refusal("task_not_awaiting_input")
            moved = life.answer(file.task, text, taken)
            if await self._desk.commit(file, moved, epoch=None, keeps_lease=False, is_ready=True):
                self._report(file, "task.answered")
                self._on_ready(listing.name)
                return life.message_taken(task_id)
        raise Refusal("unavailable", reason="task_contended", retry_after_s=1)

    async def cancel(self, listing: Listing, task_id: str, body: bytes, take_nonce: TakeNonce) -> bytes:
        """End the task as canceled, at once and for good (wire 6.5)."""
        nonce: Nonce | None = take_nonce()
        for _ in range(RACES):
            file = await self._open(listing, task_id, nonce)
            nonce = None
            read_cancel(body)
            if file.task.state is life.State.CANCELED:
                return life.canceled(task_id, file.task.sequence)
            if file.task.is_final:
                raise Refusal("task_terminal")
            if await self._desk.commit(file, life.cancel(file.task), epoch=None, keeps_lease=False):
                self._report(file, "task.ended")
                self._on_ended(task_id)
                return life.canceled(task_id, file.task.sequence)
        raise Refusal("unavailable", reason="task_contended", retry_after_s=1)

    async def _open(self, listing: Listing, task_id: str, nonce: Nonce | None) -> TaskFile:
        row = await self._store.read_task(task_id, listing.name, nonce, self._clock())
        if isinstance(row, Replayed):
            raise Refusal("auth_failed", reason="nonce_replayed")
        if row is None:
            raise Refusal("task_not_found")
        return TaskFile.of(row)

    def _report(self, file: TaskFile, name: str) -> None:
        self._log.info(
            name,
            listing=file.row.listing,
            invocation_id=file.row.invocation_id,
            merchant_task_id=file.row.task_id,
            key_id=file.row.key_id,
            status=file.task.state.value,
            sequence=file.task.sequence,
        )


def read_receiver(dispatch: Dispatch, key_id: str, rules: OutboundRules) -> tuple[life.Receiver | None, Refusal | None]:
    """Return where a dispatch wants its events, or the refusal of what it names instead (wire 7.5, 9.1).

    A dispatch that names no callback key id has its events signed under its own.
    """
    callback = dispatch.callback
    if callback is None:
        return None, None
    named = callback.callback_key_id or key_id
    if not _KEY_ID.fullmatch(named):
        detail = "The envelope is not valid: callback.callback_key_id is not 1 to 256 visible ASCII characters."
        return None, Refusal("envelope_invalid", reason="callback_key_id", detail=detail)
    try:
        destination = read_destination(callback.url, rules)
    except DestinationRefused as error:
        detail = f"The envelope is not valid: callback.url {error.reason}."
        return None, Refusal("envelope_invalid", reason="callback_url", detail=detail)
    return life.Receiver(callback.url, destination.host, named), None
