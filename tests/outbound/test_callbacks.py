"""Callbacks over real sockets and real stores: signed, in order, each host for itself, until taken or given up."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ipaddress
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.receiver import Receiver

from finch_gateway.errors import StoreUnavailable
from finch_gateway.http import Dialler, GuardedClient, HttpFailed, HttpHead
from finch_gateway.observe import Log
from finch_gateway.outbound import lane as lanes
from finch_gateway.outbound.attempts import Attempts, Claimed, Gate
from finch_gateway.outbound.callbacks import CallbackDelivery, CallbackSettings, CallbackSigner, Schedule
from finch_gateway.store import (
    Delivery,
    DeliveryEnd,
    EventRow,
    NewEvent,
    Store,
    TaskAdmission,
    TaskChange,
    TaskIndex,
    TaskRow,
)
from finch_gateway.wire.destinations import Address, OutboundRules, read_destination
from finch_gateway.wire.signing import SigningKey

SECRET = b"s" * 32
KEY_ID = "finch.agenton.00000000-0000-4000-8000-000000000001"
SIGNER = CallbackSigner(KEY_ID, SigningKey(SECRET))
LISTING = "report-writer"
RULES = OutboundRules(allow_hosts=("*.test",), allow_private=True)
QUICK = CallbackSettings(
    schedule=Schedule(whole_s=60, first_s=0.05, cap_s=0.2, refused_gaps_s=(0.05, 0.05)),
    attempt_s=5.0,
    poll_s=0.05,
)
FINAL = {"completed", "failed"}


async def local(host: str) -> Sequence[Address]:
    """Every name is this machine; one that begins with `inside` is not to be called."""
    return [ipaddress.ip_address("169.254.169.254" if host.startswith("inside") else "127.0.0.1")]


def guarded() -> GuardedClient:
    return GuardedClient(Dialler(RULES, look_up=local))


class Telling(io.StringIO):
    """A log's stream whose events can be asked for."""

    def events(self, name: str = "") -> list[dict[str, Any]]:
        told = [json.loads(line) for line in self.getvalue().splitlines()]
        return [event for event in told if event["event"] == name or not name]


@asynccontextmanager
async def delivering(
    store: Any,
    told: Telling | None = None,
    settings: CallbackSettings = QUICK,
    *,
    sign_for: Callable[[Delivery], CallbackSigner | None] = lambda _: SIGNER,
    **options: Any,
) -> AsyncIterator[CallbackDelivery]:
    log = Log("debug", told or Telling())
    options.setdefault("new_client", guarded)
    delivery = CallbackDelivery(store, sign_for, RULES, settings, log, **options)
    delivery.start()
    try:
        yield delivery
    finally:
        await delivery.close()


@asynccontextmanager
async def receiving(answer: Callable[[dict[str, Any]], int | None] = lambda _: 204) -> AsyncIterator[Receiver]:
    async with Receiver(SECRET, answer).listening() as receiver:
        yield receiver


