"""The shared connection, on a real server: coalescing, order, lost answers, bounds, outages."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.task_store import COMPLETED, HOST, LISTING, admission, change, event, fresh

from finch_gateway.errors import ConfigError, StoreUnavailable
from finch_gateway.store import Admitted, Answered, Delivered, Held, Nonce, RetryAt, TurnClaim, TurnEnd, TurnKey
from finch_gateway.stores.redis import Limits, RedisStore
from finch_gateway.stores.redis.address import Address
from finch_gateway.stores.redis.connection import SharedConnection
from finch_gateway.stores.redis.failures import Refused
from finch_gateway.stores.redis.scripts import pack
from tests.conftest import Valkey, free_port, start_valkey, stop_valkey

NOW = float(int(time.time()))
ROOT = Path(__file__).parents[2]
QUICK = Limits(call_s=0.4)


class Proxy:
    """Stands before a server: delays replies, counts commands, and cuts a connection when told to."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.tls: ssl.SSLContext | None = None
        self.delay_s = 0.0
        self.cuts = 0
        """How many of the next writes that run a script go through and lose their connection before a reply."""
        self.script_calls = 0
        self.writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.carry, "127.0.0.1", 0, ssl=self.tls)
        self.port: int = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.server.close()
        self.cut()
        while self.writers:
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        for writer in self.writers:
            writer.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        self.writers |= {writer, there_writer}
        is_cut = asyncio.Event()
        back = asyncio.create_task(self.carry_back(there_reader, writer, is_cut))
        try:
            while data := await reader.read(65536):
                self.script_calls += data.count(b"EVALSHA")
                if self.cuts and b"EVALSHA" in data:
                    self.cuts -= 1
                    is_cut.set()
                there_writer.write(data)
        except OSError:
            back.cancel()
        finally:
            there_writer.close()
            await asyncio.wait([back])
            writer.close()
            self.writers -= {writer, there_writer}

    async def carry_back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_cut: asyncio.Event
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (data := await reader.read(65536)) and not is_cut.is_set():
                if self.delay_s:
                    loop.call_later(self.delay_s, writer.write, data)
                else:
                    writer.write(data)
        finally:
            writer.close()


@pytest.fixture
async def proxy(valkey: Valkey) -> AsyncIterator[Proxy]:
    one = Proxy(valkey.port)
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    """A server that the test may stop."""
    one = start_valkey(tmp_path, free_port())
    yield one
    stop_valkey(one)


@asynccontextmanager
async def opened(port: int, limits: Limits | None = None) -> AsyncIterator[RedisStore]:
    store = RedisStore(f"redis://127.0.0.1:{port}", namespace=f"t{uuid.uuid4().hex}", limits=limits)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def connected(port: int, limits: Limits | None = None) -> AsyncIterator[SharedConnection]:
    connection = SharedConnection(Address(f"redis://127.0.0.1:{port}"), [pack(("PING",))], limits or Limits())
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


def a_nonce(value: str = "") -> Nonce:
    return Nonce("kid", value or uuid.uuid4().hex, NOW + 301, uuid.uuid4().hex)


def a_claim(invocation_id: str = "") -> TurnClaim:
    key = TurnKey("listing", invocation_id or uuid.uuid4().hex, "")
    return TurnClaim(key, a_nonce(), "digest", "kid", "c", uuid.uuid4().hex, 30.0, NOW + 3600, True, b"{}")


def an_end(claim: TurnClaim, reply: bytes = b"reply") -> TurnEnd:
    return TurnEnd(claim.key, 1, reply, "c", None, NOW + 3600)


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float = 20) -> float:
    """Wait for a condition; return how long it took."""
    since = time.monotonic()
    while not await condition():
        assert time.monotonic() - since < limit_s
        await asyncio.sleep(0.02)
    return time.monotonic() - since


async def works(store: RedisStore) -> bool:
    try:
        await store.probe()
    except StoreUnavailable:
        return False
    return True


class TestCoalescing:
    async def test_calls_of_one_tick_go_out_in_one_write(self, valkey: Valkey) -> None:
        async with opened(valkey.port) as store:
            line = store.connection
            writes, calls = line.writes, line.calls_written
            await asyncio.gather(*(store.spend(a_nonce(), NOW) for _ in range(32)))
            assert (line.writes - writes, line.calls_written - calls) == (1, 32)

    async def test_thirty_two_busy_callers_share_writes_of_eight_calls_or_more(self, valkey: Valkey) -> None:
        async with opened(valkey.port) as store:
            line = store.connection
            writes, calls = line.writes, line.calls_written

            async def turn_after_turn() -> None:
                for _ in range(20):
                    claim = a_claim()
                    assert isinstance(await store.claim_turn(claim, NOW), Held)
                    assert await store.finish_turn(an_end(claim), NOW)

            await asyncio.gather(*(turn_after_turn() for _ in range(32)))
            assert line.calls_written - calls == 32 * 20 * 2
            assert (line.calls_written - calls) / (line.writes - writes) >= 8


