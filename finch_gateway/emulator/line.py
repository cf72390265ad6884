"""The line to a provider: one connection per request, bytes as given, the answer as it arrived.

Written on h11 alone: a client that decodes bodies, merges headers, mends targets or tries again would hide
the very faults that the checks look for.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from contextlib import suppress
from urllib.parse import urlsplit

import h11

from .exchange import Answer, Headers, Request
from .platform import NoAnswer

MAX_ANSWER_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024


class SocketLine:
    """Sends requests to the host of `base_url`, http or https; whatever path that URL has is not used."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError("a base URL is http:// or https://, a host, and no user")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._authority = parts.netloc

    async def send(self, request: Request, *, timeout_s: float) -> Answer:
        """Return the answer; follow nothing, retry nothing. Raises `NoAnswer`."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._exchange(request)
        except TimeoutError as error:
            raise NoAnswer(f"no answer within {timeout_s:.0f} s", request) from error
        except ssl.SSLError as error:
            raise NoAnswer(f"TLS failed: {error.reason or 'handshake refused'}", request) from error
        except OSError as error:
            raise NoAnswer(f"no connection: {_reason(error)}", request) from error
        except h11.RemoteProtocolError as error:
            raise NoAnswer("what came back is not one whole HTTP answer", request) from error
        return Answer(answer.status, answer.headers, answer.body, time.perf_counter() - started)

    async def _exchange(self, request: Request) -> Answer:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            http = h11.Connection(h11.CLIENT)
            # A provider may answer and hang up before it has read a body it refuses: its answer still counts.
            with suppress(ConnectionError):
                writer.write(self._bytes_of(http, request))
                await writer.drain()
            return await _read_answer(http, reader)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _bytes_of(self, http: h11.Connection, request: Request) -> bytes:
        headers = [("Host", self._authority), *request.headers, ("Connection", "close")]
        if request.body or request.method not in ("GET", "HEAD"):
            headers.append(("Content-Length", str(len(request.body))))
        head = http.send(h11.Request(method=request.method, target=request.target, headers=headers))
        body = http.send(h11.Data(data=request.body)) if request.body else b""
        end = http.send(h11.EndOfMessage())
        return (head or b"") + (body or b"") + (end or b"")


def _reason(error: OSError) -> str:
    # asyncio's own words for a refused connection name a call; the number tells it in the system's.
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or "the peer closed it"


async def _read_answer(http: h11.Connection, reader: asyncio.StreamReader) -> Answer:
    status, body = 0, bytearray()
    headers: Headers = ()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_ANSWER_BYTES:
                raise h11.RemoteProtocolError("the answer is too long")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status, headers, bytes(body))
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the connection closed before an answer")
