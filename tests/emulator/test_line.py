"""The line carries bytes as given and brings the answer as it came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from finch_gateway.emulator.exchange import Request
from finch_gateway.emulator.line import SocketLine
from finch_gateway.emulator.platform import NoAnswer

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(answering: Answering) -> AsyncIterator[SocketLine]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield SocketLine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_target_headers_and_body_arrive_byte_for_byte() -> None:
    arrived = bytearray()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.extend(await reader.readuntil(b"\r\n\r\n"))
        arrived.extend(await reader.readexactly(3))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    headers = (("X-Twice", "1"), ("X-Twice", "2"))
    async with listening(keep) as line:
        await line.send(Request("POST", "//a%2Fb/./c?b=2&a=1&a=", headers, b"abc"), timeout_s=5)
    assert arrived.startswith(b"POST //a%2Fb/./c?b=2&a=1&a= HTTP/1.1\r\n")
    assert arrived.lower().count(b"x-twice:") == 2
    assert arrived.endswith(b"\r\n\r\nabc")


async def test_the_answer_is_neither_decoded_nor_followed() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 307 No\r\nLocation: /x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")

    async with listening(answer) as line:
        found = await line.send(Request("GET", "/", ()), timeout_s=5)
    assert (found.status, found.body, found.value("Content-Encoding")) == (307, b"abc", "gzip")


async def test_an_answer_before_the_body_was_read_still_counts() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        while await reader.read(65536):
            pass

    async with listening(refuse) as line:
        found = await line.send(Request("POST", "/", (), b" " * 4_000_000), timeout_s=10)
    assert found.status == 413


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", b"hello\r\n\r\n"])
async def test_half_an_answer_is_no_answer(came: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(came)

    async with listening(answer) as line:
        with pytest.raises(NoAnswer):
            await line.send(Request("GET", "/", ()), timeout_s=5)


async def test_waits_no_longer_than_it_is_told() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(never) as line:
        with pytest.raises(NoAnswer, match="no answer within 0 s"):
            await line.send(Request("GET", "/", ()), timeout_s=0.05)


@pytest.mark.parametrize("url", ["ftp://a", "http://", "https://user:pass@a", "a.example"])
def test_refuses_what_is_no_base_url(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        SocketLine(url)
