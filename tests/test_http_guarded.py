"""The guarded client: what it dials, what goes over the wire, and what a peer can do to it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import inspect
import ipaddress
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import uvloop
from support.certificates import Authority

from finch_gateway.http import Dialler, GuardedClient, HttpFailed, HttpHead, Names, line
from finch_gateway.wire.destinations import Address, Destination, DestinationRefused, OutboundRules, read_destination

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 204 No Content\r\n\r\n"
CLOSING = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
LOCAL = OutboundRules(allow_hosts=("*.test", "127.0.0.1"), allow_private=True)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def words(text: str) -> list[str]:
    return text.split()


class Peer:
    """A server that counts its connections and keeps the requests it read."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self.handler(reader, writer)
        writer.close()


@asynccontextmanager
async def peer(
    handler: Handler, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    one = Peer(handler)
    server = await asyncio.start_server(one.serve, host, port, ssl=tls)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for row in head.lower().split(b"\r\n"):
        if row.startswith(b"content-length:"):
            return head + await reader.readexactly(int(row.split(b":")[1]))
    return head


def answering(*answers: bytes) -> Handler:
    """Answer each request on a connection with the next of `answers`, then close it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()

    return handle


async def always(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await read_request(reader)
        writer.write(OK)
        await writer.drain()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


class Resolver:
    """Answers lookups from a list, the last answer again and again, and counts them."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [ipaddress.ip_address(text) for text in answer.split()]


@asynccontextmanager
async def client(
    look_up: Resolver | None = None, rules: OutboundRules = LOCAL, tls: ssl.SSLContext | None = None, **options: int
) -> AsyncIterator[GuardedClient]:
    made = GuardedClient(Dialler(rules, look_up=look_up or Resolver("127.0.0.1"), tls=tls), **options)
    try:
        yield made
    finally:
        await made.close()


async def post(caller: GuardedClient, to: Destination | str, **changes: object) -> HttpHead:
    destination = read_destination(to, LOCAL) if isinstance(to, str) else to
    options: dict[str, object] = {"headers": [], "body": b"body", "timeout_s": 5.0, "max_bytes": 1_000, **changes}
    return await caller.send("POST", destination, **options)  # type: ignore[arg-type]


async def failure(call: Awaitable[HttpHead]) -> tuple[str, bool]:
    with pytest.raises(HttpFailed) as caught:
        await call
    return caught.value.kind, caught.value.sent


def open_sockets() -> int:
    """Return how many sockets this process has open."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(entry))
    return sum(link.startswith("socket:") for link in links)


class TestWhatIsSent:
    @pytest.mark.parametrize(
        "target", ["/", "/?", "/a%2Fb//%7e/~?z=1&a=2&a=1&q=a+b%20c&e=&f&&", "/a/../b", '/{a}|^`"<>[]']
    )
    async def test_exactly_the_given_target_headers_and_body_leave(self, target: str) -> None:
        seen: list[bytes] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await read_request(reader))
            writer.write(OK)

        async with peer(handle) as one, client() as caller:
            head = await post(caller, f"http://a.test:{one.port}{target}", headers=[(b"x-one", b"1")])
        assert head == HttpHead(204, ())
        host = b"a.test:%d" % one.port
        assert seen == [
            b"POST "
            + target.encode()
            + b" HTTP/1.1\r\nHost: "
            + host
            + b"\r\nx-one: 1\r\nContent-Length: 4\r\n\r\nbody"
        ]

    async def test_an_empty_body_has_a_length(self) -> None:
        seen: list[bytes] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await read_request(reader))
            writer.write(OK)

        async with peer(handle) as one, client() as caller:
            await post(caller, f"http://a.test:{one.port}/", body=b"")
        assert b"\r\nContent-Length: 0\r\n" in seen[0]

    @pytest.mark.parametrize(
        "headers", [[(b"x", b"se\ncret")], [(b"x y", b"secret")], [(b"Content-Length", b"9")], [(b"x", b"\x00cret")]]
    )
    async def test_a_header_that_cannot_be_sent_is_refused_unsent_and_unsaid(
        self, headers: list[tuple[bytes, bytes]]
    ) -> None:
        async with peer(always) as one, client() as caller:
            with pytest.raises(HttpFailed) as caught:
                await post(caller, f"http://a.test:{one.port}/", headers=headers)
            assert (caught.value.kind, caught.value.sent) == ("protocol", False)
            assert "cret" not in f"{caught.value!r}{caught.value.__cause__!r}"
            assert (await post(caller, f"http://a.test:{one.port}/")).status == 204

    async def test_neither_proxies_nor_passwords_come_from_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        seen: list[bytes] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await read_request(reader))
            writer.write(OK)

        async with peer(hang) as canary, peer(handle) as one:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                for spelled in (name, name.lower()):
                    monkeypatch.setenv(spelled, f"http://127.0.0.1:{canary.port}")
            (tmp_path / ".netrc").write_text("machine a.test login canary password canary\n")
            monkeypatch.setenv("HOME", str(tmp_path))
            monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
            async with client() as caller:
                await post(caller, f"http://a.test:{one.port}/")
        assert canary.connections == 0
        assert b"authorization" not in seen[0].lower()


class TestCertificates:
    async def test_the_name_is_asked_for_and_the_certificate_checked_against_it(self, authority: Authority) -> None:
        names: list[str | None] = []
        tls = authority.serving("a.test")
        tls.sni_callback = lambda _, name, __: names.append(name)
        async with peer(always, tls=tls) as one, client(tls=authority.trusting()) as caller:
            for _ in range(3):
                assert (await post(caller, f"https://a.test:{one.port}/")).status == 204
        assert names == ["a.test"]

    @pytest.mark.parametrize(
        ("name", "valid_for", "trusted"),
        [("b.test", timedelta(days=1), True), ("a.test", timedelta(days=-1), True), ("a.test", timedelta(1), False)],
        ids=["another name's", "over", "another authority's"],
    )
    async def test_nothing_is_sent_under_a_certificate_that_is(
        self, authority: Authority, name: str, valid_for: timedelta, trusted: bool
    ) -> None:
        tls = authority.serving(name, valid_for=valid_for)
        trusting = authority.trusting() if trusted else ssl.create_default_context()
        async with peer(hang, tls=tls) as one, client(tls=trusting) as caller:
            with pytest.raises(HttpFailed, match="certificate") as caught:
                await post(caller, f"https://a.test:{one.port}/")
            assert (caught.value.kind, caught.value.sent) == ("connect", False)
        assert one.connections == 0  # of those that got through the handshake

    async def test_a_peer_that_does_not_speak_tls_is_no_peer(self, authority: Authority) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK)
            await reader.read()

        async with peer(greet) as one, client(tls=authority.trusting()) as caller:
            assert await failure(post(caller, f"https://a.test:{one.port}/")) == ("connect", False)


class TestAddresses:
    HOSTILE_TEXT = words(
        "127.0.0.1 localhost a.localhost [::1] [::] 0.0.0.0 0 127.1 127.0.1 2130706433 0x7f000001 0x7f.0.0.1 0177.0.0.1 "
        "017700000001 127.0.0.1. 127.000.000.001 [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1] "
        "[64:ff9b:1::7f00:1] [2002:7f00:1::] [2001:0:7f00:1::] [fd00::1] [fc00::1] [fe80::1] [fe80::1%25lo] [fec0::1] "
        "[ff02::1] 10.0.0.1 172.16.0.1 192.168.0.1 100.64.0.1 169.254.169.254 [fd00:ec2::254] 100.100.100.200 "
        "168.63.129.16 224.0.0.1 255.255.255.255 198.18.0.1 user:pass@127.0.0.1 a.example@127.0.0.1 127.0.0.1@a.example "
        "①②⑦.0.0.1 127。0。0。1 intranet 127.0.0.1%00.example 127.0.0.1\\.example [::1%25lo] [127.0.0.1] 0x7f.1 ::1"
    )
    HOSTILE_ANSWERS = (
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "fe80::1%lo",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "fd00::1",
        "224.0.0.1",
        "8.8.8.8 127.0.0.1",
        "127.0.0.1 8.8.8.8",
        "2606:4700::1 ::1",
    )

    async def test_no_hostile_url_reaches_a_canary(self) -> None:
        addresses = ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",)
        async with contextlib.AsyncExitStack() as stack:
            canary = await stack.enter_async_context(peer(hang, host=addresses[0]))
            if len(addresses) > 1:
                server = await asyncio.start_server(canary.serve, "::1", canary.port)
                stack.callback(server.close)
            # Not the port is what saves us.
            rules = OutboundRules(ports=(443, canary.port))
            urls = [f"https://{host}:{canary.port}/x" for host in self.HOSTILE_TEXT]
            urls += [f"https://{host}/x" for host in self.HOSTILE_TEXT]
            urls += [f"{scheme}://a.example:{canary.port}/x" for scheme in ("http", "ftp", "ws", "gopher", "file")]
            for url in urls:
                with pytest.raises(DestinationRefused):
                    read_destination(url, rules)
            for answer in self.HOSTILE_ANSWERS:
                destination = read_destination(f"https://a.example:{canary.port}/x", rules)
                async with client(Resolver(answer), rules) as caller:
                    assert await failure(post(caller, destination)) == ("forbidden", False), answer
            assert canary.connections == 0
            assert len(urls) + len(self.HOSTILE_ANSWERS) > 60

    async def test_a_resolver_that_changes_its_answer_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_lookup(host: object, *_: object, **__: object) -> object:
            raise AssertionError(f"{host} was looked up once more")

        async with peer(answering(CLOSING)) as good, peer(hang, host="127.0.0.2", port=good.port) as canary:
            resolver = Resolver("127.0.0.1", "127.0.0.2 0.0.0.0", "0.0.0.0")
            url = f"http://a.test:{good.port}/"
            async with client(resolver) as caller:
                with monkeypatch.context() as patched:
                    patched.setattr(socket, "getaddrinfo", no_lookup)
                    assert (await post(caller, url)).status == 204
                    for _ in range(2):
                        assert await failure(post(caller, url)) == ("forbidden", False)
            assert (good.connections, canary.connections) == (1, 0)
            assert resolver.asked == ["a.test"] * 3

    async def test_redirects_are_answers_and_lead_nowhere(self) -> None:
        async with peer(hang) as canary:
            for status in (301, 302, 303, 307, 308):
                answer = (
                    f"HTTP/1.1 {status} X\r\nLocation: http://127.0.0.1:{canary.port}/\r\nContent-Length: 0\r\n\r\n"
                )
                async with peer(answering(answer.encode())) as one, client() as caller:
                    assert (await post(caller, f"http://a.test:{one.port}/")).status == status
        assert canary.connections == 0

    async def test_the_next_address_is_dialled_where_one_is_dead(self) -> None:
        async with peer(always) as one, client(Resolver("127.0.0.3 127.0.0.2 ::1 127.0.0.1")) as caller:
            assert (await post(caller, f"http://a.test:{one.port}/")).status == 204

    async def test_without_an_address_nothing_was_sent(self) -> None:
        async def nowhere(host: str) -> Sequence[Address]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        async with client(nowhere) as caller:  # type: ignore[arg-type]
            assert await failure(post(caller, "http://a.test/")) == ("connect", False)
        async with client(Resolver("")) as caller:
            assert await failure(post(caller, "http://a.test/")) == ("connect", False)


class TestNames:
    async def test_a_name_brings_its_addresses_once_each(self) -> None:
        found = await Names()("localhost")
        assert ipaddress.ip_address("127.0.0.1") in found
        assert len(found) == len(set(found))

    @pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 64 + ".test", "\x00"])
    async def test_a_name_without_addresses_is_an_os_error(self, host: str) -> None:
        with pytest.raises(OSError):
            await Names()(host)

    async def test_a_name_server_that_hangs_holds_up_its_own_names_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        release = threading.Event()

        def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
            asked.append(host)
            if host.startswith("slow"):
                release.wait(20)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        names = Names(max_lookups=3)
        waiting = [asyncio.create_task(names(f"slow{number}.test")) for number in (1, 2, 1, 2, 1)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(names("quick.test"), 2) == [ipaddress.ip_address("192.0.2.1")]
        waiting.append(asyncio.create_task(names("slow3.test")))
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="too many"):
            await names("slow4.test")
        waiting[0].cancel()
        release.set()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError)
        assert ended[1:] == [[ipaddress.ip_address("192.0.2.1")]] * 5
        assert sorted(asked) == ["quick.test", "slow1.test", "slow2.test", "slow3.test"]
        assert await names("slow4.test")


class TestAnswers:
    async def test_the_head_comes_back_in_lower_case(self) -> None:
        answer = b"HTTP/1.1 429 X\r\nRetry-After: 7\r\nX-A: \xe9\r\nContent-Length: 2\r\n\r\nno"
        async with peer(answering(answer)) as one, client() as caller:
            head = await post(caller, f"http://a.test:{one.port}/")
        assert head == HttpHead(429, (("retry-after", "7"), ("x-a", "é"), ("content-length", "2")))

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
            b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
            b"HTTP/1.0 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 Not asked for\r\n\r\n",
        ],
    )
    async def test_the_status_is_the_answer_whatever_becomes_of_the_body(self, answer: bytes) -> None:
        async with peer(answering(answer)) as one, client() as caller:
            for _ in range(3):
                assert (await post(caller, f"http://a.test:{one.port}/")).status == 200
        assert one.connections == 3

    async def test_interim_answers_are_passed_over(self) -> None:
        answers = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\n\r\n" + OK
        async with peer(answering(answers)) as one, client() as caller:
            assert (await post(caller, f"http://a.test:{one.port}/")).status == 204

    @pytest.mark.parametrize(
        ("answer", "kind"),
        [
            (b"", "dropped"),
            (b"HTTP/1.1 200 OK\r\nContent-Le", "dropped"),
            (b"HTTP/1.1 100 Continue\r\n\r\n", "dropped"),
            (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "protocol"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "protocol"),
            (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "protocol"),
            (b"HTTP/1.1 100 Continue\r\n\r\n" * 50, "protocol"),
            (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000, "protocol"),
        ],
    )
    async def test_without_a_status_the_call_failed_and_may_have_been_sent(self, answer: bytes, kind: str) -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answering(answer)(reader, writer)
            if kind == "protocol":
                await reader.read()

        async with peer(handle) as one, client() as caller:
            assert await failure(post(caller, f"http://a.test:{one.port}/")) == (kind, True)

    @pytest.mark.parametrize("framing", [b"Content-Length: 9000000000\r\n\r\n", b"\r\n"])
    async def test_an_endless_body_counts_as_answered_and_is_not_read_on(self, framing: bytes) -> None:
        written = 0

        async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n" + framing)
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
                written += 65_536

        started = time.monotonic()
        async with peer(endless) as one, client() as caller:
            for _ in range(3):
                assert (await post(caller, f"http://a.test:{one.port}/")).status == 200
            assert time.monotonic() - started < 2
            assert written < 64 << 20

    async def test_a_gzip_bomb_is_not_unpacked(self) -> None:
        bomb = gzip.compress(b"\0" * (32 << 20))
        answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
        async with peer(answering(answer)) as one, client() as caller:
            cpu = time.process_time()
            head = await post(caller, f"http://a.test:{one.port}/", max_bytes=100_000)
            assert time.process_time() - cpu < 1
        assert ("content-encoding", "gzip") in head.headers

    @pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX-"])
    async def test_a_trickling_head_ends_at_the_time_limit(self, start: bytes) -> None:
        async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(start or b"H")
            while True:
                writer.write(b"a" if start else b"")
                await writer.drain()
                await asyncio.sleep(0.02)

        started = time.monotonic()
        async with peer(trickle) as one, client() as caller:
            assert await failure(post(caller, f"http://a.test:{one.port}/", timeout_s=0.3)) == ("timeout", True)
        assert time.monotonic() - started < 2

    async def test_a_trickling_body_counts_as_answered_within_a_second(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(line, "SKIP_S", 0.2)

        async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.02)

        started = time.monotonic()
        async with peer(trickle) as one, client() as caller:
            assert (await post(caller, f"http://a.test:{one.port}/", timeout_s=0.1)).status == 200
        assert time.monotonic() - started < 2

    async def test_a_request_that_is_refused_while_it_is_sent_is_refused(self) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.2)

        async with peer(refuse) as one, client() as caller:
            head = await post(caller, f"http://a.test:{one.port}/", body=b"x" * (8 << 20))
        assert head.status == 413


class TestConnections:
    async def test_calls_to_one_origin_share_a_connection(self) -> None:
        async with peer(always) as one, client() as caller:
            for _ in range(20):
                await post(caller, f"http://a.test:{one.port}/")
        assert one.connections == 1

    async def test_a_connection_serves_the_origin_it_was_checked_for_only(self) -> None:
        resolver = Resolver("127.0.0.1")
        async with peer(always) as one, client(resolver) as caller:
            for name in ("a", "b", "a", "b"):
                await post(caller, f"http://{name}.test:{one.port}/")
        assert resolver.asked == ["a.test", "b.test"]
        assert one.connections == 2

    async def test_an_idle_connection_is_closed_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gone = asyncio.Event()
        monkeypatch.setattr(line, "KEEP_ALIVE_S", 0.1)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await always(reader, writer)
            gone.set()

        async with peer(handle) as one, client() as caller:
            await post(caller, f"http://a.test:{one.port}/")
            await asyncio.wait_for(gone.wait(), 2)

    async def test_no_more_than_the_limit_are_open_and_waiting_is_not_sending(self) -> None:
        busy = asyncio.Event()

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            if one.connections == 2:
                busy.set()
            await reader.read()

        async with peer(count) as one, client(max_connections=2) as caller:
            calls = [asyncio.create_task(post(caller, f"http://a.test:{one.port}/")) for _ in range(2)]
            await asyncio.wait_for(busy.wait(), 2)
            assert await failure(post(caller, f"http://a.test:{one.port}/", timeout_s=0.1)) == ("timeout", False)
            assert one.connections == 2
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def test_a_connection_that_the_peer_closed_meanwhile_is_not_used(self) -> None:
        async with peer(answering(OK)) as one, client() as caller:
            for _ in range(50):
                assert (await post(caller, f"http://a.test:{one.port}/")).status == 204
                await asyncio.sleep(random.random() * 0.004)
        assert one.connections == 50

    async def test_a_connection_closed_at_the_moment_of_use_fails_once_and_the_next_call_works(self) -> None:
        async def take_and_drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answering(OK)(reader, writer)
            await read_request(reader)

        async with peer(take_and_drop) as one, client() as caller:
            for _ in range(20):
                assert (await post(caller, f"http://a.test:{one.port}/")).status == 204
                assert await failure(post(caller, f"http://a.test:{one.port}/")) == ("dropped", True)
        assert one.connections == 20

    async def test_what_nobody_asked_for_is_not_taken_for_the_next_answer(self) -> None:
        said = asyncio.Event()

        async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(OK)
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 500 Not asked for\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            said.set()
            await reader.read()

        async with peer(chatter) as one, client() as caller:
            for _ in range(3):
                said.clear()
                assert (await post(caller, f"http://a.test:{one.port}/")).status == 204
                await asyncio.wait_for(said.wait(), 2)
                await asyncio.sleep(0.02)
        assert one.connections == 3

    async def test_a_cancelled_call_closes_its_connection_at_once(self) -> None:
        taken, gone = asyncio.Event(), asyncio.Event()

        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            taken.set()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            gone.set()

        async with peer(wait) as one, client() as caller:
            call = asyncio.create_task(post(caller, f"http://a.test:{one.port}/"))
            await taken.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(gone.wait(), 1)

    async def test_a_call_whose_time_is_over_before_it_is_sent_is_not_sent(self) -> None:
        seen = 0

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal seen
            await read_request(reader)
            seen += 1

        class Frozen(Dialler):
            async def dial(self, destination: Destination) -> line.Line:
                made = await super().dial(destination)
                time.sleep(0.3)  # as a process that is stopped and continued
                return made

        async with peer(handle) as one:
            caller = GuardedClient(Frozen(LOCAL, look_up=Resolver("127.0.0.1")))
            assert await failure(post(caller, f"http://a.test:{one.port}/", timeout_s=0.2)) == ("timeout", False)
            await asyncio.sleep(0.05)
            await caller.close()
        assert seen == 0

    @pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
    async def test_four_thousand_cancelled_calls_leave_every_connection_usable(
        self, authority: Authority, secure: bool
    ) -> None:
        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await read_request(reader)
                await asyncio.sleep(random.random() * 0.02)
                writer.write(OK)
                await writer.drain()

        tls = authority.serving("a.test") if secure else None
        before = open_sockets()
        async with peer(slow, tls=tls) as one, client(tls=authority.trusting(), max_connections=5) as caller:
            url = f"http{'s' if secure else ''}://a.test:{one.port}/"
            at_once = asyncio.Semaphore(40)

            async def cancelled() -> None:
                async with at_once:
                    call = asyncio.create_task(post(caller, url))
                    await asyncio.sleep(random.random() * 0.03)
                    call.cancel()
                    await asyncio.gather(call, return_exceptions=True)

            await asyncio.gather(*(cancelled() for _ in range(1000 if secure else 4000)))
            heads = await asyncio.gather(*(post(caller, url, timeout_s=5.0) for _ in range(6)))
            assert [head.status for head in heads] == [204] * 6
        limit = time.monotonic() + 5
        while open_sockets() > before and time.monotonic() < limit:
            await asyncio.sleep(0.01)
        assert open_sockets() <= before


UNDER_UVLOOP = [
    TestAddresses().test_no_hostile_url_reaches_a_canary,
    TestAddresses().test_the_next_address_is_dialled_where_one_is_dead,
    TestAnswers().test_a_gzip_bomb_is_not_unpacked,
    TestAnswers().test_a_request_that_is_refused_while_it_is_sent_is_refused,
    TestConnections().test_a_connection_closed_at_the_moment_of_use_fails_once_and_the_next_call_works,
    TestConnections().test_a_connection_that_the_peer_closed_meanwhile_is_not_used,
    TestConnections().test_what_nobody_asked_for_is_not_taken_for_the_next_answer,
    TestConnections().test_a_cancelled_call_closes_its_connection_at_once,
    partial(TestAnswers().test_an_endless_body_counts_as_answered_and_is_not_read_on, b"\r\n"),
    partial(TestConnections().test_four_thousand_cancelled_calls_leave_every_connection_usable, secure=False),
    partial(TestConnections().test_four_thousand_cancelled_calls_leave_every_connection_usable, secure=True),
    TestCertificates().test_the_name_is_asked_for_and_the_certificate_checked_against_it,
]


@pytest.mark.parametrize("promise", UNDER_UVLOOP)
def test_the_promises_hold_under_uvloop_too(
    promise: Callable[..., Coroutine[object, object, None]], authority: Authority
) -> None:
    wants_authority = "authority" in inspect.signature(promise).parameters
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(promise(authority=authority) if wants_authority else promise())
