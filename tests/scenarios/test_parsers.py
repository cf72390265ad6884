"""What each HTTP parser makes of odd requests, on raw sockets: the measurement behind docs/http-parsers.md.

Each request is signed as its sender means it. "refused" is the parser's own unsigned 400, after which the
connection ends; a number is the status of the door's signed answer, and shows that the request got there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.finch import Connection, Finch, HttpAnswer
from support.gateway import GatewayProcess, Provider

DOCUMENT = Path(__file__).parents[2] / "docs" / "http-parsers.md"
BODY_TIMEOUT_S = 0.5

AGENT = """
async def run(job):
    return "ran"
"""

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Sender:
    """Builds requests whose signature is right for what they mean."""

    finch: Finch

    @property
    def health(self) -> bytes:
        return self.finch.mount.encode() + b"/health"

    def proof(self, method: str, target: bytes, body: bytes = b"") -> bytes:
        return b"".join(b"%b: %b\r\n" % pair for pair in self.finch.signed(method, target, body))

    def get(
        self,
        *,
        line: bytes = b"GET %b HTTP/1.1",
        method: str = "GET",
        host: bytes = b"Host: x\r\n",
        suffix: bytes = b"",
        more: bytes = b"",
    ) -> bytes:
        target = self.health + suffix
        first = line.replace(b"GET", method.encode()).replace(b"%b", target)
        return first + b"\r\n" + host + self.proof(method, target) + more + b"\r\n"

    def post(self, framing: bytes, *, version: bytes = b"1.1") -> bytes:
        """Return a turn; `%d` in the framing headers becomes the body's length."""
        body = self.body()
        return self.head(framing.replace(b"%d", b"%d" % len(body)), body, version) + body

    def chunked(
        self, *, coding: bytes = b"chunked", size: bytes = b"%x", after_size: bytes = b"\r\n", after_data: bytes = b"\r\n",
        end: bytes = b"0\r\n", trailer: bytes = b"", more: bytes = b"",
    ) -> bytes:  # fmt: skip
        """Return a turn in one chunk; `%x` in the size becomes the body's length."""
        body = self.body()
        head = self.head(b"Transfer-Encoding: " + coding + b"\r\n" + more, body)
        return head + size.replace(b"%x", b"%x" % len(body)) + after_size + body + after_data + end + trailer + b"\r\n"

    def body(self) -> bytes:
        return json.dumps(self.finch.envelope()).encode()

    def head(self, framing: bytes, body: bytes, version: bytes = b"1.1") -> bytes:
        target = self.finch.mount.encode() + b"/invoke"
        first = b"POST " + target + b" HTTP/" + version + b"\r\nHost: x\r\n"
        return first + self.proof("POST", target, body) + framing + b"\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """A request in words and as bytes, and what becomes of it under either parser."""

    name: str
    build: Callable[[Sender], bytes]
    h11: str
    httptools: str

    @property
    def row(self) -> str:
        return f"| {self.name} | {self.h11} | {self.httptools} |"


def both(name: str, outcome: str, build: Callable[[Sender], bytes]) -> Case:
    return Case(name, build, outcome, outcome)


UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"

REFUSED_BY_BOTH = [
    both("HTTP/1.1 without `Host`", REFUSED, lambda s: s.get(host=b"")),
    both("two `Host` headers", REFUSED, lambda s: s.get(host=b"Host: x\r\nHost: x\r\n")),
    both("no version in the request line", REFUSED, lambda s: s.get(line=b"GET %b")),
    both("`HTTP/1.2`, `HTTP/9.9`", REFUSED, lambda s: s.get(line=b"GET %b HTTP/9.9")),
    both("`HTTP/2.0` in an HTTP/1 request line", REFUSED, lambda s: s.get(line=b"GET %b HTTP/2.0")),
    both("`http/1.1`", REFUSED, lambda s: s.get(line=b"GET %b http/1.1")),
    both("a tab in the request line", REFUSED, lambda s: s.get(line=b"GET\t%b HTTP/1.1")),
    both("a blank after the version", REFUSED, lambda s: s.get(line=b"GET %b HTTP/1.1 ")),
    both("a byte over 0x7E in the target", REFUSED, lambda s: s.get(suffix=b"?\xc3\xa9")),
    both("a control character in the target", REFUSED, lambda s: s.get(suffix=b"?\x01")),
    both("lines that end in a bare line feed", REFUSED, lambda s: s.get().replace(b"\r\n", b"\n")),
    both("one header that ends in a bare line feed", REFUSED, lambda s: s.get(more=b"X: a\n")),
    both("a bare carriage return in a header", REFUSED, lambda s: s.get(more=b"X: a\rb\r\n")),
    both("a folded header", REFUSED, lambda s: s.get(more=b"X: a\r\n b\r\n")),
    both("a blank before the colon", REFUSED, lambda s: s.get(more=b"X : a\r\n")),
    both("a header without a name", REFUSED, lambda s: s.get(more=b": a\r\n")),
    both("a header without a colon", REFUSED, lambda s: s.get(more=b"Xa\r\n")),
    both("NUL in a header", REFUSED, lambda s: s.get(more=b"X: a\x00b\r\n")),
    both("another control character in a header (ESC)", REFUSED, lambda s: s.get(more=b"X: a\x1bb\r\n")),
    both("DEL in a header", REFUSED, lambda s: s.get(more=b"X: a\x7fb\r\n")),
    both("two equal `Content-Length`", REFUSED, lambda s: s.post(b"Content-Length: %d\r\nContent-Length: %d\r\n")),
    both("`Content-Length: 5, 5`", REFUSED, lambda s: s.post(b"Content-Length: %d, %d\r\n")),
    both("`Content-Length: +5`", REFUSED, lambda s: s.post(b"Content-Length: +%d\r\n")),
    both("`Content-Length` and `Transfer-Encoding`", REFUSED, lambda s: s.chunked(more=b"Content-Length: 5\r\n")),
    both("`Transfer-Encoding: gzip, chunked`", REFUSED, lambda s: s.chunked(coding=b"gzip, chunked")),
    both("`Transfer-Encoding: , chunked`", REFUSED, lambda s: s.chunked(coding=b", chunked")),
    both("`Transfer-Encoding: identity`", REFUSED, lambda s: s.chunked(coding=b"identity")),
    both("two `Transfer-Encoding`", REFUSED, lambda s: s.chunked(more=b"Transfer-Encoding: chunked\r\n")),
    both("a chunk without its end", REFUSED, lambda s: s.chunked(after_data=b"XX")),
    both("a bare line feed after a chunk's size", REFUSED, lambda s: s.chunked(after_size=b"\n")),
    both("a chunk's size with `0x` or a sign", REFUSED, lambda s: s.chunked(size=b"0x%x")),
    both("a body under `Upgrade`, by length", REFUSED, lambda s: s.post(b"Content-Length: %d\r\n" + UPGRADE)),
    both("a body under `Upgrade`, chunked", REFUSED, lambda s: s.chunked(more=UPGRADE)),
]

DIFFERENT = [
    Case("a method llhttp does not know (`FOO`)", lambda s: s.get(method="FOO"), "405", REFUSED),
    Case("a method in lower case", lambda s: s.get(method="get"), "405", REFUSED),
    Case("two blanks in the request line", lambda s: s.get(line=b"GET  %b HTTP/1.1"), REFUSED, "200"),
    Case("empty lines before the request", lambda s: b"\r\n\r\n" + s.get(), REFUSED, "200"),
    Case("a blank and a tab after `chunked`", lambda s: s.chunked(coding=b"chunked \t"), "200", REFUSED),
    Case("a blank after a chunk's size", lambda s: s.chunked(size=b"%x "), "200", REFUSED),
    Case("a chunk's size with 30 leading zeros", lambda s: s.chunked(size=b"0" * 30 + b"%x"), REFUSED, "200"),
    Case("a chunk's size of 80 bits", lambda s: s.chunked(size=b"f" * 20), "401", REFUSED),
    Case("a control character in a chunk extension", lambda s: s.chunked(size=b"%x;a=\x01"), "200", REFUSED),
    Case("`Content-Length` in a trailer", lambda s: s.chunked(trailer=b"Content-Length: 3\r\n"), "200", REFUSED),
]

TAKEN_BY_BOTH = [
    both("HTTP/1.0, with or without `Host`", "200", lambda s: s.get(line=b"GET %b HTTP/1.0", host=b"")),
    both("a method without an endpoint (`PROPFIND`)", "405", lambda s: s.get(method="PROPFIND")),
    both("a fragment in the target", "401", lambda s: s.get(suffix=b"#x")),
    both("`?` at the end, signed without it", "200", lambda s: s.get(line=b"GET %b? HTTP/1.1")),
    both("a target of 20 KB", "200", lambda s: s.get(suffix=b"?" + b"q" * 20_000)),
    both("`Upgrade` without a body", "200", lambda s: s.get(more=UPGRADE)),
    both("a byte over 0x7F in another header", "200", lambda s: s.get(more=b"X: a\xe9\r\n")),
    both("1,000 headers", "200", lambda s: s.get(more=b"".join(b"X%d: a\r\n" % n for n in range(1_000)))),
    both("leading zeros in `Content-Length`", "200", lambda s: s.post(b"Content-Length: 000%d\r\n")),
    both("chunks under HTTP/1.1", "200", lambda s: s.chunked()),
    both("`CHUNKED`", "200", lambda s: s.chunked(coding=b"CHUNKED")),
    both("a chunk extension", "200", lambda s: s.chunked(size=b'%x;a="b c"')),
    both("a trailer, ignored", "200", lambda s: s.chunked(trailer=b"X-T: a\r\n")),
    both("a trailer named as a signed header, ignored", "200", lambda s: s.chunked(trailer=b"X-Platform-Nonce: a\r\n")),
    both("`Expect: 100-continue`", "200", lambda s: s.post(b"Content-Length: %d\r\nExpect: 100-continue\r\n")),
]

CASES = [*REFUSED_BY_BOTH, *DIFFERENT, *TAKEN_BY_BOTH]


@dataclass(frozen=True, slots=True)
class Gateway:
    parser: str
    process: GatewayProcess
    finch: Finch


@pytest.fixture(scope="module", params=["h11", "httptools"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    provider = Provider(tmp_path_factory.mktemp("parsers"), server={"body_timeout_s": BODY_TIMEOUT_S})
    provider.write(AGENT)
    with provider.running("--http", request.param) as process:
        yield Gateway(request.param, process, provider.finch(process))
        assert process.process.poll() is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_parser_does_with_an_odd_request_what_the_table_says(gateway: Gateway, case: Case) -> None:
    raw = case.build(Sender(gateway.finch))
    async with gateway.finch.connection() as connection:
        connection.writer.write(raw)
        answer = await connection.read()
        if answer.status == 100:
            answer = await connection.read()
        assert outcome(answer) == getattr(case, gateway.parser)
        if outcome(answer) == REFUSED:
            # What is left is the refusal's own text.
            assert b"HTTP/1.1" not in await connection.reader.read()


def outcome(answer: HttpAnswer) -> str:
    if answer.header("X-Agent-Signature"):
        return str(answer.status)
    assert (answer.status, answer.header("content-type").partition(";")[0]) == (400, "text/plain")
    return REFUSED


async def test_a_request_in_the_body_of_an_upgrade_is_never_read(gateway: Gateway) -> None:
    sender = Sender(gateway.finch)
    hidden = sender.get()
    for framing, body in (
        (b"Content-Length: %d\r\n" % len(hidden), hidden),
        (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)),
    ):
        async with gateway.finch.connection() as connection:
            connection.writer.write(sender.head(UPGRADE + framing, hidden))
            await connection.writer.drain()
            # In a packet of its own, after the head was dealt with.
            await asyncio.sleep(0.1)
            connection.writer.write(body)
            assert b'"ready"' not in await everything(connection)


async def test_a_body_that_breaks_off_after_an_early_answer_is_no_trouble(gateway: Gateway) -> None:
    target = gateway.finch.mount.encode() + b"/invoke"
    async with gateway.finch.connection() as connection:
        connection.writer.write(b"POST " + target + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await connection.read()).status == 401
        connection.writer.write(b"not a chunk\r\n\r\n")
        await everything(connection)
    assert (await gateway.finch.health()).status == 200
    assert gateway.process.events("loop.trouble") == []


async def everything(connection: Connection) -> bytes:
    """Return what still comes within a second."""
    came = b""
    try:
        async with asyncio.timeout(1):
            while piece := await connection.reader.read(65_536):
                came += piece
    except (TimeoutError, ConnectionError):
        return came
    return came


def test_the_document_holds_this_table_and_no_other_row() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ") and "|---" not in line]
    assert [row for row in rows if not row.endswith("| h11 | httptools |")] == [case.row for case in CASES]
