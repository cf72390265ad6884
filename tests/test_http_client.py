"""The plain HTTP client: what goes over the wire, what comes back, and what a failure says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from finch_gateway.http import HttpAnswer, HttpFailed, PlainClient, url_problem

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def peer(handler: Handler) -> AsyncIterator[str]:
    """Serve `handler` on a free port; a connection that the client ends is the handler's normal end."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def client(**options: object) -> AsyncIterator[PlainClient]:
    made = PlainClient(**options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.split(b":")[1]))
    return head


def answering(*answers: bytes) -> Handler:
    """Answer each request on a connection with the next of `answers`, then close it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()

    return handle


async def get(caller: PlainClient, url: str, **changes: object) -> HttpAnswer:
    options: dict[str, object] = {"timeout_s": 5.0, "max_bytes": 1_000, **changes}
    return await caller.send("GET", url, **options)  # type: ignore[arg-type]


async def failure(call: Awaitable[HttpAnswer]) -> HttpFailed:
    with pytest.raises(HttpFailed) as caught:
        await call
    return caught.value


async def test_sends_exactly_the_given_headers_with_host_and_length() -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)

    async with peer(handle) as url, client() as caller:
        answer = await caller.send(
            "POST", f"{url}/a?b=1", headers={"X-One": "1"}, body=b"body", timeout_s=5, max_bytes=10
        )
    assert answer == HttpAnswer(200, (("content-length", "2"),), b"ok")
    host = url.removeprefix("http://").encode()
    assert seen == [
        b"POST /a?b=1 HTTP/1.1\r\nHost: " + host + b"\r\nX-One: 1\r\nContent-Length: 4\r\n\r\nbody",
    ]


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_an_empty_body_has_a_length_and_is_not_chunked(method: str) -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)

    async with peer(handle) as url, client() as caller:
        await caller.send(method, url, timeout_s=5, max_bytes=10)
    assert b"\r\nContent-Length: 0\r\n" in seen[0]
    assert b"chunked" not in seen[0].lower()


@pytest.mark.parametrize("target", [b"/a%2Fb//c?x=%C3%A9&y=[1]&&", b"/?", b"/A/../b;p?q={}|^`"])
async def test_target_bytes_leave_unchanged(target: bytes) -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)

    async with peer(handle) as url, client() as caller:
        await get(caller, f"{url}/other", target=target)
    assert seen[0].split(b" ")[1] == target


async def test_redirects_are_answers_and_cookies_are_forgotten() -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            seen.append(await read_request(reader))
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /else\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n")

    async with peer(handle) as url, client() as caller:
        assert [(await get(caller, url)).status for _ in range(2)] == [302, 302]
    assert len(seen) == 2
    assert not any(b"cookie" in request.lower() for request in seen)


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    canary: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        canary.append(await reader.read(100))

    async with peer(record) as proxy, peer(answering(OK)) as url:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
            monkeypatch.setenv(name.lower(), proxy)
        async with client() as caller:
            assert (await get(caller, url)).body == b"ok"
    assert canary == []


async def test_a_compressed_answer_is_not_unpacked() -> None:
    squeezed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\n\x1f\x8b\x08zz"
    async with peer(answering(squeezed)) as url, client() as caller:
        assert (await get(caller, url)).body == b"\x1f\x8b\x08zz"


async def test_a_trickling_answer_ends_at_the_total_time_limit() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.02)

    started = asyncio.get_running_loop().time()
    async with peer(trickle) as url, client() as caller:
        error = await failure(get(caller, url, timeout_s=0.3))
    assert (error.kind, error.sent) == ("timeout", True)
    assert asyncio.get_running_loop().time() - started < 2


@pytest.mark.parametrize("framing", [b"Content-Length: 2000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n"])
async def test_an_answer_over_the_byte_bound_is_given_up(framing: bytes) -> None:
    async with peer(answering(b"HTTP/1.1 200 OK\r\n" + framing + b"x" * 2000)) as url, client() as caller:
        error = await failure(get(caller, url, max_bytes=1999))
        assert (error.kind, error.sent) == ("too_large", True)


async def test_a_refused_connection_was_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    async with client() as caller:
        error = await failure(get(caller, f"http://127.0.0.1:{port}/?token=hidden"))
    assert (error.kind, error.sent) == ("connect", False)
    assert "hidden" not in f"{error}{error!r}{error.__cause__!r}"


async def test_waiting_for_a_free_connection_was_not_sent() -> None:
    async with peer(answering()) as url, client(max_connections=1) as caller:
        release = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await release.wait()

        async with peer(hold) as busy:
            first = asyncio.create_task(get(caller, busy))
            await asyncio.sleep(0)
            error = await failure(get(caller, url, timeout_s=0.1))
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            release.set()
    assert (error.kind, error.sent) == ("timeout", False)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", "dropped"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "dropped"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "dropped"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort", "dropped"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "protocol"),
    ],
)
async def test_a_broken_answer_may_have_been_sent(answer: bytes, kind: str) -> None:
    async with peer(answering(answer)) as url, client() as caller:
        error = await failure(get(caller, url))
    assert (error.kind, error.sent) == (kind, True)


@pytest.mark.parametrize("headers", [{"X-Key": "se\ncret"}, {"X-Key": "se€cret"}, {"X Key": "secret"}])
async def test_headers_that_cannot_be_sent_are_refused_without_their_value(headers: dict[str, str]) -> None:
    async with peer(answering(OK)) as url, client() as caller:
        error = await failure(get(caller, url, headers=headers))
    assert (error.kind, error.sent) == ("protocol", False)
    assert "cret" not in f"{error!r}{error.__cause__!r}"


@pytest.mark.parametrize(
    "url", ["ftp://h/", "http://", "http://u:secret@h/", "http://h:99999/", "http://[::1/", "nonsense", "http://h:0/"]
)
async def test_a_url_that_cannot_be_called_is_named_without_repeating_it(url: str) -> None:
    async with client() as caller:
        error = await failure(get(caller, url))
    assert (error.kind, error.sent) == ("protocol", False)
    assert url_problem(url) == error.detail != ""
    assert "secret" not in str(error)


async def test_a_call_on_an_idle_connection_that_the_peer_closed_is_sent_on_a_new_one() -> None:
    connections = 0

    async def one_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(OK)(reader, writer)

    async with peer(one_each) as url, client() as caller:
        for _ in range(50):
            assert (await get(caller, url)).body == b"ok"
            await asyncio.sleep(random.random() * 0.004)
    assert connections == 50


async def test_a_call_that_the_peer_took_and_dropped_is_never_made_again() -> None:
    received = 0

    async def take_and_drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await read_request(reader)
        writer.write(OK)
        await writer.drain()
        await read_request(reader)
        received += 1

    async with peer(take_and_drop) as url, client() as caller:
        for _ in range(20):
            await get(caller, url)
            error = await failure(get(caller, url))
            assert (error.kind, error.sent) == ("dropped", True)
    assert received == 20


async def test_without_keep_alive_every_call_has_its_own_connection_and_says_so() -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)
        await writer.drain()
        assert await reader.read() == b""

    async with peer(handle) as url, client(keep_alive=False) as caller:
        for _ in range(3):
            await get(caller, url)
    assert len(seen) == 3
    assert all(b"\r\nConnection: close\r\n" in request for request in seen)


async def test_a_cancelled_call_closes_its_connection_at_once() -> None:
    taken, gone = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        taken.set()
        await reader.read()
        gone.set()

    async with peer(wait) as url, client() as caller:
        call = asyncio.create_task(get(caller, url))
        await taken.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(gone.wait(), 1)


async def test_four_thousand_cancelled_calls_leave_every_connection_usable() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await asyncio.sleep(random.random() * 0.02)
            writer.write(OK)
            await writer.drain()

    async with peer(slow) as url, client(max_connections=5) as caller:
        at_once = asyncio.Semaphore(40)

        async def cancelled() -> None:
            async with at_once:
                call = asyncio.create_task(get(caller, url))
                await asyncio.sleep(random.random() * 0.03)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)

        await asyncio.gather(*(cancelled() for _ in range(4000)))
        answers = await asyncio.gather(*(get(caller, url, timeout_s=3.0) for _ in range(6)))
    assert [answer.body for answer in answers] == [b"ok"] * 6


async def test_nothing_of_a_call_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answer = b"HTTP/1.1 200 OK\r\nX-Secret: hidden\r\nContent-Length: 6\r\n\r\nhidden"
    async with peer(answering(answer, b"")) as url, client() as caller:
        await get(caller, f"{url}/hidden?hidden=1", headers={"X-Key": "hidden"})
        await failure(get(caller, f"{url}/hidden?hidden=1"))
        await failure(get(caller, "http://127.0.0.1:1/?hidden=1"))
    assert "hidden" not in caplog.text
