"""Random interleavings of all that can happen to a task, over two instances, on every store (wire 6, 7.3)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run
from support import instances as agent
from support.instances import LEASE_S, Clock, Instance, Work, listing_named
from support.sizes import sized

from finch_gateway.engine import patience, task_hold
from finch_gateway.errors import Refusal, StoreUnavailable
from finch_gateway.listing import OnCrash
from finch_gateway.store import Delivered, Delivery, RetryAt, Store, TaskRow
from finch_gateway.wire.task import State, Task

# For each store and each `on_crash`: in all 1,520 steps, or 40,000.
EXAMPLES, STEPS = sized(19, 250), sized(20, 40)
CLAIM_S = 20.0

WHICH = st.integers(0, 7)
INSTANCE = st.sampled_from([0, 1])


@dataclass(slots=True)
class Errand:
    """A dispatch, and what has been seen of its task so far."""

    invocation_id: str
    body: bytes
    has_callback: bool
    task_id: str = ""
    newest: Task | None = None
    taken: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Play:
    """One history: two instances over two views of a store, a receiver, and what must hold after every step."""

    stores: tuple[Store, Store]
    on_crash: OnCrash
    clock: Clock = field(default_factory=Clock)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    errands: list[Errand] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    unsettled: list[Delivery] = field(default_factory=list)
    may_have_crashed: bool = False
    dead: list[Instance] = field(default_factory=list)
    drained: list[Instance] = field(default_factory=list)
    attempts: dict[str, set[int]] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return f"{self.name}.example"

    def begin(self) -> None:
        self.instances = [self.instance(0), self.instance(1)]

    def instance(self, which: int) -> Instance:
        return Instance(self.stores[which], listing_named(self.name, self.on_crash), self.clock)

    # Steps; each stands for something that happens in or to one process

    async def dispatch(self, which: int, deadline_s: float, has_callback: bool) -> None:
        invocation_id = str(uuid.uuid4())
        envelope: dict[str, Any] = {
            "protocol_version": "2.0",
            "invocation_id": invocation_id,
            "interaction_mode": "task",
            "input": {"content": [{"type": "text", "text": "x"}]},
            "limits": {"deadline_at": _iso(self.clock.now + deadline_s)},
        }
        if has_callback:
            envelope["callback"] = {"url": f"https://{self.host}/cb", "callback_key_id": "key"}
        errand = Errand(invocation_id, json.dumps(envelope).encode(), has_callback)
        self.errands.append(errand)
        await self.send(errand, which)

    async def send(self, errand: Errand, which: int) -> None:
        """Send a dispatch, for the first time or again."""
        task_id = await self.instances[which].accept(errand.body)
        assert errand.task_id in ("", task_id), "a second task for one invocation"
        errand.task_id = task_id

    async def answer(self, errand: Errand, which: int, key: str) -> None:
        """Answer, where the receipt arrived; so with a cancel."""
        if not errand.task_id:
            return
        await self.instances[which].answer(errand.task_id, f"text of {key}", key)

    async def cancel(self, errand: Errand, which: int) -> None:
        if not errand.task_id:
            return
        sequence = await self.instances[which].cancel(errand.task_id)
        row = await self.row(errand)
        assert (row.index.state, Task.from_bytes(row.record).sequence) == ("canceled", sequence)

    async def order(self, work: Work, order: Callable[[Any], Any]) -> None:
        work.orders.put_nowait(order)

    async def take(self, which: int, is_stubborn: bool) -> None:
        instance = self.instances[which]
        instance.puppet.makes_stubborn = is_stubborn
        await instance.worker.take()

    async def drain(self, which: int) -> None:
        """Stop one process in order and start another."""
        one = self.instances[which]
        self.instances[which] = self.instance(which)
        self.dead.append(one)
        await one.drain()
        self.drained.append(one)

    async def crash(self, which: int) -> None:
        self.may_have_crashed = True
        one = self.instances[which]
        self.instances[which] = self.instance(which)
        self.dead.append(one)
        await one.crash()

    async def deliver(self, which: int, how: str) -> None:
        """Claim what is due; the receiver takes it unless told to fail, and the claim is settled unless forgotten."""
        store = self.instances[which].store
        now = self.clock.now
        for delivery in await store.claim_events(self.host, uuid.uuid4().hex, CLAIM_S, 2, now):
            if how == "fails":
                await store.settle_event(delivery, RetryAt(now + 1), now)
                continue
            await self.receive(delivery)
            if how == "forgotten":
                self.unsettled.append(delivery)
            else:
                await store.settle_event(delivery, Delivered(), now)

    async def settle_late(self, which: int) -> None:
        if not self.unsettled:
            return
        delivery = self.unsettled.pop(0)
        await self.instances[which].store.settle_event(delivery, Delivered(), self.clock.now)

    async def receive(self, delivery: Delivery) -> None:
        body = json.loads(delivery.body)
        errand = next(errand for errand in self.errands if errand.invocation_id == body["invocation_id"])
        assert errand.task_id in ("", delivery.task_id), "a second task for one invocation"
        errand.task_id = delivery.task_id
        assert body["sequence"] == delivery.sequence >= max(errand.taken, default=0), "an older event after a newer"
        assert errand.taken.setdefault(delivery.sequence, delivery.body) == delivery.body, "one event with two bodies"
        finals = [sequence for sequence, taken in errand.taken.items() if json.loads(taken)["status"] in FINALS]
        assert finals in ([], [max(errand.taken)]), "an event after the end, or two ends"
        row = await self.row(errand)
        assert Task.from_bytes(row.record).sequence >= delivery.sequence, "the snapshot is behind an accepted event"

    # What must hold

    async def row(self, errand: Errand) -> TaskRow:
        row = await self.stores[0].read_task(errand.task_id, self.name, None, self.clock.now)
        assert isinstance(row, TaskRow), "an accepted task is gone"
        return row

    async def check(self) -> None:
        for instance in self.instances:
            await instance.quiet()
            assert "run_failed" not in instance.troubles.getvalue()
        for errand in self.errands:
            if errand.task_id:
                self.check_task(errand, await self.row(errand))
        await self.check_leases()
        self.check_attempts()

    async def check_leases(self) -> None:
        for instance in self.instances:
            for task_id in instance.worker.left:
                if not instance.worker.runs(task_id):
                    await self.check_left(instance, task_id)
            instance.worker.left.clear()
        for instance in self.drained:
            for task_id in list(instance.store.leased):
                await self.check_left(instance, task_id)
        self.drained.clear()

    def check_attempts(self) -> None:
        for instance in (*self.instances, *self.dead):
            for work in instance.puppet.works:
                self.attempts.setdefault(work.job.task_id, set()).add(work.job.attempt)
        assert self.on_crash == "rerun" or all(len(seen) == 1 for seen in self.attempts.values()), "paid work ran twice"

    def check_task(self, errand: Errand, row: TaskRow) -> None:
        task, before = Task.from_bytes(row.record), errand.newest
        errand.newest = task
        assert row.index.state == task.state.value
        assert row.index.is_final == task.is_final
        if not self.may_have_crashed:
            assert row.attempt <= 1, "a crash was counted where none was"
            assert task.error_code != "agent_interrupted"
        if task.state is State.COMPLETED:
            assert json.loads(bytes(task.content))[0]["text"] == f"epoch {row.epoch}", "a fenced worker wrote"
        if before is None:
            return
        assert task.sequence >= before.sequence, "the sequence fell"
        assert (task.percent or 0) >= (before.percent or 0), "progress fell"
        assert not before.is_final or task == before, "an ended task changed"
        assert task.sequence > before.sequence or task.state is before.state, "a move without an event"

    async def check_left(self, instance: Instance, task_id: str) -> None:
        """Whoever is done with a task, and has not crashed, leaves none that only its lease's end sets free."""
        row = await self.stores[0].read_task(task_id, self.name, None, self.clock.now)
        assert isinstance(row, TaskRow)
        is_held = row.lease_until is not None and row.epoch == instance.store.leased.get(task_id)
        assert row.index.is_final or not is_held, f"a {row.index.state} task was left to the end of its lease"

    async def finish(self) -> None:
        """Everything ends, also when both processes die now."""
        for which in (0, 1):
            await self.crash(which)
        self.clock.now += 10_000
        for errand in self.errands:
            await self.send(errand, 0)
        await self.instances[0].expire()
        for _ in range(100):
            self.clock.now += CLAIM_S + 1
            if self.host not in await self.stores[0].due_hosts(self.clock.now):
                break
            await self.deliver(0, "taken")
        await self.check()
        for errand in self.errands:
            if errand.task_id:
                self.check_end(errand)

    def check_end(self, errand: Errand) -> None:
        assert errand.newest
        assert errand.newest.is_final, "a task without an end"
        if errand.has_callback:
            assert max(errand.taken) == errand.newest.sequence, "an end that was not told"
            assert json.loads(errand.taken[errand.newest.sequence])["status"] == errand.newest.state
        else:
            assert not errand.taken


