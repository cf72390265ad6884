"""Finch's runtime side: sends signed calls to a provider and proves every answer before looking at it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID, uuid4

from .envelopes import (
    CONTRACT_TEST_TEXT,
    Call,
    JsonObject,
    Mode,
    Sale,
    cancel_of,
    encode,
    envelope_of,
    message_of,
    new_invocation_id,
)
from .exchange import Answer, Exchange, Headers, Request
from .signer import Credential, Distrust, WireProtocol, sign_request, verify_answer

HEALTH_TIMEOUT_S = 10.0
_OWN_MARGIN_S = 5.0
_ACCEPT: Headers = (("Accept", "application/json"),)


class NoAnswer(Exception):
    """A request got no HTTP answer; the message is one line and names no URL query."""

    def __init__(self, reason: str, request: Request) -> None:
        super().__init__(reason)
        self.request = request


class Line(Protocol):
    """Carries one request to the provider, byte for byte, and its answer back, undecoded."""

    async def send(self, request: Request, *, timeout_s: float) -> Answer:
        """Return the answer; follow nothing, retry nothing. Raises `NoAnswer`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listing as it is registered with Finch.

    `mount` is the path that is sent; `public_prefix` stands before it in what is signed, where a proxy strips
    it on the way (wire 1.2).
    """

    name: str
    wire_protocol: WireProtocol
    credential: Credential
    mount: str
    health_path: str = "/health"
    invoke_path: str = "/invoke"
    task_path: str = "/tasks/{merchant_task_id}"
    messages_path: str = "/tasks/{merchant_task_id}/messages"
    cancel_path: str = "/tasks/{merchant_task_id}/cancel"
    public_prefix: str = ""
    service_version_id: str = ""

    @property
    def health(self) -> str:
        return self.mount + self.health_path

    @property
    def invoke(self) -> str:
        return self.mount + self.invoke_path

    def task(self, task_id: str) -> str:
        return self.mount + self.task_path.format(merchant_task_id=task_id)

    def messages(self, task_id: str) -> str:
        return self.mount + self.messages_path.format(merchant_task_id=task_id)

    def cancel(self, task_id: str) -> str:
        return self.mount + self.cancel_path.format(merchant_task_id=task_id)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request before it is signed; whatever is given here differs from what honest Finch would do.

    `signed_target` and `signed_body` are what the signature covers where that is not what is sent.
    """

    method: str
    target: str
    body: bytes = b""
    headers: Headers = ()
    signed_target: str | None = None
    signed_body: bytes | None = None
    credential: Credential | None = None
    timestamp: int | None = None
    nonce: str | None = None


