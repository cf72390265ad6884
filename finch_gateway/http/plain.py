"""Calls to the URLs that the operator configured; the only importer of the HTTP library.

The library's connection pool is used without a client around it: there are no redirects, cookies, proxies,
environment variables or headers of the library's own to be switched off.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import SplitResult, urlsplit

import httpcore2

from .outcome import FRAMING, KEEP_ALIVE_S, HttpAnswer, HttpFailed, Sending

_PORTS = {"http": 80, "https": 443}
# The words of h11 and httpcore2 for a connection that ended before the answer did.
_ENDED_EARLY = re.compile(r"disconnected|closed connection")


class PlainClient:
    """Calls URLs that the operator configured; at most `max_connections` calls run at once, others wait.

    With `keep_alive` off every call has a connection of its own, so none is lost on a line that the peer was
    just closing.
    """

    def __init__(self, *, max_connections: int = 64, keep_alive: bool = True) -> None:
        # Its debug lines hold targets with their queries, and headers.
        logging.getLogger("httpcore2").setLevel(logging.WARNING)
        self._keep_alive = keep_alive
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpcore2.default_ssl_context(),
            max_connections=max_connections,
            max_keepalive_connections=max_connections if keep_alive else 0,
            keepalive_expiry=KEEP_ALIVE_S,
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float,
        max_bytes: int,
        target: bytes | None = None,
    ) -> HttpAnswer:
        """Make one call, once; raise `HttpFailed`, and nothing else, when it gets no usable answer.

        `timeout_s` bounds the whole call, `max_bytes` the answer's body. Headers are sent as given, with
        `Host` and `Content-Length` added; `target`, when given, replaces the URL's path and query as it is.
        Redirects are answers like any other. A cancelled call closes its connection at once.
        """
        sending = Sending()
        try:
            request = self._request(method, url, headers or {}, body, target)
            request.extensions["trace"] = _watch(sending)
            async with asyncio.timeout(timeout_s):
                return await self._exchange(request, max_bytes)
        except TimeoutError:
            raise HttpFailed("timeout", sent=sending.sent) from None
        except _LIBRARY_ERRORS as error:
            # Without its cause: the library's text can hold a header's value.
            raise _failure(error, sent=sending.sent) from None

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.aclose()

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, target: bytes | None
    ) -> httpcore2.Request:
        parts, address = _address(url)
        if target is None:
            path = parts.path or "/"
            target = (f"{path}?{parts.query}" if parts.query else path).encode("ascii")
        names = {name.lower() for name in headers}
        if names & FRAMING:
            raise HttpFailed("protocol", sent=False, detail="the framing headers are not the caller's to set")
        lines = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        if "host" not in names:
            lines.insert(0, (b"Host", _authority(parts)))
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append((b"Content-Length", str(len(body)).encode()))
        if not self._keep_alive and "connection" not in names:
            lines.append((b"Connection", b"close"))
        place = httpcore2.URL(scheme=parts.scheme, host=address, port=parts.port, target=target)
        return httpcore2.Request(method, place, headers=lines, content=body)

    async def _exchange(self, request: httpcore2.Request, max_bytes: int) -> HttpAnswer:
        response = await self._pool.handle_async_request(request)
        try:
            body = bytearray()
            async for chunk in response.aiter_stream():
                if len(body) + len(chunk) > max_bytes:
                    raise HttpFailed("too_large", sent=True)
                body += chunk
        finally:
            await response.aclose()
        headers = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers)
        return HttpAnswer(response.status, headers, bytes(body))


def _watch(sending: Sending) -> Callable[[str, object], Awaitable[None]]:
    """Learn from the library when the first byte of a request is about to leave."""

    async def trace(event: str, _: object) -> None:
        if event == "http11.send_request_headers.started":
            sending.sent = True

    return trace


_LIBRARY_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    UnicodeError,  # a header or target that has no bytes on the wire
)


def _failure(error: Exception, *, sent: bool) -> HttpFailed:
    # The library checks a request's form before it writes any of it.
    if isinstance(error, httpcore2.LocalProtocolError | UnicodeError):
        return HttpFailed("protocol", sent=False, detail="the request's target or headers cannot be sent as they are")
    if not sent:
        return HttpFailed("connect", sent=False, detail=str(error))
    if isinstance(error, httpcore2.RemoteProtocolError) and not _ENDED_EARLY.search(str(error)):
        return HttpFailed("protocol", sent=True)
    return HttpFailed("dropped", sent=True)


def url_problem(url: str) -> str:
    """Say why `url` cannot be called, in words that repeat none of it; empty when it can."""
    try:
        parts, _ = _address(url)
        f"{parts.path}{parts.query}".encode("ascii")
    except HttpFailed as error:
        return error.detail
    except UnicodeError:
        return "the URL holds characters that must be percent-encoded"
    return ""


def _address(url: str) -> tuple[SplitResult, str]:
    """Split a URL and name the host to connect to."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        address = (host or "").encode("idna").decode("ascii")
    except ValueError:
        raise HttpFailed("protocol", sent=False, detail="the URL is malformed") from None
    if parts.scheme not in _PORTS or not address or port == 0:
        raise HttpFailed("protocol", sent=False, detail="the URL must be http:// or https:// with a host")
    if "@" in parts.netloc:
        raise HttpFailed("protocol", sent=False, detail="the URL must not hold a user name or password")
    return parts, address


def _authority(parts: SplitResult) -> bytes:
    host = (parts.hostname or "").encode("idna").decode("ascii")
    if ":" in host:
        host = f"[{host}]"
    has_port = parts.port is not None and parts.port != _PORTS[parts.scheme]
    return (f"{host}:{parts.port}" if has_port else host).encode("ascii")