async def until(condition: Callable[[], bool], limit_s: float = 15.0) -> None:
    """Return once it holds; fail when it does not in time."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "it never came to hold"
        await asyncio.sleep(0.005)


def event(task_id: str, sequence: int, to: str, status: str = "working", **changes: Any) -> NewEvent:
    body = {
        "event_id": f"evt-{task_id}-{sequence}",
        "merchant_task_id": task_id,
        "sequence": sequence,
        "status": status,
    }
    plain = NewEvent(
        sequence, json.dumps(body).encode(), to, KEY_ID, read_destination(to, RULES).host, False, time.time()
    )
    return replace(plain, **changes)


async def admit(store: Store, to: str, *, statuses: Sequence[str] = ("completed",), **changes: Any) -> str:
    """Write a task with one event per status, all due; return its id."""
    task_id = uuid.uuid4().hex
    now = time.time()
    first = event(task_id, 1, to, statuses[0], **changes)
    index = TaskIndex("working", is_ready=False, is_final=False, deadline=now + 600)
    admission = TaskAdmission(
        task_id=task_id,
        listing=LISTING,
        invocation_id=uuid.uuid4().hex,
        key_id=KEY_ID,
        nonce=None,
        input_digest="digest",
        op=uuid.uuid4().hex,
        dispatch=b"{}",
        record=b"{}",
        index=index,
        event=first,
        receipt=b"{}",
        max_queue=100_000,
        may_start=True,
        receipt_until=now + 86_400,
        keep_until=now + 86_400,
    )
    await store.admit_task(admission, now)
    for sequence, status in enumerate(statuses[1:], start=2):
        await add(store, task_id, event(task_id, sequence, to, status, **changes), status in FINAL)
    return task_id


async def add(store: Store, task_id: str, one: NewEvent, is_final: bool = False) -> None:
    now = time.time()
    row = await store.read_task(task_id, LISTING, None, now)
    assert isinstance(row, TaskRow)
    index = TaskIndex("working", is_ready=False, is_final=is_final, deadline=now + 600)
    change = TaskChange(
        task_id, row.version, None, uuid.uuid4().hex, b"{}", index, one, keeps_lease=False, keep_until=now + 86_400
    )
    assert await store.commit_task(change, now)


async def left(store: Store, *, dead: int = 0) -> Sequence[EventRow]:
    """Return what is left in the outbox, once that is `dead` dead letters and nothing else."""
    limit = time.monotonic() + 5
    while True:
        rows = await store.list_events(None, None, 10_000)
        if len(rows) == dead and all(row.is_dead for row in rows):
            return rows
        assert time.monotonic() < limit, rows
        await asyncio.sleep(0.005)


def at(receiver: Receiver, name: str = "a", path: str = "/callbacks/x") -> str:
    """Return a receiver's URL under a host name of its own."""
    return f"http://{name}.test:{receiver.port}{path}"


class TestDelivery:
    async def test_an_event_leaves_signed_under_the_callback_s_key_id_and_is_done_with(self, store: Store) -> None:
        told = Telling()
        async with receiving() as receiver, delivering(store, told) as delivery:
            task_id = await admit(store, at(receiver))
            delivery.wake()
            await until(lambda: bool(told.events("callback.delivered")))
            assert receiver.violations == []
            assert receiver.of(task_id)[0]["sequence"] == 1
            await left(store)
        (said,) = told.events("callback.delivered")
        assert said.pop("at")
        assert said == {
            "level": "info",
            "event": "callback.delivered",
            "merchant_task_id": task_id,
            "event_id": f"evt-{task_id}-1",
            "sequence": 1,
            "listing": LISTING,
            "key_id": KEY_ID,
            "host": "a.test",
            "attempts": 1,
            "status": 204,
        }

    @pytest.mark.parametrize("target", ["/a%2Fb%2f//%7e/~", "/x?z=1&a=2&a=1&q=a+b%20c&e=&f&&", "/?", "/a/./b/../c"])
    async def test_the_signature_is_over_the_target_as_it_arrives(self, store: Store, target: str) -> None:
        async with receiving() as receiver, delivering(store):
            await admit(store, at(receiver, path=target))
            await until(lambda: bool(receiver.events))
            assert receiver.events[0].target == target
            assert receiver.violations == []

    async def test_every_attempt_is_signed_anew_over_the_same_body(self, store: Store) -> None:
        nonces: set[bytes] = set()

        class Watching(GuardedClient):
            async def send(self, method: str, destination: Any, **options: Any) -> HttpHead:
                nonces.update(value for name, value in options["headers"] if name == b"x-agent-nonce")
                return await super().send(method, destination, **options)

        failures = iter([503, -1, 429, 500, 408, 425])
        async with (
            receiving(lambda _: next(failures, 204)) as receiver,
            delivering(store, new_client=lambda: Watching(Dialler(RULES, look_up=local))),
        ):
            task_id = await admit(store, at(receiver))
            await until(lambda: bool(receiver.of(task_id)))
            assert receiver.violations == []
            assert len({seen.raw for seen in receiver.events}) == 1
            assert len(nonces) == len(receiver.events) == 7

    async def test_a_task_s_events_arrive_in_order_while_the_receiver_fails_at_random(self, store: Store) -> None:
        chance = random.Random(7)
        statuses = ["queued", "working", "input_required", "working", "uploading", "completed"]
        async with (
            receiving(lambda _: chance.choice([204, 200, 503, 500, -1])) as receiver,
            delivering(store) as delivery,
        ):
            tasks = [await admit(store, at(receiver, f"h{n % 3}"), statuses=statuses) for n in range(20)]
            delivery.wake()
            await until(lambda: all(receiver.terminal(task_id) for task_id in tasks))
            assert receiver.violations == []
            for task_id in tasks:
                taken = [seen["sequence"] for seen in receiver.of(task_id)]
                assert taken == [1, 2, 3, 4, 5, 6]

    async def test_two_instances_deliver_every_event_once_and_in_order(self, store_pair: tuple[Store, Store]) -> None:
        one, two = store_pair
        statuses = ["queued", "working", "completed"]
        async with receiving() as receiver:
            async with delivering(one), delivering(two):
                tasks = [await admit(one, at(receiver, f"h{n % 2}"), statuses=statuses) for n in range(30)]
                await until(lambda: all(receiver.terminal(task_id) for task_id in tasks))
            assert receiver.violations == []
            assert Counter(seen.body["event_id"] for seen in receiver.events) == {
                f"evt-{task_id}-{n}": 1 for task_id in tasks for n in (1, 2, 3)
            }

    async def test_what_was_taken_but_not_recorded_is_delivered_again_as_it_was(self, store: Store) -> None:
        class Forgetful:
            """Loses every record until told otherwise."""

            def __init__(self) -> None:
                self.loses = True

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def settle_event(self, delivery: Delivery, end: DeliveryEnd, now: float) -> bool:
                if self.loses:
                    raise StoreUnavailable("lost")
                return await store.settle_event(delivery, end, now)

        forgetful, shift = Forgetful(), 0.0
        async with receiving() as receiver:
            task_id = await admit(store, at(receiver))
            async with delivering(forgetful):
                await until(lambda: len(receiver.events) == 1)
            shift = 60.0  # the claim is over
            forgetful.loses = False
            async with delivering(forgetful, clock=lambda: time.time() + shift):
                await until(lambda: len(receiver.events) == 2)
            assert receiver.violations == []
            assert [seen["event_id"] for seen in receiver.of(task_id)] == [f"evt-{task_id}-1"] * 2


