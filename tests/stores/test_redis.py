"""The Redis store on a real server: what it refuses at start, what it keeps where, what it survives."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.task_store import CLAIM_S, COMPLETED, HOST, LEASE_S, LISTING, admission, change, event, fresh

from finch_gateway.errors import ConfigError, StoreUnavailable
from finch_gateway.store import (
    Answered,
    Dead,
    Held,
    HeldTask,
    KeepQuestion,
    KnownRevision,
    Nonce,
    RetryAt,
    Running,
    TaskRow,
    TurnClaim,
    TurnEnd,
    TurnKey,
)
from finch_gateway.stores.redis import RedisStore, scripts
from finch_gateway.stores.redis.address import Address
from finch_gateway.stores.redis.connection import Limits, SharedConnection
from finch_gateway.stores.redis.keys import nonce_name, tag_of, turn_name
from finch_gateway.stores.redis.reading import Reply
from finch_gateway.stores.redis.scripts import Fact, Script, pack
from tests.conftest import Valkey, free_port, start_valkey, stop_valkey

NOW = float(int(time.time()))
DAY = 86_400
PASSWORD = "pass-Word-7"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A server whose settings the tests may change, as long as they put them back."""
    one = start_valkey(tmp_path_factory.mktemp("redis"), free_port())
    yield one
    stop_valkey(one)


class Operator:
    """Someone at the server's own prompt."""

    def __init__(self, connection: SharedConnection) -> None:
        self.connection = connection

    async def do(self, *command: str | bytes | int) -> Reply:
        answer = await self.connection.call(pack(command))
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer


@pytest.fixture
async def operator(server: Valkey) -> AsyncIterator[Operator]:
    connection = SharedConnection(Address(server.url), [pack(("PING",))], Limits())
    await connection.open()
    yield Operator(connection)
    await connection.close()