class TestLostAnswers:
    async def test_a_claim_whose_answer_was_lost_is_held_and_not_replayed(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            for _ in range(3):
                proxy.cuts = 1
                assert await store.claim_turn(a_claim(), NOW) == Held(1, 1, None, None, "")
                assert proxy.cuts == 0
            assert store.connection.reconnects == 3

    async def test_a_spend_whose_answer_was_lost_is_accepted_once(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            proxy.cuts = 1
            assert await store.spend(a_nonce("lost"), NOW)
            assert not await store.spend(a_nonce("lost"), NOW)

    async def test_an_end_whose_answer_was_lost_is_written(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            claim = a_claim()
            await store.claim_turn(claim, NOW)
            proxy.cuts = 1
            assert await store.finish_turn(an_end(claim), NOW)
            assert await store.peek_turn(claim.key, NOW) == Answered(b"reply")

    async def test_an_admission_whose_answer_was_lost_is_new_and_made_one_task(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            mine = admission(event=event(1))
            proxy.cuts = 1
            assert await store.admit_task(mine, NOW) == Admitted(mine.receipt, is_new=True)
            assert [row.task_id for row in await store.list_tasks(None, None, 10)] == [mine.task_id]
            assert [one.sequence for one in await store.list_events(None, None, 10)] == [1]

    async def test_a_lease_whose_answer_was_lost_is_one_lease(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            for _ in range(2):
                await store.admit_task(admission(), NOW)
            proxy.cuts = 1
            row = await store.lease_task(LISTING, fresh("op"), 30.0, NOW)
            assert row is not None
            assert (row.epoch, row.attempt) == (1, 1)
            assert [one.index.is_ready for one in await store.list_tasks(None, None, 10)].count(True) == 1

    async def test_a_change_a_claim_and_a_settlement_whose_answers_were_lost_are_done_once(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            await store.admit_task(admission(), NOW)
            row = await store.lease_task(LISTING, fresh("op"), 30.0, NOW)
            assert row is not None
            proxy.cuts = 1
            assert await store.commit_task(change(row, COMPLETED, event=event(1)), NOW)
            proxy.cuts = 1
            (delivery,) = await store.claim_events(HOST, fresh("op"), 20.0, 10, NOW)
            proxy.cuts = 1
            assert await store.settle_event(delivery, RetryAt(NOW + 5), NOW)
            assert [one.attempts for one in await store.list_events(None, None, 10)] == [1]
            (delivery,) = await store.claim_events(HOST, fresh("op"), 20.0, 10, NOW + 5)
            proxy.cuts = 1
            assert await store.settle_event(delivery, Delivered(), NOW + 5)
            assert store.connection.reconnects == 4

    async def test_a_call_lost_twice_is_unavailable_and_not_sent_again(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            before = proxy.script_calls
            proxy.cuts = 2
            with pytest.raises(StoreUnavailable, match="lost twice"):
                await store.spend(a_nonce(), NOW)
            await until(lambda: works(store))
            assert proxy.script_calls - before == 3

    async def test_calls_in_flight_over_a_cut_each_get_their_own_answer(self, proxy: Proxy) -> None:
        async with connected(proxy.port) as connection:
            proxy.delay_s = 0.2
            asked = [connection.call(pack(("ECHO", str(i)))) for i in range(300)]
            await asyncio.sleep(0.05)
            proxy.delay_s = 0
            proxy.cut()
            assert await asyncio.gather(*asked) == [b"%d" % i for i in range(300)]
            assert connection.reconnects == 1


class TestOrder:
    async def test_a_thousand_cancelled_calls_cross_no_answers(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            claims = a_claim(), a_claim()
            replies = b"first", b"second"
            for claim, reply in zip(claims, replies, strict=True):
                await store.claim_turn(claim, NOW)
                assert await store.finish_turn(an_end(claim, reply), NOW)
            proxy.delay_s = 0.03
            done = asyncio.Event()

            async def session(mine: int) -> int:
                reads = 0
                while not done.is_set():
                    assert await store.peek_turn(claims[mine].key, NOW) == Answered(replies[mine])
                    reads += 1
                return reads

            async def cancelled_call(i: int) -> None:
                call = asyncio.ensure_future(store.peek_turn(claims[i % 2].key, NOW))
                await asyncio.sleep(random.random() * 0.06)
                call.cancel()
                await asyncio.wait([call])

            sessions = [asyncio.ensure_future(session(i)) for i in (0, 1)]
            for i in range(10):
                await asyncio.gather(*(cancelled_call(i + j) for j in range(100)))
            done.set()
            assert min(await asyncio.gather(*sessions)) > 5
            assert store.connection.reconnects == 0

    async def test_an_error_reply_belongs_to_its_call_alone_and_quotes_nothing(self, valkey: Valkey) -> None:
        async with connected(valkey.port) as connection:
            before = connection.call(pack(("ECHO", "before")))
            wrong = connection.call(pack(("NOSUCHCOMMAND", "hidden-value")))
            after = connection.call(pack(("ECHO", "after")))
            assert (await before, await after) == (b"before", b"after")
            refusal = await wrong
            assert isinstance(refusal, Refused)
            assert "hidden" not in str(refusal)

    async def test_a_call_cancelled_before_it_went_out_is_never_sent(self, valkey: Valkey) -> None:
        async with opened(valkey.port) as store:
            sent = store.connection.calls_written
            calls = [asyncio.ensure_future(store.spend(a_nonce("n"), NOW)) for _ in range(3)]
            await asyncio.sleep(0)
            for call in calls[:2]:
                call.cancel()
            assert await calls[2]
            assert store.connection.calls_written - sent == 1


class TestBounds:
    async def test_of_five_thousand_calls_at_once_the_bound_is_served_and_the_rest_refused_at_once(
        self, valkey: Valkey
    ) -> None:
        async with opened(valkey.port, Limits(call_s=20, calls=3000)) as store:
            calls = [asyncio.ensure_future(store.spend(a_nonce(), NOW)) for _ in range(5000)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            refused = [call for call in calls if call.done()]
            assert len(refused) == 2000
            assert all(isinstance(call.exception(), StoreUnavailable) for call in refused)
            assert await asyncio.gather(*(call for call in calls if call not in set(refused))) == [True] * 3000
            assert await store.spend(a_nonce(), NOW)

    async def test_a_server_that_stands_still_costs_a_caller_its_time_limit_and_comes_back(
        self, server: Valkey
    ) -> None:
        async with opened(server.port, QUICK) as store:
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                since = time.monotonic()
                with pytest.raises(StoreUnavailable, match="time limit"):
                    await store.spend(a_nonce(), NOW)
                assert 0.3 < time.monotonic() - since < 1.5
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            assert await until(lambda: works(store)) < 5

    async def test_closing_lets_the_calls_under_way_end(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            proxy.delay_s = 0.1
            spends = [asyncio.ensure_future(store.spend(a_nonce(), NOW)) for _ in range(10)]
            await asyncio.sleep(0)
        assert await asyncio.gather(*spends) == [True] * 10
        with pytest.raises(StoreUnavailable):
            await store.probe()


class TestOutages:
    async def test_a_killed_server_is_unavailable_and_usable_again_within_five_seconds_of_its_return(
        self, server: Valkey
    ) -> None:
        async with opened(server.port) as store:
            used, claim = a_nonce(), a_claim()
            assert await store.spend(used, NOW)
            await store.claim_turn(claim, NOW)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            outcomes: set[type] = set()
            while_down = time.monotonic() + 1
            while time.monotonic() < while_down:
                asked = [store.spend(a_nonce(), NOW), store.claim_turn(a_claim(), NOW), store.probe()]
                outcomes |= {type(one) for one in await asyncio.gather(*asked, return_exceptions=True)}
            assert outcomes == {StoreUnavailable}
            again = start_valkey(server.folder, server.port)
            try:
                assert await until(lambda: works(store)) < 5
                assert not await store.spend(a_nonce(used.value), NOW)
                assert await store.finish_turn(an_end(claim), NOW)
            finally:
                stop_valkey(again)

    async def test_while_the_server_is_known_to_be_away_nobody_waits(self, server: Valkey) -> None:
        async with opened(server.port) as store:
            stop_valkey(server)

            async def refused_at_once() -> bool:
                since = time.monotonic()
                return not await works(store) and time.monotonic() - since < 0.05

            await until(refused_at_once)
            assert all([await refused_at_once() for _ in range(20)])

    async def test_a_primary_turned_replica_is_left_and_used_again_when_it_is_primary(self, server: Valkey) -> None:
        async with opened(server.port) as store, connected(server.port) as operator:
            await operator.call(pack(("REPLICAOF", "127.0.0.1", str(free_port()))))
            with pytest.raises(StoreUnavailable):
                await store.spend(a_nonce(), NOW)
            await until(lambda: _is(store.connection.reconnects >= 1))
            assert not await works(store)
            await operator.call(pack(("REPLICAOF", "NO", "ONE")))
            assert await until(lambda: works(store)) < 5

    async def test_a_connection_that_breaks_again_and_again_is_not_remade_in_a_spin(self, proxy: Proxy) -> None:
        async with opened(proxy.port) as store:
            since = time.monotonic()
            while time.monotonic() - since < 1.5:
                proxy.cuts = 1
                await works(store)
                await asyncio.sleep(0.001)
            proxy.cuts = 0
            assert 1 <= store.connection.reconnects < 15
            await until(lambda: works(store))


CERTIFICATE = """
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIEPARu5OjgdkOpFuh/xoSjE4YTE7RzVyeiAmkPQ1F7W7oAoGCCqGSM49
AwEHoUQDQgAEj7POnu1J2DrwlHv3IiHCy8NiVqANt7lRUi+p8E5BYBH4HCHQBgQb
PxL34Qlx4ErWAFhmnQYifiXVqa7Eh7Vxbw==
-----END EC PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUGnD8HcLLipUnCtxhdhd5UnWT6bUwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDE0MDUxOVoYDzIxMjYxMTA2
MTQwNTE5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASPs86e7UnYOvCUe/ciIcLLw2JWoA23uVFSL6nwTkFgEfgcIdAGBBs/
EvfhCXHgStYAWGadBiJ+JdWprsSHtXFvo2kwZzAdBgNVHQ4EFgQUtLfNr02VPphZ
kUduFlo6dZsSnDQwHwYDVR0jBBgwFoAUtLfNr02VPphZkUduFlo6dZsSnDQwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIgUKjUZq871i3fKzF2Z8/y1Bho85vM6pY2hK9zDJ7IlCYCIQCR8mqY5jKx
aQd12fVGbDTPuFMUW5ozxcGNLJpzxZwB+w==
-----END CERTIFICATE-----
"""
"""For localhost only, signed by itself."""


class TestTls:
    @pytest.fixture
    async def secured(self, valkey: Valkey, tmp_path: Path) -> AsyncIterator[tuple[Proxy, Path]]:
        """A proxy that speaks TLS, and its certificate."""
        certificate = tmp_path / "localhost.pem"
        certificate.write_text(CERTIFICATE)
        one = Proxy(valkey.port)
        one.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        one.tls.load_cert_chain(certificate)
        await one.start()
        yield one, certificate
        await one.stop()

    async def test_a_trusted_server_is_used_and_lost_answers_are_asked_again(self, secured: tuple[Proxy, Path]) -> None:
        proxy, certificate = secured
        store = RedisStore(f"rediss://localhost:{proxy.port}?ssl_ca_certs={certificate}")
        await store.open()
        proxy.cuts = 1
        assert await store.claim_turn(a_claim(), NOW) == Held(1, 1, None, None, "")
        await store.close()

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
    async def test_an_untrusted_or_misnamed_server_is_refused(self, secured: tuple[Proxy, Path], host: str) -> None:
        proxy, certificate = secured
        trust = "" if host == "localhost" else f"?ssl_ca_certs={certificate}"
        with pytest.raises(ConfigError, match="TLS failed"):
            await RedisStore(f"rediss://{host}:{proxy.port}{trust}").open()


async def _is(value: bool) -> bool:
    return value


WITHOUT_HIREDIS = """
import asyncio, sys
sys.modules["hiredis"] = None
from finch_gateway.stores.redis import RedisStore, scripts
from finch_gateway.store import *

async def main(url):
    store = RedisStore(url, namespace="plain")
    await store.open()
    nonces = [Nonce("kid", f"n{i % 500}", 1e10, f"op{i}") for i in range(1000)]
    spent = await asyncio.gather(*(store.spend(nonce, 1e10 - 300) for nonce in nonces))
    assert spent == [True] * 500 + [False] * 500, spent
    key, big = TurnKey("l", "i", ""), bytes(range(256)) * 2048
    claim = TurnClaim(key, nonces[-1], "d", "kid", "c", "op", 30.0, 1e10, True, b"")
    assert await store.claim_turn(claim, 1e10 - 300) == Replayed()
    claim = TurnClaim(key, None, "d", "kid", "c", "op", 30.5, 1e10, True, b"")
    held = await store.claim_turn(claim, 1e10 - 300)
    assert held == Held(1, 1, None, None, ""), held
    assert await store.peek_turn(key, 1e10 - 300) == Running(1e10 - 300 + 30.5)
    assert await store.finish_turn(TurnEnd(key, 1, big, "c", None, 1e10), 1e10 - 300)
    await store.connection.call(scripts.pack(("SCRIPT", "FLUSH")))
    assert await store.peek_turn(key, 1e10 - 300) == Answered(big)
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


def test_everything_works_without_hiredis(server: Valkey) -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_HIREDIS, server.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