class TestReactions:
    @pytest.mark.parametrize(
        ("status", "attempts"), [(204, 1), (299, 1), (410, 1), (301, 3), (307, 3), (400, 3), (401, 3), (404, 3)]
    )
    async def test_a_status_has_its_number_of_attempts(self, store: Store, status: int, attempts: int) -> None:
        told = Telling()
        async with receiving(lambda _: status) as receiver, delivering(store, told):
            await admit(store, at(receiver))
            await until(lambda: bool(told.events("callback.delivered") or told.events("callback.dead")))
            await asyncio.sleep(0.2)
            assert len(receiver.events) == attempts
            rows = await left(store, dead=int(status >= 300))
        assert all(str(status) in row.reason for row in rows)
        assert len(told.events("callback.retried")) == attempts - 1

    async def test_the_first_retries_do_not_wait_for_the_next_look_at_the_outbox(self, store: Store) -> None:
        failures = iter([503, 503, 503])
        rarely = replace(QUICK, poll_s=30)
        async with receiving(lambda _: next(failures, 204)) as receiver, delivering(store, settings=rarely) as delivery:
            task_id = await admit(store, at(receiver))
            delivery.wake()
            await until(lambda: bool(receiver.of(task_id)), limit_s=4)

    async def test_an_event_is_given_up_when_its_schedule_is_over(self, store: Store) -> None:
        told = Telling()
        short = replace(QUICK, schedule=Schedule(whole_s=0.6, first_s=0.05, cap_s=0.1))
        async with receiving(lambda _: 503) as receiver, delivering(store, told, short):
            began = time.time()
            await admit(store, at(receiver))
            await until(lambda: bool(told.events("callback.dead")))
            assert all(seen.at - began < 1.0 for seen in receiver.events)
            assert len(receiver.events) > 5
            (row,) = await left(store, dead=1)
        assert "503" in row.reason

    async def test_a_dead_event_holds_nothing_back(self, store: Store) -> None:
        def answer(body: dict[str, Any]) -> int:
            return 410 if body["sequence"] == 2 else 204

        async with receiving(answer) as receiver, delivering(store):
            task_id = await admit(store, at(receiver), statuses=["queued", "working", "completed"])
            await until(lambda: receiver.terminal(task_id) == "completed")
            assert [seen["sequence"] for seen in receiver.of(task_id)] == [1, 3]

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("http://inside.test/x", "address"),
            ("http://10.0.0.1/x", "allowed"),
            ("http://other.example/x", "allowed"),
            ("http://a.test/a b", "percent-encoded"),
            ("nonsense", "https URL"),
        ],
    )
    async def test_a_url_that_must_not_be_called_is_a_dead_letter(self, store: Store, url: str, reason: str) -> None:
        told = Telling()
        async with delivering(store, told):
            await admit(store, "http://a.test/", url=url)
            await until(lambda: bool(told.events("callback.dead")))
            (row,) = await left(store, dead=1)
        assert reason in row.reason
        assert row.reason == told.events("callback.dead")[0]["reason"]

    async def test_an_event_nobody_can_sign_is_a_dead_letter(self, store: Store) -> None:
        told = Telling()
        async with receiving() as receiver, delivering(store, told, sign_for=lambda _: None):
            await admit(store, at(receiver))
            await until(lambda: bool(told.events("callback.dead")))
            assert "secret" in told.events("callback.dead")[0]["reason"]
            assert receiver.connections == 0

    async def test_a_key_id_that_no_header_can_carry_is_a_dead_letter(self, store: Store) -> None:
        told = Telling()
        signer = CallbackSigner("kid\r\nX: y", SIGNER.key)
        async with receiving() as receiver, delivering(store, told, sign_for=lambda _: signer):
            await admit(store, at(receiver))
            await until(lambda: bool(told.events("callback.dead")))
            assert receiver.events == []

    async def test_a_fault_of_ours_costs_an_attempt_and_not_the_event(self, store: Store) -> None:
        told = Telling()
        faults = iter([True, True])

        def sign_for(_: Delivery) -> CallbackSigner:
            if next(faults, False):
                raise KeyError("se-cret")
            return SIGNER

        async with receiving() as receiver, delivering(store, told, sign_for=sign_for):
            await admit(store, at(receiver))
            await until(lambda: bool(told.events("callback.delivered")))
        assert [said["error_type"] for said in told.events("callback.failed")] == ["KeyError"] * 2
        assert "se-cret" not in told.getvalue()

    async def test_the_log_shows_no_path_query_body_or_secret(self, store: Store) -> None:
        told = Telling()
        answers = iter([503, -1, 404, 204])
        async with receiving(lambda _: next(answers, 410)) as receiver, delivering(store, told):
            for name in ("a", "b", "inside"):
                await admit(store, at(receiver, name, "/hid-den?token=hid-den"), statuses=["hid-den", "completed"])
            await admit(store, "http://a.test:1/hid-den", statuses=["completed"])
            await until(lambda: len(told.events("callback.dead")) >= 4 and bool(told.events("callback.delivered")))
        assert "hid-den" not in told.getvalue()
        assert SECRET.decode() not in told.getvalue()
        assert "v1=" not in told.getvalue()