@asynccontextmanager
async def setting(operator: Operator, name: str, value: str, usual: str) -> AsyncIterator[None]:
    await operator.do("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        await operator.do("CONFIG", "SET", name, usual)


@pytest.fixture
def namespace() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def tag(namespace: str) -> bytes:
    """What the store's keys begin with."""
    return tag_of(namespace)


@pytest.fixture
async def store(server: Valkey, namespace: str) -> AsyncIterator[RedisStore]:
    one = RedisStore(server.url, namespace=namespace)
    await one.open()
    yield one
    await one.close()


def a_nonce() -> Nonce:
    return Nonce("kid", uuid.uuid4().hex, NOW + 301, uuid.uuid4().hex)


def a_claim(conversation_id: str = "c", **changes: Nonce | None) -> TurnClaim:
    key = TurnKey("listing", uuid.uuid4().hex, "")
    nonce = changes.get("nonce", a_nonce())
    return TurnClaim(key, nonce, "d", "kid", conversation_id, uuid.uuid4().hex, 30.0, NOW + DAY, True, b"{}")


async def refusal(url: str) -> str:
    """The one line an operator reads when the store does not open."""
    with pytest.raises(ConfigError) as caught:
        await RedisStore(url).open()
    (problem,) = caught.value.problems
    assert problem.setting == "store.url"
    assert "\n" not in str(problem)
    assert PASSWORD not in repr(caught.value.__dict__) + str(caught.value)
    return str(problem)


class TestStart:
    async def test_a_server_that_is_not_there_is_named_with_the_remedy(self) -> None:
        port = free_port()
        line = await refusal(f"redis://user:{PASSWORD}@127.0.0.1:{port}/0")
        assert f"127.0.0.1:{port}" in line
        assert "start the server" in line
        assert "user" not in line

    async def test_a_name_that_does_not_resolve_is_refused(self) -> None:
        assert "no-such-host.invalid" in await refusal("redis://no-such-host.invalid")

    @pytest.mark.parametrize("userinfo", ["", f":{PASSWORD}@", f"default:{PASSWORD}@", f"nobody:{PASSWORD}@"])
    async def test_a_wrong_or_missing_password_is_named_and_never_shown(
        self, server: Valkey, operator: Operator, userinfo: str
    ) -> None:
        async with setting(operator, "requirepass", "another", ""):
            assert "password" in await refusal(f"redis://{userinfo}127.0.0.1:{server.port}")

    async def test_the_right_password_opens(self, server: Valkey, operator: Operator) -> None:
        async with setting(operator, "requirepass", "p@ss:w/rd", ""):
            store = RedisStore(f"redis://:p%40ss%3Aw%2Frd@127.0.0.1:{server.port}/1")
            await store.open()
            assert await store.spend(a_nonce(), NOW)
            await store.close()

    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
    async def test_an_evicting_server_is_refused(self, server: Valkey, operator: Operator, policy: str) -> None:
        async with setting(operator, "maxmemory-policy", policy, "noeviction"):
            line = await refusal(server.url)
        assert policy in line
        assert "set maxmemory-policy noeviction" in line

    async def test_a_replica_is_refused(self, server: Valkey, operator: Operator) -> None:
        await operator.do("REPLICAOF", "127.0.0.1", free_port())
        try:
            assert "name the primary" in await refusal(server.url)
        finally:
            await operator.do("REPLICAOF", "NO", "ONE")

    async def test_cluster_mode_is_refused(self, tmp_path: Path) -> None:
        cluster = start_valkey(tmp_path, free_port(), "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        try:
            assert "cluster mode" in await refusal(cluster.url)
        finally:
            stop_valkey(cluster)

    async def test_a_server_without_memory_is_refused(self, server: Valkey, operator: Operator) -> None:
        async with setting(operator, "maxmemory", "1", "0"):
            assert "takes no writes" in await refusal(server.url)

    @pytest.mark.parametrize("hello", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"$3\r\nabc\r\n" * 30])
    async def test_what_is_no_such_server_is_refused(self, hello: bytes) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(hello)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as stranger:
            await refusal(f"redis://127.0.0.1:{stranger.sockets[0].getsockname()[1]}")

    async def test_tls_towards_a_plain_server_is_refused(self, server: Valkey) -> None:
        assert "rediss:// where" in await refusal(f"rediss://127.0.0.1:{server.port}")

    async def test_an_old_server_is_refused(self) -> None:
        info = b"redis_version:6.0.16\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                if line.startswith(b"*"):
                    words = [(await reader.readline(), await reader.readline())[1] for _ in range(int(line[1:]))]
                    reply = b"$%d\r\n%b\r\n" % (len(info), info) if words[0] == b"INFO\r\n" else b"+OK\r\n"
                    writer.write(reply)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0, limit=2**20) as old:
            line = await refusal(f"redis://127.0.0.1:{old.sockets[0].getsockname()[1]}")
        assert "6.0" in line
        assert "6.2 or newer" in line

    @pytest.mark.parametrize(
        "url",
        [
            f"redis://user:{PASSWORD}/x@host:12:13",
            f"redis://:{PASSWORD}@host:{PASSWORD}",
            f"http://:{PASSWORD}@host",
            f"redis://:{PASSWORD}@host?max_connections=3",
            f"redis://:{PASSWORD}@host?retry_on_timeout=yes",
            f"rediss://:{PASSWORD}@host?ssl_cert_reqs=perhaps",
            f"redis://:{PASSWORD}@[host",
        ],
    )
    async def test_a_malformed_url_is_one_line_without_its_secrets(self, url: str) -> None:
        with pytest.raises(ConfigError) as caught:
            await RedisStore(url).open()
        assert caught.value.problems[0].setting == "store.url"
        assert PASSWORD not in str(caught.value)

    @pytest.mark.parametrize("namespace", ["", "a{b", "a}b"])
    def test_a_namespace_that_breaks_the_slot_is_refused(self, namespace: str) -> None:
        with pytest.raises(ConfigError, match=r"store\.namespace"):
            RedisStore("redis://localhost", namespace=namespace)

    async def test_a_durable_server_gives_no_warning(self, store: RedisStore) -> None:
        assert store.warnings == ()

    @pytest.mark.parametrize(
        ("name", "value", "usual"), [("appendfsync", "everysec", "always"), ("appendonly", "no", "yes")]
    )
    async def test_a_server_that_may_forget_gives_a_warning(
        self, server: Valkey, operator: Operator, name: str, value: str, usual: str
    ) -> None:
        async with setting(operator, name, value, usual):
            store = RedisStore(server.url)
            await store.open()
            await store.close()
        (warning,) = store.warnings
        assert f"set {name} {usual}" in warning

    async def test_a_clock_that_differs_gives_a_warning(self, server: Valkey) -> None:
        store = RedisStore(server.url, clock=lambda: time.time() + 60)
        await store.open()
        await store.close()
        (warning,) = store.warnings
        assert "clock differs" in warning

    async def test_a_user_who_may_only_do_the_work_opens_with_warnings(
        self, server: Valkey, operator: Operator
    ) -> None:
        may = ["+evalsha", "+eval", "+get", "+set", "+del", "+zadd", "+zrem", "~{small}*"]
        await operator.do("ACL", "SETUSER", "small", "on", f">{PASSWORD}", *may)
        store = RedisStore(f"redis://small:{PASSWORD}@127.0.0.1:{server.port}", namespace="small")
        await store.open()
        claim = a_claim()
        assert isinstance(await store.claim_turn(claim, NOW), Held)
        assert await store.finish_turn(TurnEnd(claim.key, 1, b"r", "c", None, NOW + DAY), NOW)
        await store.close()
        assert len(store.warnings) == 2
        assert any("noeviction" in warning for warning in store.warnings)