class Platform:
    """Finch as one listing meets it."""

    def __init__(
        self,
        endpoint: Endpoint,
        line: Line,
        *,
        clock: Callable[[], float] = time.time,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        self.endpoint = endpoint
        self.clock = clock
        self.new_uuid = new_uuid
        self.sale = Sale.invented(new_uuid, endpoint.service_version_id)
        self._line = line
        self._seen_nonces: set[str] = set()

    def new_call(
        self,
        text: str = CONTRACT_TEST_TEXT,
        *,
        deadline_s: float,
        mode: Mode = "conversation_turn",
        conversation_id: str = "",
        history: tuple[JsonObject, ...] = (),
        contract_test: bool = False,
    ) -> Call:
        """Return a new call for work in the listing's wire protocol; a task's own callback URL is set afterwards."""
        endpoint = self.endpoint
        return Call(
            wire_protocol=endpoint.wire_protocol,
            sale=self.sale,
            invocation_id=new_invocation_id(endpoint.wire_protocol, self.new_uuid),
            dispatch_id=str(self.new_uuid()),
            callback_key_id=endpoint.credential.key_id,
            deadline=self.clock() + deadline_s,
            text=text,
            mode=mode,
            conversation_id=conversation_id or str(self.new_uuid()),
            turn_id=str(self.new_uuid()),
            message_id=str(self.new_uuid()),
            history=history,
            contract_test=contract_test,
        )

    def another_attempt(self, call: Call, *, later_s: float = 0.0) -> Call:
        """Return Finch's controlled retry of a call: another dispatch, maybe another deadline (wire 5.2)."""
        return replace(call, dispatch_id=str(self.new_uuid()), deadline=call.deadline + later_s)

    async def health(self) -> Exchange:
        """Make the signed health call, which carries the four headers alone (wire 2.4)."""
        return await self.perform(Outgoing("GET", self.endpoint.health))

    async def invoke(self, call: Call, *, headers: Headers = ()) -> Exchange:
        """Dispatch a call and wait for its answer until a little after its deadline."""
        patience_s = max(call.deadline - self.clock(), 0.0) + _OWN_MARGIN_S
        return await self.perform(self.dispatch(encode(envelope_of(call)), headers=headers), timeout_s=patience_s)

    async def start(self, call: Call) -> Exchange:
        """Dispatch a task or generation, which is acknowledged at once (wire 6.1)."""
        return await self.perform(self.dispatch(encode(envelope_of(call)), headers=_ACCEPT))

    async def poll(self, task_id: str, *, key: str = "") -> Exchange:
        """Ask for a task's snapshot (wire 6.3)."""
        return await self.perform(self.poll_call(task_id, key=key))

    async def answer(self, task_id: str, text: str, *, key: str = "") -> Exchange:
        """Answer a task's questions; the same `key` makes it the same answer (wire 6.4)."""
        return await self.perform(self.answer_call(task_id, encode(message_of(self.sale.finch_task_id, text)), key=key))

    async def cancel(self, task_id: str, reason: str = "The buyer changed their mind.") -> Exchange:
        """End a task (wire 6.5)."""
        return await self.perform(self.cancel_call(task_id, encode(cancel_of(reason))))

    def dispatch(self, body: bytes, *, headers: Headers = ()) -> Outgoing:
        """Return the POST to invoke that carries `body`, with the headers of a P1 call (wire 2.4)."""
        return Outgoing("POST", self.endpoint.invoke, body, self._json_headers() + headers)

    def poll_call(self, task_id: str, *, key: str = "") -> Outgoing:
        """Return the GET that polls; it carries an Idempotency-Key like every call of a task (wire 6.3)."""
        headers = (*_ACCEPT, ("Idempotency-Key", key or str(self.new_uuid())))
        return Outgoing("GET", self.endpoint.task(task_id), headers=headers)

    def answer_call(self, task_id: str, body: bytes, *, key: str = "") -> Outgoing:
        """Return the POST that carries a supplemental message."""
        return Outgoing("POST", self.endpoint.messages(task_id), body, self._json_headers(key) + _ACCEPT)

    def cancel_call(self, task_id: str, body: bytes) -> Outgoing:
        """Return the POST that cancels."""
        return Outgoing("POST", self.endpoint.cancel(task_id), body, self._json_headers() + _ACCEPT)

    def _json_headers(self, key: str = "") -> Headers:
        return (("Content-Type", "application/json"), ("Idempotency-Key", key or str(self.new_uuid())))

    def sign(self, outgoing: Outgoing) -> Request:
        """Return the request that an outgoing call becomes, signed now under a fresh nonce."""
        target = outgoing.target if outgoing.signed_target is None else outgoing.signed_target
        four = sign_request(
            outgoing.credential or self.endpoint.credential,
            outgoing.method,
            self.endpoint.public_prefix + target,
            outgoing.body if outgoing.signed_body is None else outgoing.signed_body,
            timestamp=int(self.clock()) if outgoing.timestamp is None else outgoing.timestamp,
            nonce=self.new_uuid().hex if outgoing.nonce is None else outgoing.nonce,
        )
        return Request(outgoing.method, outgoing.target, four + outgoing.headers, outgoing.body)

    async def perform(self, outgoing: Outgoing, *, timeout_s: float = HEALTH_TIMEOUT_S) -> Exchange:
        """Sign and send a call; return it with its answer and what the answer's signature is worth."""
        return await self.send(self.sign(outgoing), timeout_s=timeout_s)

    async def send(self, request: Request, *, timeout_s: float = HEALTH_TIMEOUT_S) -> Exchange:
        """Send a request as it is. Whatever it was, the answer must be signed by the listing (wire 2.1)."""
        answer = await self._line.send(request, timeout_s=timeout_s)
        return Exchange(request, answer, self._distrust(request, answer))

    def _distrust(self, request: Request, answer: Answer) -> str:
        target = self.endpoint.public_prefix + request.target
        try:
            nonce = verify_answer(self.endpoint.credential, request.method, target, answer, now=self.clock())
        except Distrust as error:
            return str(error)
        if nonce in self._seen_nonces:
            return "X-Agent-Nonce was used for another answer before"
        self._seen_nonces.add(nonce)
        return ""