FINALS = {"completed", "failed", "canceled", "expired"}


class TaskMachine(RuleBasedStateMachine):
    """Plays histories; every rule is one step, `race` several at once."""

    def __init__(self, runner: asyncio.Runner, stores: tuple[Store, Store], on_crash: OnCrash) -> None:
        super().__init__()
        self.runner = runner
        self.game = Play(stores, on_crash)

    def play(self, *steps: Coroutine[Any, Any, None]) -> None:
        async def played() -> None:
            for result in await asyncio.gather(*steps, return_exceptions=True):
                # A refusal and an outage are answers; anything else is a fault.
                if isinstance(result, BaseException) and not isinstance(result, Refusal | StoreUnavailable):
                    raise result
            await self.game.check()

        self.runner.run(played())

    def known(self, which: int) -> Errand:
        return self.game.errands[which % len(self.game.errands)]

    def works(self) -> list[Work]:
        return [work for one in self.game.instances for work in one.puppet.works if not work.is_over]

    def has_errands(self) -> bool:
        return bool(self.game.errands)

    @initialize()
    def start(self) -> None:
        async def begin() -> None:
            self.game.begin()

        self.runner.run(begin())

    @rule(which=INSTANCE, deadline_s=st.sampled_from([1000.0, 1000.0, 3.0, -1.0]), has_callback=st.booleans())
    def dispatch(self, which: int, deadline_s: float, has_callback: bool) -> None:
        self.play(self.game.dispatch(which, deadline_s, has_callback))

    @precondition(has_errands)
    @rule(which=INSTANCE, errand=WHICH)
    def dispatch_again(self, which: int, errand: int) -> None:
        self.play(self.game.send(self.known(errand), which))

    @precondition(has_errands)
    @rule(which=INSTANCE, is_stubborn=st.booleans())
    def take(self, which: int, is_stubborn: bool) -> None:
        self.play(self.game.take(which, is_stubborn))

    def an_order(self, which: int, kind: str, value: int) -> Coroutine[Any, Any, None]:
        works = self.works()
        if not works:
            return asyncio.sleep(0)
        work = works[which % len(works)]
        orders: dict[str, Callable[[Any], Any]] = {
            "report": lambda job: agent.report(job, value),
            "save": lambda job: agent.save(job, value),
            "ask": agent.ask,
            "complete": lambda job: agent.complete(job, f"epoch {work.epoch}"),
            "fail": agent.fail,
        }
        return self.game.order(work, orders[kind])

    @precondition(has_errands)
    @rule(
        which=WHICH,
        kind=st.sampled_from(["report", "report", "save", "ask", "complete", "fail"]),
        value=st.integers(0, 100),
    )
    def agent_goes_on(self, which: int, kind: str, value: int) -> None:
        self.play(self.an_order(which, kind, value))

    @precondition(has_errands)
    @rule(which=INSTANCE, errand=WHICH, key=st.sampled_from(["k1", "k2", ""]))
    def answer(self, which: int, errand: int, key: str) -> None:
        self.play(self.game.answer(self.known(errand), which, key))

    @precondition(has_errands)
    @rule(which=INSTANCE, errand=WHICH)
    def cancel(self, which: int, errand: int) -> None:
        self.play(self.game.cancel(self.known(errand), which))

    @rule(which=INSTANCE)
    def expire(self, which: int) -> None:
        self.play(self.game.instances[which].expire())

    @rule(which=INSTANCE, renews=st.booleans())
    def look(self, which: int, renews: bool) -> None:
        self.play(self.game.instances[which].worker.look(renews=renews))

    @rule(which=INSTANCE, how=st.sampled_from(["taken", "taken", "fails", "forgotten"]))
    def deliver(self, which: int, how: str) -> None:
        self.play(self.game.deliver(which, how))

    @rule(which=INSTANCE)
    def settle_late(self, which: int) -> None:
        self.play(self.game.settle_late(which))

    @rule(seconds=st.sampled_from([0.4, 1.5, 5.0, LEASE_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.game.clock.now += seconds
        self.game.may_have_crashed |= seconds > LEASE_S / 2
        self.play()

    @rule(which=INSTANCE)
    def crash(self, which: int) -> None:
        self.play(self.game.crash(which))

    @rule(which=INSTANCE)
    def drain(self, which: int) -> None:
        self.play(self.game.drain(which))

    @rule(which=INSTANCE)
    def next_answer_is_lost(self, which: int) -> None:
        self.game.instances[which].store.loses = 1

    @rule(which=INSTANCE)
    def next_change_is_refused(self, which: int) -> None:
        self.game.instances[which].store.refuses = 1

    @precondition(has_errands)
    @rule(
        errand=WHICH,
        work=WHICH,
        kind=st.sampled_from(["report", "save", "ask", "complete", "fail"]),
        apart_ms=st.sampled_from([0.0, 0.0, 0.4, 1.0]),
        moves=st.lists(
            st.sampled_from(
                ["cancel", "cancel", "answer", "expire", "take", "take", "look", "drain", "deliver", "agent"]
            ),
            min_size=2,
            max_size=5,
        ),
    )
    def race(self, errand: int, work: int, kind: str, apart_ms: float, moves: list[str]) -> None:
        one, game = self.known(errand), self.game
        steps: dict[str, Callable[[int], Coroutine[Any, Any, None]]] = {
            "cancel": partial(game.cancel, one),
            "answer": lambda which: game.answer(one, which, "k1"),
            "expire": lambda which: game.instances[which].expire(),
            "take": lambda which: game.take(which, False),
            "look": lambda which: game.instances[which].worker.look(renews=True),
            "deliver": lambda which: game.deliver(which, "taken"),
            "drain": game.drain,
            "agent": lambda _: self.an_order(work, kind, 50),
        }

        async def begin(number: int, move: str) -> None:
            await asyncio.sleep(number * apart_ms / 1000)
            await steps[move](number % 2)

        self.play(*(begin(number, move) for number, move in enumerate(moves)))

    def teardown(self) -> None:
        if self.game.instances:
            self.runner.run(self.game.finish())


@pytest.mark.timeout(sized(180, 3_600))
@pytest.mark.parametrize("on_crash", ["rerun", "fail"])
def test_each_task_has_one_end_whatever_happens_in_which_order(
    new_store: Callable[[], Store], on_crash: OnCrash, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (patience, task_hold):
        monkeypatch.setattr(module, "STORE_RETRY_S", 0.005)
    with asyncio.Runner() as runner:
        stores = new_store(), new_store()
        for store in stores:
            runner.run(store.open())
        try:
            run(
                lambda: TaskMachine(runner, stores, on_crash),
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    print_blob=True,
                ),
            )
        finally:
            for store in stores:
                runner.run(store.close())


def _iso(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).isoformat()