class TestIsolation:
    async def test_a_hanging_host_delays_no_other_and_has_its_own_share_only(self, store: Store) -> None:
        open_hanging: list[int] = []

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            open_hanging.append(1)
            with contextlib.suppress(ConnectionError):
                await reader.read(1 << 20)
                await reader.read()
            writer.close()

        async with await asyncio.start_server(hang, "127.0.0.1", 0) as server, receiving() as receiver:
            port = server.sockets[0].getsockname()[1]
            for _ in range(40):
                await admit(store, f"http://hanging.test:{port}/")
            async with delivering(store) as delivery:
                await until(lambda: len(open_hanging) == 4)
                began = time.time()
                tasks = [await admit(store, at(receiver, f"healthy{n % 4}")) for n in range(60)]
                delivery.wake()
                await until(lambda: all(receiver.terminal(task_id) for task_id in tasks))
                assert sorted(seen.at - began for seen in receiver.events)[56] < 2
                assert len(open_hanging) == 4

    async def test_no_host_is_called_more_than_its_share_at_once(self, store: Store) -> None:
        running, most = 0, 0

        class Counting(GuardedClient):
            async def send(self, method: str, destination: Any, **options: Any) -> HttpHead:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.01)
                try:
                    return await super().send(method, destination, **options)
                finally:
                    running -= 1

        async with (
            receiving() as receiver,
            delivering(store, new_client=lambda: Counting(Dialler(RULES, look_up=local))) as delivery,
        ):
            tasks = [await admit(store, at(receiver)) for _ in range(30)]
            delivery.wake()
            await until(lambda: all(receiver.terminal(task_id) for task_id in tasks))
        assert most == 4

    async def test_many_hosts_share_a_bounded_number_of_lanes_and_all_are_served(self, store: Store) -> None:
        clients = 0
        most = 0

        class Counted(GuardedClient):
            def __init__(self) -> None:
                nonlocal clients, most
                super().__init__(Dialler(RULES, look_up=local))
                clients += 1
                most = max(most, clients)

            async def close(self) -> None:
                nonlocal clients
                await super().close()
                clients -= 1

        async with receiving() as receiver:
            tasks = [await admit(store, at(receiver, f"h{n}")) for n in range(60)]
            settings = replace(QUICK, max_hosts=8, poll_s=0.02)
            async with delivering(store, settings=settings, new_client=Counted):
                await until(lambda: all(receiver.terminal(task_id) for task_id in tasks))
            assert most == 8
            assert clients == 0

    async def test_a_host_without_events_has_no_client(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lanes, "LINGER_S", 0.05)
        closed = asyncio.Event()

        class Closing(GuardedClient):
            async def close(self) -> None:
                await super().close()
                closed.set()

        client = lambda: Closing(Dialler(RULES, look_up=local))  # noqa: E731
        async with receiving() as receiver, delivering(store, new_client=client):
            for _ in range(2):
                closed.clear()
                task_id = await admit(store, at(receiver))
                await until(lambda task_id=task_id: receiver.terminal(task_id) is not None)
                await asyncio.wait_for(closed.wait(), 5)


