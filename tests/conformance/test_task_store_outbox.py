"""What every store promises of callbacks and to operators (finch_gateway/store/outbox.py and operator.py)."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Sequence

import pytest
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
    admit,
    again,
    change,
    claim,
    claim_one,
    commit,
    drop_over,
    event,
    events_of,
    fresh,
    held_of,
    lease,
    nonce,
    progress,
    replace,
    row_of,
    running,
    sequences,
)

from finch_gateway.store import (
    Admitted,
    Conflict,
    Dead,
    Delivered,
    Delivery,
    DeliveryEnd,
    EventRow,
    NewEvent,
    Replayed,
    RetryAt,
    Store,
    TaskRow,
)

CLAIM_OVER = NOW + CLAIM_S + 1


async def write(store: Store, row: TaskRow, *events: NewEvent, now: float = NOW) -> TaskRow:
    """Commit a change for each event."""
    for one in events:
        row = await commit(store, row, now, event=one)
    return row


async def one_of(store: Store, task_id: str, sequence: int) -> EventRow:
    (row,) = [one for one in await events_of(store, task_id) if one.sequence == sequence]
    return row


def named(deliveries: Sequence[Delivery]) -> list[tuple[str, int]]:
    return [(one.task_id, one.sequence) for one in deliveries]


class TestClaims:
    async def test_a_claim_brings_all_that_a_delivery_needs(self, store: Store) -> None:
        mine = event(3, body=b"body", url="https://buyer.example/%2F?a=1", callback_key_id="callback")
        one = await admit(store, NOW + 5, key_id="dispatching", event=mine)
        (delivery,) = await store.claim_events(HOST, "op", CLAIM_S, 10, NOW + 7)
        assert delivery == Delivery(
            task_id=one.task_id,
            sequence=3,
            op="op",
            listing=LISTING,
            key_id="dispatching",
            body=b"body",
            url="https://buyer.example/%2F?a=1",
            callback_key_id="callback",
            host=HOST,
            attempts=0,
            created_at=NOW + 5,
        )

    async def test_without_an_event_there_is_nothing_to_claim(self, store: Store) -> None:
        await admit(store)
        assert list(await claim(store)) == []
        assert list(await store.due_hosts(NOW)) == []

    async def test_an_event_is_not_delivered_before_its_time(self, store: Store) -> None:
        await admit(store, event=event(1, not_before=NOW + 2))
        assert list(await claim(store, NOW + 1.5)) == []
        assert list(await store.due_hosts(NOW + 1.5)) == []
        assert list(await store.due_hosts(NOW + 2)) == [HOST]
        assert len(await claim(store, NOW + 2)) == 1

    async def test_only_the_host_s_own_events_are_claimed(self, store: Store) -> None:
        one = await admit(store, event=event(1, host="a.example"))
        await admit(store, event=event(1, host="b.example"))
        assert named(await claim(store, host="a.example")) == [(one.task_id, 1)]
        assert list(await claim(store, host="c.example")) == []

    async def test_what_is_claimed_is_not_claimed_again(self, store: Store) -> None:
        await admit(store, event=event(1))
        await claim_one(store)
        assert list(await claim(store)) == []
        assert list(await claim(store, NOW + CLAIM_S - 1)) == []

    async def test_of_many_claims_at_once_over_two_instances_each_event_goes_to_one(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        for _ in range(30):
            await admit(store_pair[0], event=event(1))
        claims = await asyncio.gather(*(claim(store_pair[i % 2], limit=2) for i in range(40)))
        taken = [name for deliveries in claims for name in named(deliveries)]
        assert len(taken) == len(set(taken)) == 30

    async def test_the_longest_due_are_claimed_first_and_no_more_than_the_limit(self, store: Store) -> None:
        due = {
            seconds: (await admit(store, event=event(1, not_before=NOW + seconds))).task_id for seconds in (3, 1, 5, 2)
        }
        assert named(await claim(store, NOW + 10, limit=3)) == [(due[seconds], 1) for seconds in (1, 2, 3)]
        assert named(await claim(store, NOW + 10, limit=3)) == [(due[5], 1)]

    async def test_a_task_s_events_leave_in_order_one_at_a_time(self, store: Store) -> None:
        row = await write(store, await running(store), event(1), event(2), event(3))
        for sequence in (1, 2, 3):
            delivery = await claim_one(store)
            assert delivery.sequence == sequence
            assert list(await claim(store)) == []
            assert await store.settle_event(delivery, Delivered(), NOW)
        assert list(await events_of(store, row.task_id)) == []

    async def test_the_oldest_event_holds_the_later_ones_back_until_it_is_due(self, store: Store) -> None:
        await write(store, await running(store), event(1, not_before=NOW + 50), event(2))
        assert list(await claim(store, NOW + 10)) == []
        assert list(await store.due_hosts(NOW + 10)) == []
        assert (await claim_one(store, NOW + 50)).sequence == 1

    async def test_one_task_s_events_do_not_hold_another_s_back(self, store: Store) -> None:
        await write(store, await running(store), event(1, not_before=NOW + 50), event(2))
        other = await admit(store, event=event(1))
        assert named(await claim(store)) == [(other.task_id, 1)]

    async def test_events_of_one_task_to_two_hosts_leave_in_order_too(self, store: Store) -> None:
        await write(store, await running(store), event(1, host="a.example"), event(2, host="b.example"))
        assert list(await store.due_hosts(NOW)) == ["a.example"]
        assert list(await claim(store, host="b.example")) == []
        await store.settle_event(await claim_one(store, host="a.example"), Delivered(), NOW)
        assert list(await store.due_hosts(NOW)) == ["b.example"]
        assert (await claim_one(store, host="b.example")).sequence == 2

    async def test_a_claim_that_ended_makes_the_event_due_again_with_its_attempts_unchanged(self, store: Store) -> None:
        await write(store, await running(store), event(1), event(2))
        await store.settle_event(await claim_one(store), RetryAt(NOW), NOW)
        first = await claim_one(store)
        assert list(await store.due_hosts(NOW + CLAIM_S - 1)) == []
        assert list(await store.due_hosts(CLAIM_OVER)) == [HOST]
        second = await claim_one(store, CLAIM_OVER)
        assert second == replace(first, op=second.op)
        assert second.attempts == 1


class TestDueHosts:
    async def test_hosts_with_an_event_due_and_not_being_delivered_are_told_once_each(self, store: Store) -> None:
        for host in ("a.example", "b.example", "c.example"):
            for _ in range(3):
                await admit(store, event=event(1, host=host))
        await admit(store, event=event(1, host="later.example", not_before=NOW + 60))
        assert sorted(await store.due_hosts(NOW)) == ["a.example", "b.example", "c.example"]
        await claim(store, host="b.example")
        await claim(store, host="c.example", limit=2)
        assert sorted(await store.due_hosts(NOW)) == ["a.example", "c.example"]
        assert "later.example" in await store.due_hosts(NOW + 60)

    async def test_dead_and_delivered_events_make_no_host_due(self, store: Store) -> None:
        for end in (Dead("gone"), Delivered()):
            await admit(store, event=event(1))
            await store.settle_event(await claim_one(store), end, NOW)
        assert list(await store.due_hosts(NOW + 1_000)) == []


ENDS: list[DeliveryEnd] = [Delivered(), RetryAt(NOW + 60), Dead("status 410")]


class TestSettling:
    async def test_a_delivered_event_is_gone(self, store: Store) -> None:
        one = await admit(store, event=event(1))
        assert await store.settle_event(await claim_one(store), Delivered(), NOW)
        assert list(await events_of(store, one.task_id)) == []
        assert list(await claim(store, CLAIM_OVER)) == []

    async def test_a_retry_counts_an_attempt_and_is_due_at_its_time(self, store: Store) -> None:
        one = await admit(store, event=event(1))
        first = await claim_one(store)
        assert await store.settle_event(first, RetryAt(NOW + 60), NOW + 1)
        seen = await one_of(store, one.task_id, 1)
        assert (seen.attempts, seen.due_at, seen.created_at, seen.is_dead) == (1, NOW + 60, NOW, False)
        assert list(await claim(store, NOW + 59)) == []
        second = await claim_one(store, NOW + 60)
        assert second == replace(first, op=second.op, attempts=1)
        assert await store.settle_event(second, RetryAt(NOW + 90), NOW + 61)
        assert (await claim_one(store, NOW + 90)).attempts == 2

    async def test_a_retry_takes_its_place_by_its_time(self, store: Store) -> None:
        for name, seconds in (("b", 20), ("a", 10), ("c", 30)):
            await admit(store, invocation_id=name, task_id=f"task {name}", event=event(1))
            await store.settle_event(await claim_one(store), RetryAt(NOW + seconds), NOW)
        assert named(await claim(store, NOW + 40)) == [("task a", 1), ("task b", 1), ("task c", 1)]

    async def test_a_retry_holds_the_task_s_later_events_back(self, store: Store) -> None:
        await write(store, await running(store), event(1), event(2))
        await store.settle_event(await claim_one(store), RetryAt(NOW + 60), NOW)
        assert list(await claim(store, NOW + 59)) == []
        assert (await claim_one(store, NOW + 60)).sequence == 1

    async def test_a_dead_event_stays_for_the_operator_and_is_not_tried_again(self, store: Store) -> None:
        one = await admit(store, event=event(1, body=b"body"))
        await store.settle_event(await claim_one(store), RetryAt(NOW), NOW)
        assert await store.settle_event(await claim_one(store), Dead("status 410"), NOW)
        seen = await one_of(store, one.task_id, 1)
        assert (seen.is_dead, seen.reason, seen.body, seen.created_at) == (True, "status 410", b"body", NOW)
        assert list(await claim(store, NOW + 100_000)) == []

    async def test_a_dead_event_never_holds_back_later_ones(self, store: Store) -> None:
        row = await write(store, await running(store), event(1), event(2))
        await store.settle_event(await claim_one(store), Dead("gone"), NOW)
        assert list(await store.due_hosts(NOW)) == [HOST]
        await store.settle_event(await claim_one(store), Delivered(), NOW)
        await write(store, row, event(3))
        assert (await claim_one(store)).sequence == 3

    async def test_another_instance_may_settle(self, store_pair: tuple[Store, Store]) -> None:
        await admit(store_pair[0], event=event(1))
        assert await store_pair[1].settle_event(await claim_one(store_pair[0]), Delivered(), NOW)
        assert list(await events_of(store_pair[0])) == []

    @pytest.mark.parametrize("end", ENDS)
    async def test_under_an_operation_without_the_claim_nothing_changes(self, store: Store, end: DeliveryEnd) -> None:
        await admit(store, event=event(1))
        first = await claim_one(store)
        second = await claim_one(store, CLAIM_OVER)
        before = list(await events_of(store))
        assert not await store.settle_event(first, end, CLAIM_OVER)
        assert not await store.settle_event(replace(second, op="nobody"), end, CLAIM_OVER)
        assert not await store.settle_event(replace(second, sequence=2), end, CLAIM_OVER)
        assert not await store.settle_event(replace(second, task_id="nobody"), end, CLAIM_OVER)
        assert list(await events_of(store)) == before
        assert await store.settle_event(second, Delivered(), CLAIM_OVER)

    async def test_an_event_nobody_claimed_cannot_be_settled(self, store: Store) -> None:
        await write(store, await running(store), event(1), event(2))
        first = await claim_one(store)
        assert not await store.settle_event(replace(first, sequence=2), Delivered(), NOW)
        assert await store.settle_event(first, RetryAt(NOW + 1), NOW)
        await claim_one(store, NOW + 1)
        assert not await store.settle_event(replace(first, op="never claimed"), Delivered(), NOW + 1)

    @pytest.mark.parametrize("end", ENDS)
    async def test_the_same_settlement_once_more_is_true_and_counts_once(self, store: Store, end: DeliveryEnd) -> None:
        await write(store, await running(store), event(1), event(2))
        mine = await claim_one(store)
        assert await store.settle_event(mine, end, NOW)
        after = list(await events_of(store))
        assert await store.settle_event(mine, end, NOW + 1)
        assert list(await events_of(store)) == after


class TestReplacement:
    async def test_newer_progress_replaces_older(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1), progress(2), progress(3))
        assert await sequences(store, row.task_id) == [3]
        assert (await claim_one(store)).body == b"event 3"

    async def test_progress_that_is_being_delivered_is_not_replaced(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        delivery = await claim_one(store)
        row = await write(store, row, progress(2), progress(3))
        assert await sequences(store, row.task_id) == [1, 3]
        assert list(await claim(store)) == []
        assert await store.settle_event(delivery, Delivered(), NOW)
        assert (await claim_one(store)).sequence == 3

    async def test_progress_whose_claim_ended_is_replaced(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        late = await claim_one(store)
        await write(store, row, progress(2), now=CLAIM_OVER)
        assert await sequences(store, row.task_id) == [2]
        assert not await store.settle_event(late, RetryAt(NOW), CLAIM_OVER)

    async def test_progress_that_waits_for_its_retry_is_replaced(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        await store.settle_event(await claim_one(store), RetryAt(NOW + 60), NOW)
        await write(store, row, progress(2), now=NOW + 1)
        assert await sequences(store, row.task_id) == [2]

    async def test_progress_takes_over_the_attempts_and_the_due_time_of_what_it_replaces(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        await store.settle_event(await claim_one(store), RetryAt(NOW + 60), NOW)
        await write(store, row, progress(2, not_before=NOW + 1), now=NOW + 1)
        seen = await one_of(store, row.task_id, 2)
        assert (seen.attempts, seen.due_at, seen.created_at) == (1, NOW + 60, NOW + 1)
        assert list(await claim(store, NOW + 59)) == []
        assert (await claim_one(store, NOW + 60)).attempts == 1

    async def test_steady_progress_keeps_its_place_in_the_host_s_line(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        other = await admit(store, NOW + 1, event=event(1, not_before=NOW + 1))
        await write(store, row, progress(2, not_before=NOW + 2), now=NOW + 2)
        assert named(await claim(store, NOW + 3)) == [(row.task_id, 2), (other.task_id, 1)]

    async def test_progress_that_replaces_nothing_starts_afresh(self, store: Store) -> None:
        row = await write(store, await running(store), event(1))
        await store.settle_event(await claim_one(store), RetryAt(NOW + 60), NOW)
        await write(store, row, progress(2, not_before=NOW + 1), now=NOW + 1)
        seen = await one_of(store, row.task_id, 2)
        assert (seen.attempts, seen.due_at) == (0, NOW + 1)

    async def test_progress_whose_delivery_failed_gives_way_to_the_end_that_came_meanwhile(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        in_flight = await claim_one(store)
        await commit(store, row, NOW, index=COMPLETED, event=event(2, not_before=NOW))
        assert await store.settle_event(in_flight, RetryAt(NOW + 900), NOW)
        assert await sequences(store, row.task_id) == [2]
        assert (await claim_one(store)).attempts == 0
        assert await store.settle_event(in_flight, RetryAt(NOW + 900), NOW)

    async def test_progress_whose_delivery_failed_gives_way_to_newer_progress_which_waits_in_its_place(
        self, store: Store
    ) -> None:
        row = await write(store, await running(store), progress(1))
        in_flight = await claim_one(store)
        await write(store, row, progress(2, not_before=NOW))
        assert await store.settle_event(in_flight, RetryAt(NOW + 60), NOW)
        seen = await one_of(store, row.task_id, 2)
        assert await sequences(store, row.task_id) == [2]
        assert (seen.attempts, seen.due_at) == (1, NOW + 60)

    async def test_progress_whose_delivery_failed_does_not_give_way_to_a_question(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        in_flight = await claim_one(store)
        await write(store, row, event(2))
        assert await store.settle_event(in_flight, RetryAt(NOW + 60), NOW)
        assert await sequences(store, row.task_id) == [1, 2]

    async def test_a_question_neither_replaces_nor_is_replaced(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1), event(2))
        assert await sequences(store, row.task_id) == [1, 2]
        row = await write(store, row, progress(3))
        assert await sequences(store, row.task_id) == [2, 3]
        await commit(store, row, index=COMPLETED, event=event(4))
        assert await sequences(store, row.task_id) == [2, 4]

    async def test_the_end_replaces_all_undelivered_progress_and_starts_afresh(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1), event(2), progress(3))
        await store.settle_event(await claim_one(store), Delivered(), NOW)
        await store.settle_event(await claim_one(store), RetryAt(NOW + 60), NOW)
        await commit(store, row, NOW + 1, index=COMPLETED, event=event(4, not_before=NOW + 1))
        assert await sequences(store, row.task_id) == [4]
        seen = await one_of(store, row.task_id, 4)
        assert (seen.attempts, seen.due_at) == (0, NOW + 1)

    async def test_the_end_waits_for_progress_that_is_being_delivered(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        delivery = await claim_one(store)
        await commit(store, row, index=COMPLETED, event=event(2))
        assert await sequences(store, row.task_id) == [1, 2]
        assert list(await claim(store)) == []
        await store.settle_event(delivery, Delivered(), NOW)
        assert (await claim_one(store)).sequence == 2

    async def test_an_end_without_an_event_leaves_the_outbox_alone(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        await commit(store, row, index=COMPLETED)
        assert await sequences(store, row.task_id) == [1]

    async def test_of_several_the_oldest_passes_its_attempts_and_due_time_on(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        await store.settle_event(await claim_one(store), RetryAt(NOW + 1), NOW)
        await claim_one(store, NOW + 1)
        row = await write(store, row, progress(2, not_before=NOW + 2), now=NOW + 2)
        over = NOW + 1 + CLAIM_S
        await write(store, row, progress(3, not_before=over), now=over)
        assert await sequences(store, row.task_id) == [3]
        seen = await one_of(store, row.task_id, 3)
        assert (seen.attempts, seen.due_at) == (1, NOW + 1)

    async def test_a_dead_event_is_kept_and_passes_nothing_on(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        await store.settle_event(await claim_one(store), RetryAt(NOW), NOW)
        await store.settle_event(await claim_one(store), Dead("gone"), NOW)
        row = await write(store, row, progress(2, not_before=NOW + 1), now=NOW + 1)
        await commit(store, row, NOW + 2, index=COMPLETED, event=event(3, not_before=NOW + 2))
        assert await sequences(store, row.task_id) == [1, 3]
        assert (await one_of(store, row.task_id, 3)).attempts == 0

    async def test_a_refused_change_replaces_nothing(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1))
        assert not await store.commit_task(change(row, version=row.version + 1, event=progress(2)), NOW)
        assert await sequences(store, row.task_id) == [1]

    async def test_one_task_s_progress_does_not_replace_another_s(self, store: Store) -> None:
        one = await write(store, await running(store), progress(1))
        two = await write(store, await running(store), progress(2))
        await commit(store, two, index=COMPLETED, event=event(3))
        assert await sequences(store, one.task_id) == [1]
        assert await sequences(store, two.task_id) == [3]

    async def test_what_replaces_the_oldest_takes_its_place_in_the_task_s_line(self, store: Store) -> None:
        row = await write(store, await running(store), progress(1), event(2), progress(3))
        for sequence in (2, 3):
            delivery = await claim_one(store)
            assert delivery.sequence == sequence
            await store.settle_event(delivery, Delivered(), NOW)
        assert list(await events_of(store, row.task_id)) == []


async def dead_event(store: Store) -> TaskRow:
    """A task whose first event is dead after an attempt."""
    row = await write(store, await running(store), event(1))
    await store.settle_event(await claim_one(store), RetryAt(NOW), NOW)
    await store.settle_event(await claim_one(store), Dead("status 410"), NOW)
    return row


class TestResending:
    async def test_a_dead_event_is_due_at_once_with_a_fresh_schedule(self, store: Store) -> None:
        row = await dead_event(store)
        assert await store.resend_event(row.task_id, 1, NOW + 100)
        seen = await one_of(store, row.task_id, 1)
        assert (seen.is_dead, seen.reason, seen.attempts) == (False, "", 0)
        assert (seen.created_at, seen.due_at) == (NOW + 100, NOW + 100)
        assert list(await store.due_hosts(NOW + 100)) == [HOST]
        delivery = await claim_one(store, NOW + 100)
        assert (delivery.attempts, delivery.created_at, delivery.body) == (0, NOW + 100, b"event 1")
        assert await store.settle_event(delivery, Delivered(), NOW + 101)

    async def test_an_event_that_waits_for_its_retry_is_due_at_once(self, store: Store) -> None:
        one = await admit(store, event=event(1))
        await store.settle_event(await claim_one(store), RetryAt(NOW + 900), NOW)
        assert await store.resend_event(one.task_id, 1, NOW + 5)
        assert (await claim_one(store, NOW + 5)).attempts == 0

    async def test_an_event_that_is_not_there_is_not_sent_again(self, store: Store) -> None:
        one = await admit(store, event=event(1))
        assert not await store.resend_event(one.task_id, 2, NOW)
        assert not await store.resend_event("nobody", 1, NOW)
        await store.settle_event(await claim_one(store), Delivered(), NOW)
        assert not await store.resend_event(one.task_id, 1, NOW)
        assert list(await events_of(store)) == []

    async def test_an_event_sent_again_leaves_before_the_task_s_later_ones(self, store: Store) -> None:
        row = await dead_event(store)
        await write(store, row, event(2))
        await store.resend_event(row.task_id, 1, NOW + 1)
        for sequence in (1, 2):
            delivery = await claim_one(store, NOW + 1)
            assert delivery.sequence == sequence
            await store.settle_event(delivery, Delivered(), NOW + 1)

    async def test_an_event_sent_again_waits_for_the_one_that_is_being_delivered(self, store: Store) -> None:
        row = await dead_event(store)
        await write(store, row, event(2))
        delivery = await claim_one(store)
        await store.resend_event(row.task_id, 1, NOW + 1)
        assert list(await claim(store, NOW + 1)) == []
        assert await store.settle_event(delivery, Delivered(), NOW + 1)
        assert (await claim_one(store, NOW + 1)).sequence == 1


class TestLists:
    async def test_tasks_are_listed_newest_first_up_to_the_limit(self, store: Store) -> None:
        names = [(await admit(store, NOW + i)).task_id for i in range(5)]
        assert [row.task_id for row in await store.list_tasks(None, None, 3)] == names[:1:-1]

    async def test_tasks_are_listed_as_they_stand_by_listing_and_openness(self, store: Store) -> None:
        held = await running(store, NOW)
        ended = await commit(store, await running(store, NOW + 1), NOW + 1, index=COMPLETED)
        other = await row_of(store, (await admit(store, NOW + 2, listing="other")).task_id, "other")
        assert list(await store.list_tasks(None, None, 10)) == [other, ended, held]
        assert list(await store.list_tasks(LISTING, None, 10)) == [ended, held]
        assert list(await store.list_tasks(None, True, 10)) == [other, held]
        assert list(await store.list_tasks(None, False, 10)) == [ended]
        assert list(await store.list_tasks("other", False, 10)) == []
        assert list(await store.list_tasks("nobody", None, 10)) == []

    async def test_the_limit_counts_what_passes_the_filter(self, store: Store) -> None:
        first = await running(store, NOW)
        for i in range(5):
            await commit(store, await running(store, NOW + 1 + i), NOW + 1 + i, index=COMPLETED)
        assert [row.task_id for row in await store.list_tasks(LISTING, True, 2)] == [first.task_id]

    async def test_events_are_listed_oldest_first_up_to_the_limit(self, store: Store) -> None:
        names = [(await admit(store, NOW + i, event=event(1))).task_id for i in range(5)]
        assert [row.task_id for row in await store.list_events(None, None, 3)] == names[:3]

    async def test_events_are_listed_whole(self, store: Store) -> None:
        one = await admit(store, NOW + 1, event=event(4, body=b"body", not_before=NOW + 3))
        expected = EventRow(one.task_id, 4, LISTING, HOST, 0, NOW + 1, NOW + 3, False, "", b"body")
        assert list(await store.list_events(None, None, 10)) == [expected]

    async def test_events_are_listed_by_task_and_whether_they_are_dead(self, store: Store) -> None:
        row = await dead_event(store)
        await write(store, row, event(2), now=NOW + 1)
        other = await admit(store, NOW + 2, event=event(1))
        await claim(store, NOW + 2)

        async def listed(task_id: str | None, is_dead: bool | None) -> list[tuple[str, int]]:
            return [(one.task_id, one.sequence) for one in await store.list_events(task_id, is_dead, 10)]

        assert await listed(None, None) == [(row.task_id, 1), (row.task_id, 2), (other.task_id, 1)]
        assert await listed(None, True) == [(row.task_id, 1)]
        assert await listed(None, False) == [(row.task_id, 2), (other.task_id, 1)]
        assert await listed(row.task_id, None) == [(row.task_id, 1), (row.task_id, 2)]
        assert await listed(other.task_id, True) == []
        assert await listed("nobody", None) == []

    async def test_open_tasks_are_counted_by_key_id(self, store: Store) -> None:
        assert await store.open_tasks() == {}
        await running(store, key_id="a")
        await commit(store, await running(store, key_id="a"), index=ASKING, keeps_lease=False)
        await commit(store, await running(store, key_id="a"), index=COMPLETED)
        await commit(store, await running(store, key_id="c"), index=CANCELED)
        await admit(store, key_id="a")
        await admit(store, key_id="b", listing="other")
        assert await store.open_tasks() == {"a": 3, "b": 1}


class TestPurge:
    async def test_an_ended_task_goes_with_its_events_when_its_time_is_over(self, store: Store) -> None:
        row = await dead_event(store)
        await commit(store, row, index=COMPLETED, event=event(2), keep_until=NOW + 200)
        assert await store.purge(NOW + 199, 100) == 0
        assert len(await events_of(store, row.task_id)) == 2
        await drop_over(store, NOW + 200)
        assert await store.read_task(row.task_id, LISTING, None, NOW + 200) is None
        assert list(await store.list_tasks(None, None, 10)) == []
        assert list(await events_of(store)) == []
        assert list(await store.due_hosts(NOW + 200)) == []
        assert list(await claim(store, NOW + 200)) == []
        assert not await store.resend_event(row.task_id, 1, NOW + 200)

    async def test_an_open_task_is_never_dropped(self, store: Store) -> None:
        held = await running(store, keep_until=NOW + 10, event=event(1))
        asking = await running(store, keep_until=NOW + 10)
        asking = await commit(store, asking, index=ASKING, keeps_lease=False, keep_until=NOW + 10)
        waiting = await admit(store, keep_until=NOW + 10)
        await drop_over(store, NOW + 1_000)
        assert await row_of(store, held.task_id) == held
        assert await row_of(store, asking.task_id) == asking
        assert await row_of(store, waiting.task_id)
        assert await sequences(store, held.task_id) == [1]
        assert await store.open_tasks() == {"kid": 3}

    async def test_no_more_than_the_limit_is_dropped_at_once(self, store: Store) -> None:
        for _ in range(7):
            await commit(store, await running(store), index=COMPLETED, keep_until=NOW + 100)
            await commit(store, await running(store), index=COMPLETED, keep_until=NOW + 10_000)
        dropped = [await store.purge(NOW + 101, 3)]
        while dropped[-1]:
            dropped.append(await store.purge(NOW + 101, 3))
        assert max(dropped) <= 3
        assert len(await store.list_tasks(None, None, 100)) == 7

    async def test_a_dropped_task_can_no_longer_be_changed(self, store: Store) -> None:
        row = await running(store)
        await commit(store, row, index=COMPLETED, keep_until=NOW + 100)
        await drop_over(store, NOW + 101)
        assert not await store.commit_task(change(row), NOW + 101)
        assert list(await store.lost_tasks([held_of(row)])) == [held_of(row)]
        assert list(await store.due_tasks(NOW + 10_000, 10)) == []

    async def test_the_final_change_sets_until_when_a_task_is_kept(self, store: Store) -> None:
        row = await running(store, keep_until=NOW + 10)
        row = await commit(store, row, keep_until=0.0)
        await commit(store, row, index=COMPLETED, keep_until=NOW + 10_000)
        await drop_over(store, NOW + 9_000)
        assert await row_of(store, row.task_id)


class TestReopening:
    async def test_reopening_keeps_everything(self, new_store: Callable[[], Store]) -> None:
        before = new_store()
        await before.open()
        later = event(1, not_before=NOW + 500, host="later.example")
        mine = await admit(before, event=later, nonce=nonce("n", op="mine"))
        held = await before.lease_task(LISTING, "worker", LEASE_S, NOW)
        assert held is not None
        dead = await dead_event(before)
        last = change(dead, COMPLETED, event=event(2))
        assert await before.commit_task(last, NOW)
        claimed = await claim_one(before)
        waiting = await admit(before, NOW + 1)
        tasks, events = await before.list_tasks(None, None, 10), await events_of(before)
        await before.close()
        after = new_store()
        await after.open()
        assert list(await after.list_tasks(None, None, 10)) == list(tasks)
        assert list(await events_of(after)) == list(events)
        assert await after.admit_task(again(mine, nonce=nonce("n")), NOW) == Replayed()
        assert await after.admit_task(mine, NOW) == Admitted(mine.receipt, True)
        assert await after.admit_task(again(mine, input_digest="digest-2"), NOW) == Conflict()
        assert await after.commit_task(last, NOW)
        assert await after.lease_task(LISTING, "worker", LEASE_S, NOW) == held
        assert (await lease(after)).task_id == waiting.task_id
        assert (await lease(after, LATER)).attempt == 2
        assert list(await claim(after)) == []
        assert await after.settle_event(claimed, Delivered(), NOW)
        assert list(await after.due_hosts(NOW + 500)) == ["later.example"]
        assert await after.open_tasks() == {"kid": 2}
        await after.close()


HOSTILE = {
    "empty": "",
    "colon": ":",
    "star": "*",
    "glob": "?[a-z]",
    "hash-tag": "{x}",
    "open-brace": "{",
    "nul": "a\0b",
    "nul-end": "a\0",
    "plain": "a",
    "case": "A",
    "blank-end": "a ",
    "newline": "a\nb",
    "crlf": "a\r\nb",
    "nfc": unicodedata.normalize("NFC", "é"),
    "nfd": unicodedata.normalize("NFD", "é"),
    "dots": "../../etc/passwd",
    "percent": "%2F",
    "quote": "'; DROP TABLE tasks; --",
    "number": "1",
    "number-again": "1.0",
    "padded": "01",
    "emoji": "\U0001f600",
    "ten-kilobytes": "x" * 10_240,
    "ten-kilobytes-and-one": "x" * 10_241,
}


class TestHostileIds:
    async def test_task_ids_never_collide(self, store: Store) -> None:
        for name, text in HOSTILE.items():
            await admit(store, task_id=text, record=name.encode(), event=event(1, body=name.encode()))
        for name, text in HOSTILE.items():
            row = await row_of(store, text)
            assert (row.task_id, row.record) == (text, name.encode())
            assert [one.body for one in await events_of(store, text)] == [name.encode()]
        for delivery in await claim(store):
            assert HOSTILE[delivery.body.decode()] == delivery.task_id
            assert await store.settle_event(delivery, Delivered(), NOW)
        assert list(await events_of(store)) == []

    @pytest.mark.parametrize("part", ["listing", "invocation_id"])
    async def test_invocations_never_collide(self, store: Store, part: str) -> None:
        known = [await admit(store, **{"invocation_id": "i", "listing": "l", part: text}) for text in HOSTILE.values()]
        for one in known:
            assert await store.admit_task(again(one), NOW) == Admitted(one.receipt, False)
            assert (await row_of(store, one.task_id, one.listing)).invocation_id == one.invocation_id

    async def test_listing_and_invocation_never_run_into_each_other(self, store: Store) -> None:
        for separator in (":", "\n", "\0", "|", "}", "/", ","):
            await admit(store, listing=f"a{separator}b", invocation_id="c")
            await admit(store, listing="a", invocation_id=f"b{separator}c")

    async def test_listings_never_collide(self, store: Store) -> None:
        for text in HOSTILE.values():
            await admit(store, listing=text, max_queue=1)
        for text in HOSTILE.values():
            assert (await lease(store, listing=text)).listing == text
            assert await store.lease_task(text, fresh("op"), LEASE_S, NOW) is None
            assert [row.listing for row in await store.list_tasks(text, None, 10)] == [text]

    async def test_hosts_never_collide(self, store: Store) -> None:
        for text in HOSTILE.values():
            await admit(store, event=event(1, host=text, body=text.encode()))
        assert sorted(await store.due_hosts(NOW)) == sorted(HOSTILE.values())
        for text in HOSTILE.values():
            delivery = await claim_one(store, host=text)
            assert (delivery.host, delivery.body) == (text, text.encode())

    async def test_words_and_operations_come_through_whole(self, store: Store) -> None:
        for text in HOSTILE.values():
            words = {"key_id": text, "input_digest": text, "op": f"admit {text}", "listing": f"listing {text}"}
            mine = event(1, url=text, callback_key_id=text, host=f"host {text}")
            one = await admit(store, index=replace(QUEUED, state=text), event=mine, **words)
            row = await store.lease_task(one.listing, text, LEASE_S, NOW)
            assert row is not None
            assert (row.key_id, row.index.state) == (text, text)
            assert await store.lease_task(one.listing, text, LEASE_S, NOW) == row
            working = change(row, replace(WORKING, state=text), op=text)
            assert [await store.commit_task(working, NOW) for _ in range(2)] == [True, True]
            (delivery,) = await store.claim_events(mine.host, text, CLAIM_S, 10, NOW)
            assert (delivery.op, delivery.key_id, delivery.url, delivery.callback_key_id) == (text,) * 4
            assert await store.settle_event(delivery, Dead(text), NOW)
            assert (await one_of(store, row.task_id, 1)).reason == text
            differing = again(one, nonce=nonce(key_id=text), input_digest=f"{text}'")
            assert await store.admit_task(differing, NOW) == Conflict()
        assert await store.open_tasks() == dict.fromkeys(HOSTILE.values(), 1)


class TestThroughput:
    async def test_many_of_everything_at_once_over_two_instances_ends_well(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        async def life(i: int) -> None:
            one, two = store_pair[i % 2], store_pair[(i + 1) % 2]
            listing, host = f"listing {i}", f"host {i}"
            admitted = await admit(one, listing=listing, event=event(1, host=host))
            row = await lease(two, listing=listing)
            row = await commit(two, row, event=progress(2, host=host))
            await commit(one, row, index=COMPLETED, event=event(3, host=host))
            for sequence in (1, 3):
                delivery = await claim_one(two, host=host)
                assert named([delivery]) == [(admitted.task_id, sequence)]
                assert await one.settle_event(delivery, Delivered(), NOW)

        await asyncio.gather(*(life(i) for i in range(100)))
        assert list(await events_of(store_pair[0])) == []
        assert await store_pair[1].open_tasks() == {}
