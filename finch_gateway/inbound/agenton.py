"""The endpoints of an AgentOn listing, one function each (wire 3)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from ..engine.agents import ListedAgent
from ..engine.tasks import TaskEngine
from ..engine.turns import TurnEngine
from ..errors import Refusal, StoreUnavailable
from ..store import Admission
from ..wire import replies
from ..wire.dispatch import Dispatch, read_dispatch
from .call import Answer, Call, Endpoint

_TASK_ID = re.compile(rb"[A-Za-z0-9_-]{16,64}")
_PLACEHOLDER = "{merchant_task_id}"


class AgentOn:
    """One listing's endpoints by raw path."""

    def __init__(
        self,
        agent: ListedAgent,
        turns: TurnEngine,
        tasks: TaskEngine,
        admission: Admission,
        is_ready: Callable[[str], Awaitable[bool]],
        clock: Callable[[], float],
    ) -> None:
        self._agent = agent
        self._turns = turns
        self._tasks = tasks
        self._admission = admission
        self._is_ready = is_ready
        self._clock = clock
        paths = agent.listing.paths
        self._endpoints: Mapping[bytes, Mapping[bytes, Endpoint]] = {
            paths.health.encode(): {b"GET": self.health},
            paths.invoke.encode(): {b"POST": self.invoke},
        }
        self._task_endpoints = [
            (_around_task_id(paths.task), b"GET", self.poll),
            (_around_task_id(paths.messages), b"POST", self.message),
            (_around_task_id(paths.cancel), b"POST", self.cancel),
        ]

    def find(self, path: bytes) -> Mapping[bytes, Endpoint] | None:
        if exact := self._endpoints.get(path):
            return exact
        for form, method, endpoint in self._task_endpoints:
            if match := form.fullmatch(path):
                return {method: partial(endpoint, match.group(1))}
        return None

    async def health(self, call: Call) -> Answer:
        """`GET /health`: ready, or unavailable while draining, without the store or without the agent (wire 3.1)."""
        try:
            fresh = await self._admission.spend(call.nonce.take(), self._clock())
        except StoreUnavailable:
            # Asked all the same, so that the board notices and the log says since when.
            await self._is_ready(call.listing.name)
            return Answer(503, replies.UNAVAILABLE)
        if not fresh:
            raise Refusal("auth_failed", reason="nonce_replayed")
        if await self._is_ready(call.listing.name):
            return Answer(200, replies.READY)
        return Answer(503, replies.UNAVAILABLE)

    async def invoke(self, call: Call) -> Answer:
        """`POST /invoke`: a turn is answered in full (P1), a task or a generation is accepted (P2, P3)."""
        dispatch = read_dispatch(call.body, call.listing.wire_protocol)
        if dispatch.mode not in call.listing.modes:
            raise Refusal("interaction_mode_unsupported")
        _check_service_version(call, dispatch)
        take = call.nonce.take
        if dispatch.mode == "conversation_turn":
            reply = await self._turns.answer(self._agent, dispatch, call.body, call.revision, take, call.trace_id)
            return Answer(200, reply)
        receipt = await self._tasks.accept(self._agent, dispatch, call.body, call.revision, take, call.trace_id)
        return Answer(202, receipt)

    async def poll(self, task_id: bytes, call: Call) -> Answer:
        """`GET /tasks/{merchant_task_id}`: the task's snapshot."""
        return Answer(200, await self._tasks.poll(call.listing, _checked(task_id), call.nonce.take))

    async def message(self, task_id: bytes, call: Call) -> Answer:
        """`POST /tasks/{merchant_task_id}/messages`: the buyer's answer to what the task asked."""
        body, key = call.body, call.idempotency_key
        taken = await self._tasks.answer(call.listing, _checked(task_id), body, key, call.nonce.take)
        return Answer(202, taken)

    async def cancel(self, task_id: bytes, call: Call) -> Answer:
        """`POST /tasks/{merchant_task_id}/cancel`: the buyer wants no more of it."""
        return Answer(200, await self._tasks.cancel(call.listing, _checked(task_id), call.body, call.nonce.take))


def _around_task_id(template: str) -> re.Pattern[bytes]:
    before, _, after = template.partition(_PLACEHOLDER)
    return re.compile(re.escape(before.encode()) + rb"([^/]+)" + re.escape(after.encode()))


def _checked(task_id: bytes) -> str:
    """Return an id of the form we give; any other is nobody's, and never reaches the store."""
    if not _TASK_ID.fullmatch(task_id):
        raise Refusal("task_not_found")
    return task_id.decode()


def _check_service_version(call: Call, dispatch: Dispatch) -> None:
    """Refuse a dispatch for another version than the credential's (wire 1.13)."""
    bound, named = call.revision.service_version_id, dispatch.facts.service_version_id
    if bound and named and bound != named:
        raise Refusal("service_version_mismatch")