class TestKeeping:
    async def test_every_key_of_every_method_begins_with_the_namespace_s_tag(
        self, server: Valkey, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used: set[str] = set()
        by_name = Script.by_name

        def noting(script: Script, tag: bytes, facts: tuple[Fact, ...], raw: tuple[bytes, ...]) -> bytes:
            used.add(script.sha)
            return by_name(script, tag, facts, raw)

        monkeypatch.setattr(Script, "by_name", noting)
        await operator.do("ACL", "SETUSER", "narrow", "on", f">{PASSWORD}", "+@all", "~{narrow}*")
        store = RedisStore(f"redis://narrow:{PASSWORD}@127.0.0.1:{server.port}", namespace="narrow")
        await store.open()
        await use_everything(store)
        await store.close()
        assert used == {script.sha for script in scripts.ALL}

    async def test_everything_but_revisions_indexes_and_open_tasks_expires(
        self, store: RedisStore, operator: Operator, tag: bytes
    ) -> None:
        still_open = (await use_everything(store)).encode()
        keys = await operator.do("KEYS", tag + b"*")
        assert isinstance(keys, list)
        named = {key.removeprefix(tag): key for key in keys if isinstance(key, bytes)}
        lasting = {name for name, key in named.items() if await operator.do("PTTL", key) == -1}
        indexes = {name for name in lasting if name.partition(b":")[0] in INDEXES}
        assert lasting - indexes == {b"revisions", b"k" + still_open, b"o" + still_open}
        assert len(named) > len(lasting) + 6

    async def test_a_nonces_memory_ends_shortly_after_its_time(
        self, store: RedisStore, operator: Operator, tag: bytes
    ) -> None:
        nonce = a_nonce()
        await store.spend(nonce, NOW)
        left = await operator.do("PTTL", tag + b"n" + nonce_name(nonce))
        assert isinstance(left, int)
        assert 300_000 < left <= 312_000

    async def test_a_record_expires_on_the_server_by_itself(
        self, store: RedisStore, operator: Operator, tag: bytes
    ) -> None:
        claim = a_claim()
        await store.claim_turn(claim, NOW)
        assert await store.finish_turn(TurnEnd(claim.key, 1, b"r", "c", None, NOW + 2 * DAY), NOW)
        left = await operator.do("PTTL", tag + b"t" + turn_name(claim.key))
        assert isinstance(left, int)
        assert abs(left - 2 * DAY * 1000) < 15_000

    async def test_a_nonce_costs_less_than_160_bytes(self, store: RedisStore, operator: Operator, tag: bytes) -> None:
        nonce = a_nonce()
        await store.spend(nonce, NOW)
        used = await operator.do("MEMORY", "USAGE", tag + b"n" + nonce_name(nonce))
        assert isinstance(used, int)
        assert used < 160

    async def test_purging_trims_ended_leases_in_batches(
        self, store: RedisStore, operator: Operator, tag: bytes
    ) -> None:
        for _ in range(7):
            await store.claim_turn(a_claim(), NOW)
        assert [await store.purge(NOW + 31, 3) for _ in range(4)] == [3, 3, 1, 0]
        assert await operator.do("EXISTS", tag + b"running") == 0

    async def test_namespaces_share_nothing(self, server: Valkey) -> None:
        one, two = RedisStore(server.url, namespace="one"), RedisStore(server.url, namespace="two")
        await asyncio.gather(one.open(), two.open())
        nonce = a_nonce()
        assert await one.spend(nonce, NOW)
        assert await two.spend(Nonce("kid", nonce.value, NOW + 301, "other"), NOW)
        await asyncio.gather(one.close(), two.close())

    async def test_turns_outside_any_conversation_share_no_question(self, store: RedisStore) -> None:
        asking = a_claim(conversation_id="")
        await store.claim_turn(asking, NOW)
        question = KeepQuestion(b"question", NOW + DAY)
        assert await store.finish_turn(TurnEnd(asking.key, 1, b"r", "", question, NOW + DAY), NOW)
        assert await store.claim_turn(a_claim(conversation_id=""), NOW) == Held(1, 1, None, None, "")

    async def test_instants_come_back_digit_for_digit(self, store: RedisStore) -> None:
        now = NOW + 0.1234567
        claim = a_claim()
        await store.claim_turn(claim, now)
        assert await store.peek_turn(claim.key, now) == Running(now + 30.0)


INDEXES = frozenset(
    b"running ready leased deadlines open holders listings made ended due claimed hosts live dead".split()
)


async def use_everything(store: RedisStore) -> str:
    """Call every method with success; return the id of the task that is left open, with an event."""
    await store.spend(a_nonce(), NOW)
    await store.probe()
    await use_turns(store)
    still_open = await use_tasks(store)
    await store.register_revisions([KnownRevision("kid", "listing", "mark", NOW)])
    await store.known_revisions()
    await store.forget_revision("other")
    await store.purge(NOW, 10)
    return still_open


async def use_turns(store: RedisStore) -> None:
    finished, given_back = a_claim(), a_claim(nonce=None)
    await store.claim_turn(finished, NOW)
    await store.claim_turn(given_back, NOW)
    await store.save_turn(given_back.key, 1, b"saved", NOW)
    await store.renew_turn(given_back.key, 1, NOW + 99, NOW)
    assert await store.running_turns(NOW) == {"kid": 2}
    await store.release_turn(given_back.key, 1, NOW)
    end = TurnEnd(finished.key, 1, b"reply", "c", KeepQuestion(b"q", NOW + DAY), NOW + DAY)
    assert await store.finish_turn(end, NOW)
    assert await store.peek_turn(finished.key, NOW) == Answered(b"reply")


async def use_tasks(store: RedisStore) -> str:
    ended, still_open = admission(event=event(1)), admission(event=event(1))
    await store.admit_task(ended, NOW)
    row = await store.lease_task(LISTING, fresh("op"), LEASE_S, NOW)
    assert row is not None
    await store.admit_task(still_open, NOW)
    held = [HeldTask(row.task_id, row.epoch)]
    assert await store.renew_tasks(held, NOW + 60, NOW) == []
    assert await store.lost_tasks(held) == []
    assert await store.release_task(held[0], NOW)
    row = await store.read_task(row.task_id, LISTING, None, NOW)
    assert isinstance(row, TaskRow)
    assert await store.commit_task(change(row, COMPLETED, event=event(2)), NOW)
    assert await store.due_hosts(NOW) == [HOST]
    dead, later = await store.claim_events(HOST, fresh("op"), CLAIM_S, 10, NOW)
    assert await store.settle_event(dead, Dead("gone"), NOW)
    assert await store.settle_event(later, RetryAt(NOW + 5), NOW)
    assert await store.resend_event(dead.task_id, dead.sequence, NOW)
    assert len(await store.list_events(None, None, 10)) == 3
    assert len(await store.list_tasks(None, None, 10)) == 2
    assert len(await store.due_tasks(NOW + 1_000, 10)) == 1
    assert await store.open_tasks() == {"kid": 1}
    return still_open.task_id


class TestTrouble:
    async def test_flushing_scripts_in_mid_load_fails_nobody(self, store: RedisStore, operator: Operator) -> None:
        async def turns() -> None:
            for _ in range(30):
                claim = a_claim()
                assert await store.claim_turn(claim, NOW) == Held(1, 1, None, None, "")
                assert await store.finish_turn(TurnEnd(claim.key, 1, b"r", "c", None, NOW + DAY), NOW)
                assert await store.spend(a_nonce(), NOW)

        async def flushes() -> None:
            while True:
                await operator.do("SCRIPT", "FLUSH")
                await asyncio.sleep(0.005)

        flushing = asyncio.ensure_future(flushes())
        await asyncio.gather(*(turns() for _ in range(16)))
        flushing.cancel()
        assert store.connection.reconnects == 0

    async def test_full_memory_takes_nothing_new_until_memory_is_free(
        self, store: RedisStore, operator: Operator
    ) -> None:
        claim, waiting, nonce = a_claim(), a_claim(), a_nonce()
        await store.claim_turn(claim, NOW)
        async with setting(operator, "maxmemory", "1", "0"):
            for refused in (
                store.spend(nonce, NOW),
                store.claim_turn(waiting, NOW),
                store.save_turn(claim.key, 1, b"saved", NOW),
                store.probe(),
            ):
                with pytest.raises(StoreUnavailable, match="OOM"):
                    await refused
            assert await store.peek_turn(claim.key, NOW) == Running(NOW + 30)
        assert await store.spend(Nonce("kid", nonce.value, NOW + 301, "other"), NOW)
        assert await store.claim_turn(waiting, NOW) == Held(1, 1, None, None, "")

    async def test_full_memory_still_takes_the_answer_of_a_turn_that_ran(
        self, store: RedisStore, operator: Operator
    ) -> None:
        claim = a_claim()
        await store.claim_turn(claim, NOW)
        async with setting(operator, "maxmemory", "1", "0"):
            assert await store.finish_turn(TurnEnd(claim.key, 1, b"r", "c", None, NOW + DAY), NOW)
            assert await store.peek_turn(claim.key, NOW) == Answered(b"r")
