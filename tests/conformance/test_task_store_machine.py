"""Random histories of tasks and callbacks, held against a model that fits a page, on every store."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run
from support.task_store import replace

from finch_gateway.store import (
    Admitted,
    Conflict,
    Dead,
    Delivered,
    Delivery,
    DeliveryEnd,
    Free,
    HeldTask,
    NewEvent,
    Nonce,
    QueueFull,
    Replayed,
    RetryAt,
    Store,
    TaskAdmission,
    TaskChange,
    TaskIndex,
    TaskRow,
)

T = TypeVar("T")
START = float(int(time.time()))
KEEP = START + 30 * 86_400
MAX_QUEUE = 3
CLAIM_S = 5.0
READY = TaskIndex("queued", is_ready=True, is_final=False, deadline=KEEP)
INDEXES = {
    "progress": TaskIndex("working", is_ready=False, is_final=False, deadline=KEEP),
    "ask": TaskIndex("input_required", is_ready=False, is_final=False, deadline=KEEP),
    "final": TaskIndex("completed", is_ready=False, is_final=True, deadline=KEEP),
}


@dataclass
class Event:
    """An event as the model knows it; `claim_until` is None unless somebody claimed it."""

    sequence: int
    body: bytes
    replaceable: bool
    attempts: int
    due_at: float
    claim_op: str = ""
    claim_until: float | None = None
    is_dead: bool = False
    ends: bool = False

    def in_delivery(self, now: float) -> bool:
        return self.claim_until is not None and self.claim_until > now


@dataclass
class Task:
    """A task as the model knows it; `lease_until` is None while nobody holds it."""

    task_id: str
    record: bytes
    index: TaskIndex
    waits_since: float
    version: int
    epoch: int = 0
    attempt: int = 1
    lease_op: str = ""
    lease_until: float | None = None
    sequence: int = 0
    events: list[Event] = field(default_factory=list)
    delivered: int = 0
    finals: int = 0

    def live(self) -> list[Event]:
        return [one for one in self.events if not one.is_dead]

    def claimable(self, now: float) -> Event | None:
        """The oldest live event, if it is due and none is being delivered."""
        head = next(iter(self.live()), None)
        busy = any(one.in_delivery(now) for one in self.live())
        return head if head and head.due_at <= now and not busy else None

    def write(self, new: NewEvent, is_final: bool, now: float) -> None:
        gone = [one for one in self.live() if one.replaceable and not one.in_delivery(now)]
        event = Event(new.sequence, new.body, new.replaceable, 0, new.not_before, ends=is_final)
        if new.replaceable or is_final:
            self.events = [one for one in self.events if one not in gone]
            if new.replaceable and gone:
                event.attempts, event.due_at = gone[0].attempts, gone[0].due_at
        self.events.append(event)

    def retry(self, event: Event, at: float) -> None:
        newer = [one for one in self.live() if one.sequence > event.sequence and (one.replaceable or one.ends)]
        heir = newer[0] if event.replaceable and newer else event
        if heir is not event:
            self.events.remove(event)
        if heir is event or heir.replaceable:
            heir.attempts, heir.due_at = event.attempts + 1, at


class TaskMachine(RuleBasedStateMachine):
    """Two instances of one store and the model go through the same history."""

    def __init__(self, runner: asyncio.Runner, stores: tuple[Store, Store]) -> None:
        super().__init__()
        self.runner, self.stores = runner, stores
        self.steps = 0
        self.now = START
        self.tasks: dict[str, Task] = {}
        self.receipts: dict[str, tuple[str, bytes, str]] = {}
        self.admissions: list[TaskAdmission] = []
        self.holds: list[HeldTask] = []
        self.changes: list[tuple[TaskChange, bool]] = []
        self.claims: list[Delivery] = []
        self.bodies: dict[tuple[str, int], bytes] = {}

    @initialize()
    def start(self) -> None:
        self.listing = uuid.uuid4().hex
        self.host = f"{self.listing}.example"

    def ask(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """Let the two instances take turns."""
        self.steps += 1

        async def asked() -> T:
            return await call(self.stores[self.steps % 2])

        return self.runner.run(asked())

    def event(self, task_id: str, sequence: int, replaceable: bool) -> NewEvent:
        body = uuid.uuid4().hex.encode()
        return NewEvent(sequence, body, "https://x.example/", "kid", self.host, replaceable, self.now)

    def ready(self) -> list[Task]:
        return [one for one in self.tasks.values() if one.index.is_ready]

    @rule(seconds=st.sampled_from([0.25, 2.0, 6.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # Admission

    @rule(
        invocation=st.sampled_from(["i1", "i2", "i3", "i4", "i5", "i6"]),
        digest=st.sampled_from(["d1", "d1", "d1", "d2"]),
        nonce=st.sampled_from(["new", "new", "new", "used"]),
        may_start=st.sampled_from([True, True, True, False]),
        has_callback=st.sampled_from([True, True, False]),
    )
    def admit(self, invocation: str, digest: str, nonce: str, may_start: bool, has_callback: bool) -> None:
        self.bring(invocation, digest, nonce, may_start, has_callback)

    @precondition(lambda self: len(self.tasks) < 8)
    @rule()
    def admit_and_lease(self) -> None:
        """What happens most: a new dispatch, and a worker that was waiting for one."""
        self.bring(uuid.uuid4().hex, "d1", "new", may_start=True, has_callback=True)
        self.lease_once(10.0, repeats=False)

    def bring(self, invocation: str, digest: str, nonce: str, may_start: bool, has_callback: bool) -> None:
        # Equal instants are told apart by id on one store and by order of arrival on another: here both are one.
        op, task_id = uuid.uuid4().hex, f"{self.listing}-{len(self.tasks):03d}"
        one = TaskAdmission(
            task_id=task_id,
            listing=self.listing,
            invocation_id=invocation,
            key_id=self.listing,
            nonce=Nonce(self.listing, "used" if nonce == "used" else op, KEEP, op),
            input_digest=digest,
            op=op,
            dispatch=b"{}",
            record=op.encode(),
            index=READY,
            event=self.event(task_id, 1, replaceable=False) if has_callback else None,
            receipt=task_id.encode(),
            max_queue=MAX_QUEUE,
            may_start=may_start,
            receipt_until=KEEP,
            keep_until=KEEP,
        )
        if nonce == "used":
            self.ask(lambda store: store.spend(Nonce(self.listing, "used", KEEP, self.listing), self.now))
        verdict = self.ask(lambda store: store.admit_task(one, self.now))
        assert verdict == self.judge(one, is_replayed=nonce == "used")
        if verdict == Admitted(one.receipt, is_new=True):
            self.created(one)

    def judge(self, one: TaskAdmission, is_replayed: bool) -> object:
        known = self.receipts.get(one.invocation_id)
        if is_replayed:
            return Replayed()
        if known is not None:
            return Admitted(known[1], is_new=False) if known[0] == one.input_digest else Conflict()
        if not one.may_start:
            return Free()
        return QueueFull() if len(self.ready()) >= MAX_QUEUE else Admitted(one.receipt, is_new=True)

    def created(self, one: TaskAdmission) -> None:
        self.admissions.append(one)
        self.receipts[one.invocation_id] = (one.input_digest, one.receipt, one.task_id)
        row = self.ask(lambda store: store.read_task(one.task_id, self.listing, None, self.now))
        assert isinstance(row, TaskRow)
        task = Task(one.task_id, one.record, one.index, self.now, row.version)
        if one.event is not None:
            task.sequence = 1
            task.write(one.event, False, self.now)
        self.tasks[one.task_id] = task

    @precondition(lambda self: self.admissions)
    @rule(data=st.data())
    def admit_once_more(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.admissions), "admission")
        assert self.ask(lambda store: store.admit_task(one, self.now)) == Admitted(one.receipt, is_new=True)

    # Leases

    def leasable(self) -> list[Task]:
        over = [one for one in self.tasks.values() if one.lease_until is not None and one.lease_until <= self.now]
        waiting = self.ready()
        longest = min((one.waits_since for one in waiting), default=0.0)
        return over + [one for one in waiting if one.waits_since == longest]

    @rule(lease_s=st.sampled_from([1.0, 10.0]), repeats=st.booleans())
    def lease(self, lease_s: float, repeats: bool) -> None:
        self.lease_once(lease_s, repeats)

    def lease_once(self, lease_s: float, repeats: bool) -> None:
        op = uuid.uuid4().hex
        candidates = self.leasable()
        row = self.ask(lambda store: store.lease_task(self.listing, op, lease_s, self.now))
        if row is None:
            assert not candidates
            return
        task = self.tasks[row.task_id]
        assert task in candidates
        task.attempt += task.lease_until is not None
        task.epoch, task.lease_op, task.lease_until = task.epoch + 1, op, self.now + lease_s
        task.index = replace(task.index, is_ready=False)
        self.holds.append(HeldTask(task.task_id, task.epoch))
        self.same(row)
        if repeats:
            assert self.ask(lambda store: store.lease_task(self.listing, op, lease_s, self.now)) == row

    def same(self, row: TaskRow) -> None:
        task = self.tasks[row.task_id]
        seen = (row.record, row.index, row.version, row.epoch, row.attempt, row.lease_until)
        assert seen == (task.record, task.index, task.version, task.epoch, task.attempt, task.lease_until)

    def holding(self, hold: HeldTask) -> Task | None:
        task = self.tasks[hold.task_id]
        return task if task.epoch == hold.epoch and task.lease_until is not None else None

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 20.0]))
    def renew(self, data: st.DataObject, seconds: float) -> None:
        holds = data.draw(st.lists(st.sampled_from(self.holds), min_size=1, max_size=3, unique=True), "holds")
        lost = self.ask(lambda store: store.renew_tasks(holds, self.now + seconds, self.now))
        assert set(lost) == {one for one in holds if self.holding(one) is None}
        for one in holds:
            if task := self.holding(one):
                task.lease_until = self.now + seconds

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        hold = data.draw(st.sampled_from(self.holds), "hold")
        done = self.ask(lambda store: store.release_task(hold, self.now))
        if task := self.holding(hold):
            assert done
            task.lease_until, task.waits_since = None, self.now
            task.index = replace(task.index, is_ready=True)

    # Changes

    def change(self, task: Task, kind: str, epoch: int | None, version: int) -> None:
        """Ask for a change, as its holder or from outside, and follow it in the model where it is right."""
        answered = kind == "answer"
        index = READY if answered else INDEXES[kind]
        is_progress = kind == "progress"
        event = self.event(task.task_id, task.sequence + 1, is_progress) if task.sequence else None
        keeps = is_progress
        record, op = uuid.uuid4().hex.encode(), uuid.uuid4().hex
        one = TaskChange(task.task_id, version, epoch, op, record, index, event, keeps, KEEP)
        holds = epoch is None or self.holding(HeldTask(task.task_id, epoch)) is not None
        expected = not task.index.is_final and version == task.version and holds
        assert self.ask(lambda store: store.commit_task(one, self.now)) == expected
        self.changes.append((one, expected))
        if expected:
            self.follow(task, one)

    def follow(self, task: Task, one: TaskChange) -> None:
        if one.index.is_ready and not task.index.is_ready:
            task.waits_since = self.now
        task.version, task.record, task.index = task.version + 1, one.record, one.index
        task.lease_until = task.lease_until if one.keeps_lease else None
        task.finals += one.index.is_final
        if one.event is not None:
            task.sequence = one.event.sequence
            task.write(one.event, one.index.is_final, self.now)

    @precondition(lambda self: self.holds)
    @rule(
        data=st.data(),
        kind=st.sampled_from(["progress"] * 6 + ["ask", "final"]),
        behind=st.sampled_from([0, 0, 0, 0, 1]),
        is_late=st.sampled_from([False, False, False, True]),
    )
    def change_as_a_holder(self, data: st.DataObject, kind: str, behind: int, is_late: bool) -> None:
        living = [one for one in self.holds if self.holding(one)]
        hold = data.draw(st.sampled_from((self.holds[-2:] if is_late else living) or self.holds), "hold")
        task = self.tasks[hold.task_id]
        self.change(task, kind, hold.epoch, task.version - behind)

    @precondition(lambda self: any(one.index.state == "input_required" for one in self.tasks.values()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        asking = [one.task_id for one in self.tasks.values() if one.index.state == "input_required"]
        task = self.tasks[data.draw(st.sampled_from(asking), "task")]
        self.change(task, "answer", None, task.version)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), behind=st.sampled_from([0, 1, 1, 1]))
    def cancel(self, data: st.DataObject, behind: int) -> None:
        task = self.tasks[data.draw(st.sampled_from(list(self.tasks)), "task")]
        self.change(task, "final", None, task.version - behind)

    @precondition(lambda self: self.changes)
    @rule()
    def change_once_more(self) -> None:
        """The last change asked for recognises itself, and a refused one is refused again."""
        one, was_right = self.changes[-1]
        assert self.ask(lambda store: store.commit_task(one, self.now)) == was_right

    # Callbacks

    def claimable(self) -> list[tuple[float, str, int]]:
        heads = ((one.task_id, one.claimable(self.now)) for one in self.tasks.values())
        return sorted((head.due_at, task_id, head.sequence) for task_id, head in heads if head)

    @rule(limit=st.sampled_from([1, 2, 10]))
    def claim(self, limit: int) -> None:
        self.claim_up_to(limit)

    @rule(kind=st.sampled_from(["delivered", "delivered", "delivered", "retry", "dead"]))
    def deliver(self, kind: str) -> None:
        """Claim everything and settle it at once."""
        for delivery in self.claim_up_to(10):
            self.settle_as(delivery, kind, repeats=False)

    def claim_up_to(self, limit: int) -> list[Delivery]:
        op = uuid.uuid4().hex
        due = self.claimable()
        claimed = self.ask(lambda store: store.claim_events(self.host, op, CLAIM_S, limit, self.now))
        assert len(claimed) == min(limit, len(due))
        events = {one.task_id: self.tasks[one.task_id].claimable(self.now) for one in claimed}
        assert len(events) == len(claimed)
        assert [event.due_at for event in events.values() if event] == [due_at for due_at, *_ in due[: len(claimed)]]
        for delivery in claimed:
            event = events[delivery.task_id]
            assert event is not None
            seen = (delivery.sequence, delivery.body, delivery.attempts, delivery.op)
            assert seen == (event.sequence, event.body, event.attempts, op)
            event.claim_op, event.claim_until = op, self.now + CLAIM_S
            self.send(delivery)
        return list(claimed)

    def send(self, delivery: Delivery) -> None:
        """What the receiver sees: one body for each sequence."""
        self.claims.append(delivery)
        assert self.bodies.setdefault((delivery.task_id, delivery.sequence), delivery.body) == delivery.body

    def claimed(self, delivery: Delivery) -> Event | None:
        found = (one for one in self.tasks[delivery.task_id].events if one.sequence == delivery.sequence)
        event = next(found, None)
        return event if event and event.claim_until is not None and event.claim_op == delivery.op else None

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), kind=st.sampled_from(["delivered", "delivered", "retry", "dead"]), repeats=st.booleans())
    def settle(self, data: st.DataObject, kind: str, repeats: bool) -> None:
        self.settle_as(data.draw(st.sampled_from(self.claims[-8:]), "delivery"), kind, repeats)

    def settle_as(self, delivery: Delivery, kind: str, repeats: bool) -> None:
        event = self.claimed(delivery)
        if event is not None and not event.in_delivery(self.now):
            return  # The contract leaves open what a claim is worth that has ended and that nobody took over.
        ends: dict[str, DeliveryEnd] = {
            "delivered": Delivered(),
            "retry": RetryAt(self.now + 3.0),
            "dead": Dead("gone"),
        }
        self.claims.remove(delivery)
        for _ in range(1 + repeats):
            done = self.ask(lambda store: store.settle_event(delivery, ends[kind], self.now))
            assert done == (event is not None)
        if event is not None:
            self.settled(self.tasks[delivery.task_id], event, ends[kind])

    def settled(self, task: Task, event: Event, end: DeliveryEnd) -> None:
        event.claim_until = None
        match end:
            case Delivered():
                assert event.sequence > task.delivered, "the receiver was told something older"
                task.delivered = event.sequence
                task.events.remove(event)
            case RetryAt(at):
                task.retry(event, at)
            case Dead():
                event.is_dead = True

    # What must always hold

    @invariant()
    def every_task_stands_where_the_model_says(self) -> None:
        rows = self.ask(lambda store: store.list_tasks(self.listing, None, 100)) if self.tasks else []
        assert {row.task_id for row in rows} == set(self.tasks), "an accepted task is lost, or one too many is there"
        for row in rows:
            self.same(row)
            assert self.tasks[row.task_id].finals <= 1

    @invariant()
    def the_outbox_holds_what_the_model_says(self) -> None:
        for task in self.tasks.values():
            rows = self.ask(lambda store, task=task: store.list_events(task.task_id, None, 100))  # type: ignore[misc]
            seen = sorted((row.sequence, row.body, row.attempts, row.due_at, row.is_dead) for row in rows)
            events = ((one.sequence, one.body, one.attempts, one.due_at, one.is_dead) for one in task.events)
            # Whether giving up counts as an attempt, the contract leaves open.
            assert [(*one[:2], one[4]) for one in seen] == [(a, b, e) for a, b, _, _, e in sorted(events)]
            alive = [(one.attempts, one.due_at) for one in task.live()]
            assert [(attempts, due_at) for _, _, attempts, due_at, is_dead in seen if not is_dead] == alive

    @invariant()
    def what_is_told_of_all_agrees(self) -> None:
        if not self.tasks:
            return
        is_due = self.host in self.ask(lambda store: store.due_hosts(self.now))
        assert is_due == bool(self.claimable())
        still_open = sum(not one.index.is_final for one in self.tasks.values())
        assert self.ask(lambda store: store.open_tasks()).get(self.listing, 0) == still_open
        lost = self.ask(lambda store: store.lost_tasks(self.holds))
        assert set(lost) == {one for one in self.holds if self.holding(one) is None}


def test_every_history_of_tasks_goes_as_the_model_says(new_store: Callable[[], Store]) -> None:
    with asyncio.Runner() as runner:
        stores = new_store(), new_store()
        for store in stores:
            runner.run(store.open())
        try:
            run(
                lambda: TaskMachine(runner, stores),
                settings=settings(
                    max_examples=100,
                    stateful_step_count=50,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            for store in stores:
                runner.run(store.close())
