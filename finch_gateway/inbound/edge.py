"""The door: the outermost ASGI layer. It alone verifies, and it alone signs (wire 1.6, 1.7, 2.1).

A request's way through it, numbered as in wire 1.6:
 1 target → listing   2 the headers' form   3 the key id   4 skew   5 the body   6 the signature
 7 the nonce, handed to the endpoint; what comes back unspent is spent here before the answer leaves.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from ..errors import Refusal, StoreUnavailable
from ..listing import Listing, Revision
from ..observe import Log, Sampler, blame
from ..store import Admission, Nonce
from ..wire import signing
from .body import CallerGone, Receive, UnverifiedBudget, discard_body, read_body
from .call import Answer, Call, Endpoints, Headers, NonceTicket, refused
from .capture import Capture

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope: TypeAlias = MutableMapping[str, Any]

TARGET_KEY = "finch_gateway.target"
"""Where a parser that cuts the target puts it whole (see `inbound.parsers`)."""

_NOT_FOUND = b'{"code":"not_found","message":"There is no such endpoint."}'
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Mount:
    """A listing's place at the door."""

    listing: Listing
    endpoints: Endpoints


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What an unproven caller may use."""

    max_body_bytes: int
    body_timeout_s: float
    max_unverified_bytes: int


class Request(msgspec.Struct, frozen=True):
    """A request as it came over the wire, before anything is believed. `target` is what the caller signed."""

    method: bytes
    local_target: bytes
    target: bytes
    headers: Headers
    first: Mapping[bytes, bytes]

    @classmethod
    def of(cls, scope: Scope, public_prefix: bytes) -> Request:
        local = scope.get(TARGET_KEY)
        if local is None:
            local = scope["raw_path"]
            # Some in-process clients leave the query inside `raw_path`; servers never do.
            if scope["query_string"] and b"?" not in local:
                local = local + b"?" + scope["query_string"]
        headers: Headers = list(scope["headers"])
        return cls(scope["method"].encode("latin-1"), local, public_prefix + local, headers, dict(reversed(headers)))

    @property
    def path(self) -> bytes:
        return self.local_target.partition(b"?")[0]

    def header(self, name: bytes) -> bytes:
        """Return the first value under a lowercase name, empty where there is none."""
        return self.first.get(name, b"")

    @property
    def announces_body(self) -> bool:
        return b"transfer-encoding" in self.first or self.header(b"content-length").strip() not in (b"", b"0")

    @property
    def trace_id(self) -> str:
        match = _TRACEPARENT.fullmatch(self.header(b"traceparent"))
        return match.group(1).decode() if match else ""


class Edge:
    """Verifies each request under a listing's mount, hands it on as a `Call`, signs whatever comes back."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        admission: Admission,
        limits: DoorLimits,
        log: Log,
        *,
        clock: Callable[[], float],
        public_prefix: str = "",
        capture: Capture | None = None,
    ) -> None:
        self._mounts = [(mount.listing.mount.encode(), mount) for mount in mounts]
        self._admission = admission
        self._limits = limits
        self._budget = UnverifiedBudget(limits.max_unverified_bytes)
        self._log = log
        self._sampler = Sampler()
        self._clock = clock
        self._public_prefix = public_prefix.encode()
        self._capture = capture

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request.of(scope, self._public_prefix)
        mount = self._find_mount(request.path)
        if mount is None:
            await _send(send, request, 404, [(b"content-length", str(len(_NOT_FOUND)).encode())], _NOT_FOUND)
            return
        try:
            answer, whole = await self._answer(request, mount, receive)
        except CallerGone:
            self._log.debug("request.abandoned", listing=mount.listing.name)
            return
        headers = self._sign(request, mount.listing, answer)
        if whole:
            await _send(send, request, answer.status, headers, answer.body)
        else:
            await self._send_early(send, receive, request, answer, headers)

    def _find_mount(self, path: bytes) -> Mount | None:
        """Step 1. Mounts are no prefixes of each other, so the first match is the only one."""
        for prefix, mount in self._mounts:
            if path.startswith(prefix) and (len(path) == len(prefix) or path[len(prefix)] == ord("/")):
                return mount
        return None

    async def _answer(self, request: Request, mount: Mount, receive: Receive) -> tuple[Answer, bool]:
        """Return the answer, and whether the request's body was read to its end before it."""
        whole = not request.announces_body
        body = b""
        try:
            revision, claim = self._check_head(request, mount.listing)
            with self._budget.share() as share:
                if not whole:
                    body = await read_body(
                        receive,
                        share,
                        limit_bytes=self._limits.max_body_bytes,
                        timeout_s=self._limits.body_timeout_s,
                    )
                    whole = True
                self._check_body(request, revision, claim, body)
        except Refusal as refusal:
            self._note_refusal(request, mount.listing, refusal, body)
            return refused(refusal), whole
        nonce = Nonce(claim.key_id, claim.nonce, claim.timestamp + signing.NONCE_MEMORY_S, signing.issue_nonce())
        path = request.path[len(mount.listing.mount) :]
        call = Call(
            mount.listing,
            revision,
            request.method,
            path,
            body,
            NonceTicket(nonce),
            request.trace_id,
            request.header(b"idempotency-key").decode("latin-1"),
        )
        return await self._enter(request, mount, call), True

    def _check_head(self, request: Request, listing: Listing) -> tuple[Revision, signing.Claim]:
        """Steps 1 to 4, before the first body byte."""
        try:
            if b"#" in request.local_target:
                raise signing.Unverified("target_malformed")
            claim = signing.read_claim(request.headers)
            revision = listing.revisions.get(claim.key_id)
            if revision is None:
                raise signing.Unverified("key_unknown")
            if revision.state == "revoked":
                raise signing.Unverified("key_revoked")
            signing.check_skew(claim, self._clock())
        except signing.Unverified as error:
            raise Refusal("auth_failed", reason=error.reason) from error
        if request.header(b"content-encoding").strip().lower() not in (b"", b"identity"):
            raise Refusal("encoding_unsupported")
        return revision, claim

    def _check_body(self, request: Request, revision: Revision, claim: signing.Claim, body: bytes) -> None:
        """Step 6, and wire 1.8: a GET that carries a body is refused."""
        try:
            signing.check_signature(revision.request_key, claim, request.method, request.target, body)
        except signing.Unverified as error:
            raise Refusal("auth_failed", reason=error.reason) from error
        if body and request.method == b"GET":
            raise Refusal("auth_failed", reason="get_with_body")

    async def _enter(self, request: Request, mount: Mount, call: Call) -> Answer:
        """Step 7: the endpoint answers; a nonce it did not take is spent before that answer leaves."""
        try:
            answer = await self._call(mount.endpoints, call)
        except Refusal as refusal:
            self._note_refusal(request, mount.listing, refusal, call.body)
            answer = refused(refusal)
        except StoreUnavailable:
            self._note_refusal(request, mount.listing, Refusal("unavailable", reason="store_away"), call.body)
            return refused(Refusal("unavailable", retry_after_s=1))
        except Exception as error:
            # The one net under every endpoint: whatever it is, the caller gets a signed 500 and no word of it.
            self._log.error("request.failed", listing=mount.listing.name, **blame(error))
            answer = refused(Refusal("internal_error"))
        if call.nonce.taken:
            return answer
        return await self._spend(request, call, answer)

    async def _call(self, endpoints: Endpoints, call: Call) -> Answer:
        methods = endpoints.find(call.path)
        if methods is None:
            raise Refusal("not_found")
        endpoint = methods.get(call.method)
        if endpoint is None:
            raise Refusal("method_not_allowed")
        return await endpoint(call)

    async def _spend(self, request: Request, call: Call, answer: Answer) -> Answer:
        try:
            fresh = await self._admission.spend(call.nonce.take(), self._clock())
        except StoreUnavailable:
            self._note_refusal(request, call.listing, Refusal("unavailable", reason="store_away"), call.body)
            return refused(Refusal("unavailable", retry_after_s=1))
        if fresh:
            return answer
        refusal = Refusal("auth_failed", reason="nonce_replayed")
        self._note_refusal(request, call.listing, refusal, call.body)
        return refused(refusal)

    def _sign(self, request: Request, listing: Listing, answer: Answer) -> Headers:
        """Sign the exact bytes that leave, under the request's revision or, where it names none, the current one."""
        named = request.header(b"x-platform-key-id").strip(b" \t").decode("latin-1")
        revision = listing.revisions.get(named) or listing.current
        body = b"" if request.method == b"HEAD" else answer.body
        signature = signing.answer_headers(
            revision.request_key,
            revision.key_id,
            request.method,
            request.target,
            body,
            now=self._clock(),
            nonce=signing.issue_nonce(),
        )
        return [(b"content-length", str(len(body)).encode()), *answer.headers, *signature]

    async def _send_early(
        self, send: Send, receive: Receive, request: Request, answer: Answer, headers: Headers
    ) -> None:
        """Answer before the body has come: the answer is whole at once, then the rest is read and thrown away."""
        await _send(send, request, answer.status, [*headers, (b"connection", b"close")], answer.body, more=True)
        await discard_body(receive, limit_bytes=self._limits.max_body_bytes)
        await send({"type": "http.response.body", "body": b""})

    def _note_refusal(self, request: Request, listing: Listing, refusal: Refusal, body: bytes) -> None:
        log_it, held_back = self._sampler.admit(refusal.reason)
        if held_back:
            self._log.warning("request.refused.sampled", held_back=held_back)
        if log_it:
            self._log.warning(
                "request.refused",
                listing=listing.name,
                code=refusal.code,
                reason=refusal.reason,
                key_id=request.header(b"x-platform-key-id").decode("latin-1"),
                method=request.method.decode("latin-1"),
                path=request.path.decode("latin-1"),
                trace_id=request.trace_id,
            )
        if self._capture is not None:
            self._capture.keep(request.method, request.target, request.headers, body, refusal)


async def _send(
    send: Send, request: Request, status: int, headers: Headers, body: bytes, *, more: bool = False
) -> None:
    if request.method == b"HEAD":
        body = b""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"cache-control", b"no-store, no-transform"),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": more})
