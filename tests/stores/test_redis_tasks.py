"""Tasks and callbacks in the Redis store: what is kept where, what it costs, what a full memory still takes."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

import pytest
from msgspec.msgpack import decode
from support.task_store import (
    ASKING,
    CANCELED,
    CLAIM_S,
    COMPLETED,
    HOST,
    LATER,
    LEASE_S,
    LISTING,
    NOW,
    QUEUED,
    WORKING,
    admission,
    admit,
    change,
    claim,
    claim_one,
    commit,
    drop_over,
    event,
    fresh,
    held_of,
    lease,
    progress,
    row_of,
    running,
)

from finch_gateway.errors import StoreUnavailable
from finch_gateway.store import Dead, Delivered, HeldTask, RetryAt, TaskRow
from finch_gateway.stores.redis import RedisStore
from finch_gateway.stores.redis.address import Address
from finch_gateway.stores.redis.connection import Limits, SharedConnection
from finch_gateway.stores.redis.keys import receipt_name, tag_of
from finch_gateway.stores.redis.reading import Reply
from finch_gateway.stores.redis.scripts import pack
from tests.conftest import Valkey, free_port, start_valkey, stop_valkey

DAY = 86_400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A server whose settings the tests may change, as long as they put them back."""
    one = start_valkey(tmp_path_factory.mktemp("redis"), free_port())
    yield one
    stop_valkey(one)