class TestLife:
    async def test_a_backlog_from_before_the_start_leaves_at_a_measured_pace_and_new_events_elsewhere_at_once(
        self, store: Store
    ) -> None:
        async with receiving() as receiver:
            for _ in range(60):
                await admit(store, at(receiver, "behind"))
            await asyncio.sleep(0.01)
            began = time.time()
            async with delivering(store) as delivery:
                await until(lambda: len(receiver.events) >= 4)
                fresh = [await admit(store, at(receiver, "fresh")) for _ in range(40)]
                delivery.wake()
                await until(lambda: all(receiver.terminal(task_id) for task_id in fresh))
                await asyncio.sleep(max(0.0, began + 1.0 - time.time()))
                behind = [seen for seen in receiver.events if seen.body["merchant_task_id"] not in fresh]
                assert 8 <= sum(seen.at < began + 1.0 for seen in behind) <= 12

    async def test_a_small_backlog_is_through_in_a_moment(self, store: Store) -> None:
        async with receiving() as receiver:
            tasks = [await admit(store, at(receiver)) for _ in range(5)]
            async with delivering(store):
                await until(lambda: all(receiver.terminal(task_id) for task_id in tasks), limit_s=2)

    async def test_while_the_store_is_away_it_is_asked_now_and_then_and_delivery_goes_on_afterwards(
        self, store: Store
    ) -> None:
        class Away:
            def __init__(self) -> None:
                self.is_away = True
                self.calls = 0

            def __getattr__(self, name: str) -> Any:
                async def call(*arguments: Any) -> Any:
                    self.calls += 1
                    if self.is_away:
                        raise StoreUnavailable("away")
                    return await getattr(store, name)(*arguments)

                return call

        away, told = Away(), Telling()
        async with receiving() as receiver:
            task_id = await admit(store, at(receiver))
            async with delivering(away, told) as delivery:
                for _ in range(50):
                    delivery.wake()
                    await asyncio.sleep(0.01)
                assert away.calls < 15
                assert len(told.events("callbacks.halted")) == 1
                away.is_away = False
                await until(lambda: bool(receiver.of(task_id)), limit_s=5)
                # And once more, in the middle of it.
                away.is_away = True
                second = await admit(store, at(receiver))
                await asyncio.sleep(0.3)
                before = away.calls
                await asyncio.sleep(0.3)
                assert away.calls - before < 20
                away.is_away = False
                await until(lambda: bool(receiver.of(second)), limit_s=5)

    async def test_a_receiver_that_comes_back_after_a_restart_gets_everything(self, store: Store) -> None:
        is_down = True
        async with receiving(lambda _: 503 if is_down else 204) as receiver:
            async with delivering(store):
                tasks = [await admit(store, at(receiver), statuses=["queued", "completed"]) for _ in range(5)]
                await until(lambda: len(receiver.events) > 20)
            assert all(not receiver.of(task_id) for task_id in tasks)
            # Claims that the end of the first instance left open are over for the second.
            async with delivering(store, clock=lambda: time.time() + 20):
                seen = len(receiver.events)
                await until(lambda: len(receiver.events) > seen + 5)
                is_down = False
                await until(lambda: all(receiver.terminal(task_id) for task_id in tasks))
            assert receiver.violations == []

    async def test_a_drain_delivers_what_is_due_and_lets_attempts_end(self, store: Store) -> None:
        slow = asyncio.Event()

        async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            slow.set()
            await asyncio.sleep(0.5)
            writer.write(b"HTTP/1.1 204 X\r\n\r\n")
            await writer.drain()
            writer.close()

        told, before = Telling(), asyncio.all_tasks()
        async with await asyncio.start_server(answer_late, "127.0.0.1", 0) as server, receiving() as receiver:
            await admit(store, f"http://slow.test:{server.sockets[0].getsockname()[1]}/")
            async with delivering(store, told, replace(QUICK, poll_s=30)) as delivery:
                await asyncio.wait_for(slow.wait(), 5)
                due = await admit(store, at(receiver))
                await delivery.drain(4)
                assert receiver.terminal(due)
                assert len(told.events("callback.delivered")) == 2
                late = await admit(store, at(receiver))
                delivery.wake()
                await asyncio.sleep(0.1)
                assert not receiver.of(late)
                assert not {task for task in asyncio.all_tasks() - before if "Receiver" not in repr(task.get_coro())}

    async def test_closing_ends_attempts_and_leaves_no_task_behind(self, store: Store) -> None:
        async with receiving(lambda _: None) as receiver:
            before = asyncio.all_tasks()
            async with delivering(store):
                await admit(store, at(receiver))
                await until(lambda: bool(receiver.events))
            ours = {task for task in asyncio.all_tasks() - before if "Receiver" not in repr(task.get_coro())}
            assert not ours


