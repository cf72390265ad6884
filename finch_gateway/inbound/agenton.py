"""The endpoints of an AgentOn listing, one function each (wire 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ..engine.agents import ListedAgent
from ..engine.turns import TurnEngine
from ..errors import Refusal, StoreUnavailable
from ..store import Admission
from ..wire import replies
from ..wire.dispatch import Dispatch, read_dispatch
from .call import Answer, Call, Endpoint


class AgentOn:
    """One listing's endpoints by raw path."""

    def __init__(
        self,
        agent: ListedAgent,
        turns: TurnEngine,
        admission: Admission,
        is_ready: Callable[[str], Awaitable[bool]],
        clock: Callable[[], float],
    ) -> None:
        self._agent = agent
        self._turns = turns
        self._admission = admission
        self._is_ready = is_ready
        self._clock = clock
        paths = agent.listing.paths
        self._endpoints: Mapping[bytes, Mapping[bytes, Endpoint]] = {
            paths.health.encode(): {b"GET": self.health},
            paths.invoke.encode(): {b"POST": self.invoke},
        }

    def find(self, path: bytes) -> Mapping[bytes, Endpoint] | None:
        return self._endpoints.get(path)

    async def health(self, call: Call) -> Answer:
        """`GET /health`: ready, or unavailable while draining, without the store or without the agent (wire 3.1)."""
        try:
            fresh = await self._admission.spend(call.nonce.take(), self._clock())
        except StoreUnavailable:
            return Answer(503, replies.UNAVAILABLE)
        if not fresh:
            raise Refusal("auth_failed", reason="nonce_replayed")
        if await self._is_ready(call.listing.name):
            return Answer(200, replies.READY)
        return Answer(503, replies.UNAVAILABLE)

    async def invoke(self, call: Call) -> Answer:
        """`POST /invoke`: a turn is answered in full (P1)."""
        dispatch = read_dispatch(call.body, call.listing.wire_protocol)
        if dispatch.mode not in call.listing.modes:
            raise Refusal("interaction_mode_unsupported")
        _check_service_version(call, dispatch)
        reply = await self._turns.answer(self._agent, dispatch, call.revision, call.nonce.take, call.trace_id)
        return Answer(200, reply)


def _check_service_version(call: Call, dispatch: Dispatch) -> None:
    """Refuse a dispatch for another version than the credential's (wire 1.13)."""
    bound, named = call.revision.service_version_id, dispatch.facts.service_version_id
    if bound and named and bound != named:
        raise Refusal("service_version_mismatch")