class Prompt:
    """The server's own prompt, within the store's namespace."""

    def __init__(self, connection: SharedConnection, tag: bytes) -> None:
        self.connection, self.tag = connection, tag

    async def do(self, *command: str | bytes | int) -> Reply:
        answer = await self.connection.call(pack(command))
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    async def about(self, command: str, name: bytes, *more: str | bytes | int) -> Reply:
        """Run a command on one key."""
        return await self.do(command, self.tag + name, *more)

    async def flat(self, command: str, name: bytes, *more: str | bytes | int) -> list[bytes]:
        answer = await self.about(command, name, *more)
        assert isinstance(answer, list)
        return [one for one in answer if isinstance(one, bytes)]

    async def number(self, *command: str | bytes | int) -> int:
        answer = await self.do(*command)
        assert isinstance(answer, int)
        return answer

    async def names(self, prefix: bytes = b"") -> list[bytes]:
        keys = await self.do("KEYS", self.tag + prefix + b"*")
        assert isinstance(keys, list)
        return [key.removeprefix(self.tag) for key in keys if isinstance(key, bytes)]

    async def scores(self, name: bytes) -> dict[str, float]:
        flat = await self.flat("ZRANGE", name, 0, -1, "WITHSCORES")
        return {member.decode(): float(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}

    async def info(self, section: str, name: str) -> int:
        text = await self.do("INFO", section)
        assert isinstance(text, bytes)
        return next(int(line.split(":")[1]) for line in text.decode().splitlines() if line.startswith(f"{name}:"))


@pytest.fixture
def namespace() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
async def store(server: Valkey, namespace: str) -> AsyncIterator[RedisStore]:
    one = RedisStore(server.url, namespace=namespace)
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def prompt(server: Valkey, namespace: str) -> AsyncIterator[Prompt]:
    connection = SharedConnection(Address(server.url), [pack(("PING",))], Limits())
    await connection.open()
    yield Prompt(connection, tag_of(namespace))
    await connection.close()


class TestKeeping:
    async def test_an_open_task_and_its_events_never_expire(self, store: RedisStore, prompt: Prompt) -> None:
        row = await commit(store, await running(store, event=event(1)), index=ASKING, keeps_lease=False)
        for name in (b"k", b"o"):
            assert await prompt.about("PTTL", name + row.task_id.encode()) == -1

    async def test_an_ended_task_and_its_events_expire_on_the_server_where_nobody_purges(
        self, store: RedisStore, prompt: Prompt
    ) -> None:
        row = await running(store, event=event(1))
        await commit(store, row, index=COMPLETED, event=event(2), keep_until=NOW + 3 * DAY)
        for name in (b"k", b"o"):
            left_ms = await prompt.number("PTTL", prompt.tag + name + row.task_id.encode())
            assert 3 * DAY < left_ms / 1000 < 5 * DAY

    async def test_a_receipt_expires_on_its_own(self, store: RedisStore, prompt: Prompt) -> None:
        one = await admit(store, receipt_until=NOW + 365 * DAY)
        name = receipt_name(one.listing, one.invocation_id)
        assert await prompt.number("PTTL", prompt.tag + b"i" + name) / 1000 == pytest.approx(365 * DAY, abs=60)

    async def test_what_an_operation_claimed_is_remembered_only_as_long_as_its_claim(
        self, store: RedisStore, prompt: Prompt
    ) -> None:
        await admit(store, event=event(1))
        assert await store.settle_event(await claim_one(store), Delivered(), NOW)
        (name,) = await prompt.names(b"q")
        assert 0 < await prompt.number("PTTL", prompt.tag + name) <= (CLAIM_S + 30) * 1000

    async def test_a_purged_task_leaves_its_receipt_and_its_listing_s_name_behind(
        self, store: RedisStore, prompt: Prompt
    ) -> None:
        await commit(store, await running(store, nonce=None, event=event(1)), index=COMPLETED, keep_until=NOW + 10)
        await drop_over(store, NOW + 10)
        assert {name[:1] for name in await prompt.names()} - {b"i"} == {b"l", b"p"}
        assert {name for name in await prompt.names() if name[:1] != b"i"} == {b"listings", b"probe"}

    async def test_a_change_does_not_write_the_dispatch_again(self, store: RedisStore, prompt: Prompt) -> None:
        row = await running(store, dispatch=bytes(500_000), event=event(1, body=bytes(500_000)))
        before = await prompt.info("persistence", "aof_current_size")
        row = await commit(store, row, event=progress(2))
        row = await commit(store, row, event=progress(3))
        await store.renew_tasks([held_of(row)], LATER, NOW)
        await store.settle_event(await claim_one(store), RetryAt(NOW + 1), NOW)
        await commit(store, row, index=COMPLETED, event=event(4))
        assert await prompt.info("persistence", "aof_current_size") - before < 20_000

    async def test_an_idle_queued_task_costs_less_than_a_kilobyte_beside_its_blobs(
        self, store: RedisStore, prompt: Prompt
    ) -> None:
        count, blobs = 2_000, 0
        await admit(store)
        before = await prompt.info("memory", "used_memory_dataset")
        for _ in range(count):
            one = await admit(store, nonce=None, max_queue=10 * count)
            blobs += len(one.dispatch) + len(one.record) + len(one.receipt)
        used = await prompt.info("memory", "used_memory_dataset") - before
        assert (used - blobs) / count < 1_000


class TestFullMemory:
    @pytest.fixture
    async def full(self, prompt: Prompt) -> AsyncIterator[_Full]:
        one = _Full(prompt)
        yield one
        await one.until(0)

    async def test_nothing_new_is_taken(self, store: RedisStore, full: _Full) -> None:
        row = await running(store)
        await admit(store)
        await full.until(1)
        for refused in (
            store.admit_task(admission(), NOW),
            store.lease_task(LISTING, fresh("op"), LEASE_S, NOW),
            store.commit_task(change(row, event=progress(1)), NOW),
        ):
            with pytest.raises(StoreUnavailable, match="OOM"):
                await refused
        await full.until(0)
        assert await row_of(store, row.task_id) == row
        assert await store.list_events(None, None, 10) == []
        assert (await lease(store)).epoch == 1

    async def test_work_that_runs_keeps_its_lease_and_ends_pauses_or_is_given_back(
        self, store: RedisStore, full: _Full
    ) -> None:
        ending, asking, leaving, cancelled = [await running(store) for _ in range(4)]
        await full.until(1)
        assert await store.renew_tasks([held_of(ending)], LATER, NOW) == []
        assert await store.commit_task(change(ending, COMPLETED, event=event(1), record=bytes(9_000)), NOW)
        assert await store.commit_task(change(asking, ASKING, event=event(1), keeps_lease=False), NOW)
        assert await store.release_task(held_of(leaving), NOW)
        assert await store.commit_task(change(cancelled, CANCELED, epoch=None), NOW)
        assert (await row_of(store, ending.task_id)).index == COMPLETED

    async def test_callbacks_leave_and_make_room(self, store: RedisStore, full: _Full) -> None:
        for _ in range(3):
            await admit(store, event=event(1))
        await full.until(1)
        deliveries = await claim(store)
        for delivery, end in zip(deliveries, (Delivered(), RetryAt(NOW + 9), Dead("gone")), strict=True):
            assert await store.settle_event(delivery, end, NOW)
        assert len(await store.list_events(None, None, 10)) == 2


class _Full:
    """Sets how much memory the server may use; 0 is without limit."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt

    async def until(self, limit_bytes: int) -> None:
        await self.prompt.do("CONFIG", "SET", "maxmemory", limit_bytes)


class TestIndexes:
    @pytest.mark.parametrize("seed", range(4))
    async def test_after_any_history_every_index_says_what_the_records_say(
        self, store: RedisStore, prompt: Prompt, seed: int
    ) -> None:
        life = Life(store, random.Random(seed))
        for _ in range(12):
            for _ in range(25):
                await life.step()
            await indexes_agree(prompt)
        assert life.done > 100

    async def test_a_task_whose_key_somebody_deleted_stands_in_nobody_s_way(
        self, store: RedisStore, prompt: Prompt
    ) -> None:
        lost = await admit(store, event=event(1), index=replace(QUEUED, deadline=NOW + 5))
        other = await admit(store, NOW + 1, event=event(1), index=replace(QUEUED, deadline=NOW + 6))
        for name in (b"k", b"o"):
            await prompt.about("DEL", name + lost.task_id.encode())
        assert await store.lease_task(LISTING, fresh("op"), LEASE_S, NOW + 2) is None
        assert (await lease(store, NOW + 2)).task_id == other.task_id
        assert [row.task_id for row in await store.due_tasks(NOW + 10, 10)] == [other.task_id]
        assert [one.task_id for one in await claim(store, NOW + 2, limit=1)] == []
        assert [one.task_id for one in await claim(store, NOW + 2)] == [other.task_id]
        assert [row.task_id for row in await store.list_tasks(None, None, 10)] == [other.task_id]
        assert [one.task_id for one in await store.list_events(None, None, 10)] == [other.task_id]


class Life:
    """One thing after another happens to a few tasks of two listings, calling back two hosts."""

    def __init__(self, store: RedisStore, chance: random.Random) -> None:
        self.store, self.chance = store, chance
        self.now, self.done = NOW, 0
        self.sequences: dict[str, int] = defaultdict(int)

    async def step(self) -> None:
        self.now += self.chance.choice([0.0, 0.25, 4.0])
        happen = self.chance.choice(
            [self.admit, self.lease, self.lease, self.change, self.change, self.change, self.deliver, self.tend]
        )
        await happen()

    def event(self, task_id: str, *, replaceable: bool) -> object:
        self.sequences[task_id] += 1
        host = self.chance.choice([HOST, "other.example"])
        return event(self.sequences[task_id], host=host, replaceable=replaceable, not_before=self.now)

    async def admit(self) -> None:
        task_id = fresh("task")
        one = self.event(task_id, replaceable=False)
        await self.store.admit_task(
            admission(task_id=task_id, listing=self.chance.choice([LISTING, "other"]), event=one, max_queue=5), self.now
        )

    async def lease(self) -> None:
        await self.store.lease_task(self.chance.choice([LISTING, "other"]), fresh("op"), 5.0, self.now)

    async def tasks(self) -> Sequence[TaskRow]:
        rows = await self.store.list_tasks(None, True, 100)
        return self.chance.sample(list(rows), min(len(rows), 2))

    async def change(self) -> None:
        for row in await self.tasks():
            index = self.chance.choice([WORKING, WORKING, ASKING, COMPLETED, QUEUED])
            one = self.event(row.task_id, replaceable=index is WORKING)
            keep_until = self.now + self.chance.choice([5.0, 500.0])
            keeps = index is WORKING
            mine = change(row, index, event=one, keeps_lease=keeps, keep_until=keep_until)
            self.done += await self.store.commit_task(mine, self.now)

    async def deliver(self) -> None:
        for host in await self.store.due_hosts(self.now):
            for one in await self.store.claim_events(host, fresh("op"), 5.0, 3, self.now):
                end = self.chance.choice([Delivered(), RetryAt(self.now + 3), Dead("gone"), None])
                if end is not None:
                    self.done += await self.store.settle_event(one, end, self.now)

    async def tend(self) -> None:
        await self.store.purge(self.now, 3)
        held = [HeldTask(row.task_id, row.epoch) for row in await self.tasks()]
        await self.store.renew_tasks(held[:1], self.now + 5, self.now)
        for one in held[1:]:
            await self.store.release_task(one, self.now)
        for dead in (await self.store.list_events(None, True, 100))[:1]:
            await self.store.resend_event(dead.task_id, dead.sequence, self.now)


async def indexes_agree(prompt: Prompt) -> None:
    """Compute every index anew from the records, and find nothing else in the store."""
    expected: dict[str, dict[str, float]] = defaultdict(dict)
    open_by_key: dict[str, int] = defaultdict(int)
    holders: dict[str, str] = {}
    for name in await prompt.names(b"k"):
        (packed,) = await prompt.flat("HMGET", name, "h")
        listing, _, key_id, made, _, ready, final, deadline, _, _, _, leased, holder, _, keep = decode(packed)
        task_id = name[1:].decode()
        expected[f"made:{'ended' if final else 'open'}:{listing}"][task_id] = made
        if ready:
            expected[f"ready:{listing}"][task_id] = ready
        if leased:
            expected[f"leased:{listing}"][task_id] = leased
            holders[holder] = task_id
        if final:
            expected["ended"][f"{len(listing)}:{listing}{task_id}"] = keep
        else:
            expected["deadlines"][task_id] = deadline
            open_by_key[key_id] += 1
    for name in await prompt.names(b"o"):
        if name != b"open":
            expect_events(expected, name[1:].decode(), decode((await prompt.flat("HMGET", name, "q"))[0]))
            assert await prompt.about("EXISTS", b"k" + name[1:])
    for name, scores in list(expected.items()):
        if name.startswith(("due:", "claimed:")):
            host = name.partition(":")[2]
            expected["hosts"][host] = min(min(scores.values()), expected["hosts"].get(host, float("inf")))
    found = {
        name.decode(): await prompt.scores(name)
        for name in await prompt.names()
        if await prompt.about("TYPE", name) == b"zset"
    }
    assert found == dict(expected)
    assert await prompt.flat("HGETALL", b"holders") == _flat_of(holders, await prompt.flat("HKEYS", b"holders"))
    counted = await prompt.flat("HGETALL", b"open")
    assert dict(zip(counted[::2], counted[1::2], strict=True)) == {
        key.encode(): str(count).encode() for key, count in open_by_key.items()
    }


def _flat_of(holders: dict[str, str], order: list[bytes]) -> list[bytes]:
    assert set(holders) == {op.decode() for op in order}
    return [part for op in order for part in (op, holders[op.decode()].encode())]


def expect_events(expected: dict[str, dict[str, float]], task_id: str, queue: list[object]) -> None:
    stands_under, *events = queue
    assert events, "an outbox without events"
    head: tuple[str, str, float] | None = None
    for sequence, host, _, _, written, due, claimed_by, claim_until, dead, _ in events:  # type: ignore[misc]
        expected["live" if dead is False else "dead"][f"{task_id}:{sequence:012d}"] = written
        if claimed_by is not False:
            head = ("claimed", host, claim_until)
        elif dead is False:
            head = head or ("due", host, due)
    assert stands_under == (head[1] if head else False)
    if head:
        expected[f"{head[0]}:{head[1]}"][task_id] = head[2]