class TestClaims:
    async def test_an_event_whose_claim_leaves_no_time_is_not_attempted(self, store: Store) -> None:
        async with receiving() as receiver:
            await admit(store, at(receiver))
            (delivery,) = await store.claim_events("a.test", "op", 10, 1, time.time())
            attempts = Attempts(
                store,
                lambda _: SIGNER,
                RULES,
                Log("debug", Telling()),
                time.time,
                schedule=Schedule(),
                max_answer_bytes=1_000,
                chance=random.Random(),
            )
            now = asyncio.get_running_loop().time()
            claimed = Claimed(delivery, now - 0.1, now + 5, now + 10)
            assert await attempts.make(guarded(), claimed, Gate(4)) is None
            assert receiver.events == []

    async def test_after_a_lost_answer_the_same_claim_is_asked_for_again(self, store: Store) -> None:
        class Losing:
            """Claims, and loses the first answer."""

            def __init__(self) -> None:
                self.asked: list[str] = []

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def claim_events(self, host: str, op: str, *rest: Any) -> Sequence[Delivery]:
                found = await store.claim_events(host, op, *rest)
                self.asked.append(op)
                if len(self.asked) == 1:
                    raise StoreUnavailable("lost")
                return found

        losing = Losing()
        async with receiving() as receiver, delivering(losing):
            await admit(store, at(receiver))
            await until(lambda: len(losing.asked) > 1)
        assert losing.asked[0] == losing.asked[1]

    async def test_an_unexpected_failure_of_the_client_is_a_fault_like_any_other(self, store: Store) -> None:
        class Broken(GuardedClient):
            calls = 0

            async def send(self, method: str, destination: Any, **options: Any) -> HttpHead:
                Broken.calls += 1
                if Broken.calls == 1:
                    raise RuntimeError("broken")
                if Broken.calls == 2:
                    raise HttpFailed("protocol", sent=True)
                return await super().send(method, destination, **options)

        told = Telling()
        client = lambda: Broken(Dialler(RULES, look_up=local))  # noqa: E731
        async with receiving() as receiver, delivering(store, told, new_client=client):
            await admit(store, at(receiver))
            await until(lambda: bool(told.events("callback.delivered")))
        assert [said["failure"] for said in told.events("callback.retried")] == ["fault", "protocol"]
