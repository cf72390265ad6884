"""What every store promises of tasks (finch_gateway/store/tasks.py): accepted once, held by one, ended once."""

from __future__ import annotations

import asyncio

import pytest
from support.task_store import (
    ASKING,
    CANCELED,
    COMPLETED,
    LATER,
    LEASE_S,
    LISTING,
    NOW,
    QUEUED,
    WORKING,
    admission,
    admit,
    again,
    change,
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
    Delivered,
    Free,
    Held,
    HeldTask,
    QueueFull,
    Replayed,
    Store,
    TaskIndex,
    TaskRow,
    TurnClaim,
    TurnKey,
)


def turn_claim(invocation_id: str, turn_id: str = "") -> TurnClaim:
    key = TurnKey(LISTING, invocation_id, turn_id)
    return TurnClaim(key, None, "digest of a turn", "kid", "", fresh("op"), 10.0, NOW + 1000, True, b"{}")


class TestAdmission:
    async def test_an_invocation_is_a_task_or_a_turn_and_never_both(self, store: Store) -> None:
        one = await admit(store)
        assert await store.claim_turn(turn_claim(one.invocation_id), NOW) == Conflict()
        assert isinstance(await store.claim_turn(turn_claim(one.invocation_id, "turn"), NOW), Held)
        assert isinstance(await store.claim_turn(turn_claim("a turn"), NOW), Held)
        assert await store.admit_task(admission(invocation_id="a turn"), NOW) == Conflict()

    async def test_a_new_dispatch_is_admitted_under_its_receipt(self, store: Store) -> None:
        assert await store.admit_task(admission(receipt=b"receipt"), NOW) == Admitted(b"receipt", True)

    async def test_an_admitted_task_stands_as_it_was_given_and_nobody_holds_it(self, store: Store) -> None:
        one = await admit(store)
        row = await row_of(store, one.task_id)
        as_given = (one.task_id, one.listing, one.invocation_id, one.key_id, one.dispatch, one.record, one.index)
        assert row == TaskRow(*as_given, version=row.version, epoch=0, attempt=1, lease_until=None)

    async def test_the_first_event_is_written_with_the_task(self, store: Store) -> None:
        one = await admit(store, event=event(1))
        assert await sequences(store, one.task_id) == [1]

    async def test_a_dispatch_without_a_callback_writes_no_event(self, store: Store) -> None:
        await admit(store)
        assert list(await events_of(store)) == []

    async def test_a_repeat_of_the_dispatch_gets_the_stored_receipt_and_creates_nothing(self, store: Store) -> None:
        first = await admit(store, event=event(1))
        repeat = again(first, event=event(1), receipt=b"another", record=b"another")
        assert await store.admit_task(repeat, NOW + 1) == Admitted(first.receipt, False)
        assert await store.read_task(repeat.task_id, LISTING, None, NOW) is None
        assert [row.task_id for row in await store.list_tasks(None, None, 10)] == [first.task_id]
        assert len(await events_of(store)) == 1

    @pytest.mark.parametrize("index", [WORKING, ASKING, COMPLETED])
    async def test_a_repeat_gets_the_receipt_wherever_the_task_stands(self, store: Store, index: TaskIndex) -> None:
        first = await admit(store)
        await commit(store, await lease(store), index=index)
        assert await store.admit_task(again(first), NOW + 1) == Admitted(first.receipt, False)

    async def test_the_same_operation_repeated_gets_its_verdict_again(self, store: Store) -> None:
        mine = await admit(store, event=event(1))
        await store.admit_task(again(mine), NOW)
        assert await store.admit_task(mine, NOW + 1) == Admitted(mine.receipt, True)
        assert len(await store.list_tasks(None, None, 10)) == 1
        assert len(await events_of(store)) == 1

    async def test_the_same_operation_repeated_after_a_refusal_is_refused_again(self, store: Store) -> None:
        known = await admit(store)
        differing, late, full = (
            again(known, input_digest="digest-2"),
            admission(may_start=False),
            admission(max_queue=1),
        )
        for _ in range(2):
            assert await store.admit_task(differing, NOW) == Conflict()
            assert await store.admit_task(late, NOW) == Free()
            assert await store.admit_task(full, NOW) == QueueFull()

    async def test_one_listing_s_invocation_is_not_another_s(self, store: Store) -> None:
        first = await admit(store)
        await admit(store, invocation_id=first.invocation_id, listing="other", input_digest="digest-2")

    async def test_a_consumed_nonce_comes_before_everything_else(self, store: Store) -> None:
        await store.spend(nonce("used"), NOW)
        known = await admit(store)
        for one in (
            admission(nonce=nonce("used")),
            again(known, nonce=nonce("used")),
            again(known, nonce=nonce("used"), input_digest="digest-2"),
            admission(nonce=nonce("used"), may_start=False),
            admission(nonce=nonce("used"), max_queue=0),
        ):
            assert await store.admit_task(one, NOW) == Replayed()

    async def test_another_input_is_a_conflict_before_anything_but_a_replay(self, store: Store) -> None:
        known = await admit(store)
        differing = {"input_digest": "digest-2"}
        assert await store.admit_task(again(known, **differing), NOW) == Conflict()
        assert await store.admit_task(again(known, may_start=False, max_queue=0, **differing), NOW) == Conflict()
        await commit(store, await lease(store), index=COMPLETED)
        assert await store.admit_task(again(known, **differing), NOW) == Conflict()

    async def test_a_known_dispatch_comes_before_what_may_not_start_and_a_full_queue(self, store: Store) -> None:
        known = await admit(store)
        assert await store.admit_task(again(known, may_start=False), NOW) == Admitted(known.receipt, False)
        assert await store.admit_task(again(known, max_queue=0), NOW) == Admitted(known.receipt, False)

    async def test_what_may_not_start_is_free_before_the_queue_is_looked_at(self, store: Store) -> None:
        assert await store.admit_task(admission(may_start=False), NOW) == Free()
        assert await store.admit_task(admission(may_start=False, max_queue=0), NOW) == Free()

    @pytest.mark.parametrize(
        "changes", [{"nonce": nonce("used")}, {"may_start": False}, {"max_queue": 0}], ids=["replayed", "free", "full"]
    )
    async def test_a_refused_dispatch_leaves_nothing_behind(self, store: Store, changes: dict[str, object]) -> None:
        await store.spend(nonce("used"), NOW)
        refused = admission(event=event(1), **changes)
        assert not isinstance(await store.admit_task(refused, NOW), Admitted)
        assert await store.read_task(refused.task_id, LISTING, None, NOW) is None
        assert list(await store.list_tasks(None, None, 10)) == []
        assert list(await events_of(store)) == []
        assert await store.lease_task(LISTING, fresh("op"), LEASE_S, NOW) is None
        second = again(refused, input_digest="digest-2")
        assert await store.admit_task(second, NOW) == Admitted(second.receipt, True)

    async def test_a_conflict_changes_nothing(self, store: Store) -> None:
        known = await admit(store, event=event(1))
        before = await row_of(store, known.task_id)
        await store.admit_task(again(known, input_digest="digest-2", event=event(1)), NOW)
        assert await row_of(store, known.task_id) == before
        assert len(await events_of(store)) == 1

    async def test_the_queue_is_full_with_max_queue_ready_tasks_of_the_listing(self, store: Store) -> None:
        await admit(store, max_queue=2)
        await admit(store, max_queue=2)
        assert await store.admit_task(admission(max_queue=2), NOW) == QueueFull()
        await admit(store, max_queue=2, listing="other")
        await admit(store, max_queue=3)

    async def test_only_tasks_that_wait_for_a_worker_fill_the_queue(self, store: Store) -> None:
        await running(store)
        asking = await commit(store, await running(store), index=ASKING, keeps_lease=False)
        await commit(store, await running(store), index=COMPLETED)
        await admit(store, max_queue=1)
        assert await store.admit_task(admission(max_queue=1), NOW) == QueueFull()
        await commit(store, asking, index=QUEUED)
        assert await store.admit_task(admission(max_queue=2), NOW) == QueueFull()
        await admit(store, max_queue=3)

    async def test_a_task_given_back_fills_the_queue_again(self, store: Store) -> None:
        held = await running(store)
        assert await store.release_task(held_of(held), NOW)
        assert await store.admit_task(admission(max_queue=1), NOW) == QueueFull()

    @pytest.mark.parametrize("verdict", ["new", "repeat", "conflict", "free", "full"])
    async def test_the_nonce_stays_spent_whatever_comes_back(self, store: Store, verdict: str) -> None:
        known = await admit(store)
        one = {
            "new": admission(nonce=nonce("n")),
            "repeat": again(known, nonce=nonce("n")),
            "conflict": again(known, nonce=nonce("n"), input_digest="digest-2"),
            "free": admission(nonce=nonce("n"), may_start=False),
            "full": admission(nonce=nonce("n"), max_queue=0),
        }[verdict]
        assert await store.admit_task(one, NOW) != Replayed()
        assert not await store.spend(nonce("n"), NOW)
        assert await store.admit_task(again(known, nonce=nonce("n")), NOW) == Replayed()

    async def test_without_a_nonce_none_is_spent(self, store: Store) -> None:
        first = await admit(store, nonce=None)
        assert await store.admit_task(again(first, nonce=None), NOW) == Admitted(first.receipt, False)

    async def test_fifty_admissions_at_once_over_two_instances_make_one_task_with_one_receipt(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        all_of_them = [admission(invocation_id="same", event=event(1)) for _ in range(50)]
        verdicts = await asyncio.gather(*(store_pair[i % 2].admit_task(one, NOW) for i, one in enumerate(all_of_them)))
        (row,) = await store_pair[0].list_tasks(None, None, 100)
        (winner,) = [one for one in all_of_them if one.task_id == row.task_id]
        assert verdicts.count(Admitted(winner.receipt, True)) == 1
        assert verdicts.count(Admitted(winner.receipt, False)) == 49
        assert verdicts[all_of_them.index(winner)] == Admitted(winner.receipt, True)
        assert await sequences(store_pair[1], row.task_id) == [1]

    async def test_of_fifty_admissions_at_once_with_one_nonce_over_two_instances_one_passes(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        all_of_them = [admission(nonce=nonce("n")) for _ in range(50)]
        verdicts = await asyncio.gather(*(store_pair[i % 2].admit_task(one, NOW) for i, one in enumerate(all_of_them)))
        assert verdicts.count(Replayed()) == 49
        assert len(await store_pair[0].list_tasks(None, None, 100)) == 1

    async def test_fifty_admissions_at_once_over_two_instances_never_overfill_the_queue(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        all_of_them = [admission(max_queue=10) for _ in range(50)]
        verdicts = await asyncio.gather(*(store_pair[i % 2].admit_task(one, NOW) for i, one in enumerate(all_of_them)))
        assert verdicts.count(QueueFull()) == 40
        assert len(await store_pair[0].list_tasks(None, None, 100)) == 10

    async def test_an_admitted_task_is_there_for_every_instance_at_once(self, store_pair: tuple[Store, Store]) -> None:
        one, two = store_pair
        for _ in range(10):
            admitted = await admit(one)
            assert (await row_of(two, admitted.task_id)).record == admitted.record
            assert (await lease(two)).task_id == admitted.task_id

    async def test_a_receipt_outlives_its_task(self, store: Store) -> None:
        first = await admit(store)
        await commit(store, await lease(store), index=COMPLETED, keep_until=NOW + 100)
        await drop_over(store, NOW + 101)
        assert await store.read_task(first.task_id, LISTING, None, NOW + 101) is None
        assert await store.admit_task(again(first), NOW + 101) == Admitted(first.receipt, False)
        assert await store.admit_task(again(first, input_digest="digest-2"), NOW + 101) == Conflict()
        assert list(await store.list_tasks(None, None, 10)) == []

    async def test_a_receipt_whose_time_is_over_may_be_forgotten_and_is_no_trouble(self, store: Store) -> None:
        first = await admit(store, receipt_until=NOW + 200)
        await commit(store, await lease(store), index=COMPLETED, keep_until=NOW + 100)
        await drop_over(store, NOW + 201)
        second = again(first)
        verdict = await store.admit_task(second, NOW + 201)
        assert verdict in (Admitted(first.receipt, False), Admitted(second.receipt, True))


class TestReading:
    async def test_a_task_is_seen_through_its_own_listing_only(self, store: Store) -> None:
        one = await admit(store)
        assert await store.read_task(one.task_id, "other", None, NOW) is None
        assert await store.read_task(one.task_id, LISTING, None, NOW) is not None

    async def test_an_unknown_task_is_none(self, store: Store) -> None:
        assert await store.read_task("nobody", LISTING, None, NOW) is None

    async def test_reading_spends_the_nonce(self, store: Store) -> None:
        one = await admit(store)
        assert isinstance(await store.read_task(one.task_id, LISTING, nonce("n"), NOW), TaskRow)
        assert await store.read_task(one.task_id, LISTING, nonce("n"), NOW) == Replayed()
        assert not await store.spend(nonce("n"), NOW)

    async def test_the_nonce_is_spent_where_there_is_no_task_too(self, store: Store) -> None:
        one = await admit(store)
        assert await store.read_task("nobody", LISTING, nonce("n"), NOW) is None
        assert await store.read_task(one.task_id, "other", nonce("m"), NOW) is None
        assert await store.read_task("nobody", LISTING, nonce("n"), NOW) == Replayed()
        assert not await store.spend(nonce("m"), NOW)

    async def test_the_same_operation_repeated_reads_again(self, store: Store) -> None:
        one, mine = await admit(store), nonce("n")
        first = await store.read_task(one.task_id, LISTING, mine, NOW)
        assert await store.read_task(one.task_id, LISTING, mine, NOW + 1) == first

    async def test_of_fifty_reads_at_once_with_one_nonce_one_passes(self, store_pair: tuple[Store, Store]) -> None:
        one = await admit(store_pair[0])
        reads = (store_pair[i % 2].read_task(one.task_id, LISTING, nonce("n"), NOW) for i in range(50))
        assert (await asyncio.gather(*reads)).count(Replayed()) == 49


async def none_to_lease(store: Store, now: float = NOW) -> bool:
    return await store.lease_task(LISTING, fresh("op"), LEASE_S, now) is None


class TestLeasing:
    async def test_without_a_ready_task_there_is_none(self, store: Store) -> None:
        assert await none_to_lease(store)
        await admit(store, listing="other")
        assert await none_to_lease(store)

    async def test_held_asking_and_ended_tasks_are_not_handed_out(self, store: Store) -> None:
        await running(store)
        await commit(store, await running(store), index=ASKING, keeps_lease=False)
        await commit(store, await running(store), index=COMPLETED)
        assert await none_to_lease(store)

    async def test_the_row_has_the_new_holder_and_is_not_ready_any_more(self, store: Store) -> None:
        one = await admit(store)
        before = await row_of(store, one.task_id)
        row = await lease(store)
        held = replace(before, index=replace(QUEUED, is_ready=False), epoch=1, attempt=1, lease_until=NOW + LEASE_S)
        assert row == held
        assert await row_of(store, one.task_id) == held

    async def test_the_longest_waiting_is_handed_out_first(self, store: Store) -> None:
        for seconds in (3, 1, 5, 2, 4):
            await admit(store, NOW + seconds, invocation_id=f"at {seconds}")
        order = [(await lease(store, NOW + 10)).invocation_id for _ in range(5)]
        assert order == [f"at {seconds}" for seconds in (1, 2, 3, 4, 5)]

    async def test_an_answered_task_has_waited_since_its_answer(self, store: Store) -> None:
        first = await commit(store, await running(store), index=ASKING, keeps_lease=False)
        second = await admit(store, NOW + 5)
        await commit(store, first, NOW + 10, index=QUEUED)
        third = await admit(store, NOW + 15)
        order = [(await lease(store, NOW + 20)).task_id for _ in range(3)]
        assert order == [second.task_id, first.task_id, third.task_id]

    async def test_the_same_operation_gets_the_same_task_while_it_holds_it(self, store: Store) -> None:
        await admit(store)
        await admit(store, NOW + 1)
        first = await store.lease_task(LISTING, "mine", LEASE_S, NOW + 2)
        assert first is not None
        assert await store.lease_task(LISTING, "mine", LEASE_S, NOW + 2) == first
        other = await lease(store, NOW + 3)
        assert other.task_id != first.task_id
        assert await store.lease_task(LISTING, "mine", LEASE_S, NOW + 3) == first

    async def test_the_same_operation_gets_its_only_task_again(self, store: Store) -> None:
        await admit(store)
        first = await store.lease_task(LISTING, "mine", LEASE_S, NOW)
        assert first is not None
        assert await store.lease_task(LISTING, "mine", LEASE_S, NOW) == first

    async def test_the_same_operation_holds_nothing_any_more_once_its_task_ended(self, store: Store) -> None:
        await admit(store)
        first = await store.lease_task(LISTING, "mine", LEASE_S, NOW)
        assert first is not None
        await commit(store, first, index=COMPLETED)
        assert await store.lease_task(LISTING, "mine", LEASE_S, NOW) is None

    async def test_of_fifty_workers_over_two_instances_each_task_gets_one(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        for _ in range(20):
            await admit(store_pair[0])
        workers = (store_pair[i % 2].lease_task(LISTING, f"worker {i}", LEASE_S, NOW) for i in range(50))
        taken = [row.task_id for row in await asyncio.gather(*workers) if row is not None]
        assert len(taken) == len(set(taken)) == 20

    async def test_a_task_whose_lease_ended_is_handed_to_another_and_a_crash_is_counted(self, store: Store) -> None:
        first = await running(store)
        assert await none_to_lease(store, NOW + LEASE_S - 1)
        second = await lease(store, LATER)
        assert second == replace(first, epoch=2, attempt=2, lease_until=LATER + LEASE_S)
        assert await none_to_lease(store, LATER)

    async def test_of_fifty_workers_one_takes_a_dead_one_s_task_over(self, store_pair: tuple[Store, Store]) -> None:
        await running(store_pair[0])
        workers = (store_pair[i % 2].lease_task(LISTING, f"worker {i}", LEASE_S, LATER) for i in range(50))
        taken = [row for row in await asyncio.gather(*workers) if row is not None]
        assert [(row.epoch, row.attempt) for row in taken] == [(2, 2)]

    async def test_a_dead_worker_s_task_and_a_waiting_one_are_both_handed_out(self, store: Store) -> None:
        lost = await running(store)
        waiting = await admit(store)
        assert {(await lease(store, LATER)).task_id for _ in range(2)} == {lost.task_id, waiting.task_id}

    async def test_attempts_grow_on_crashes_only(self, store: Store) -> None:
        row = await running(store)
        row = await commit(store, row, index=ASKING, keeps_lease=False)
        await commit(store, row, index=QUEUED)
        row = await lease(store)
        assert (row.epoch, row.attempt) == (2, 1)
        await store.release_task(held_of(row), NOW)
        row = await lease(store)
        assert (row.epoch, row.attempt) == (3, 1)
        row = await lease(store, LATER)
        assert (row.epoch, row.attempt) == (4, 2)
        await commit(store, row, LATER, index=QUEUED, keeps_lease=False)
        row = await lease(store, LATER)
        assert (row.epoch, row.attempt) == (5, 2)


class TestHolding:
    async def test_renewing_moves_the_end(self, store: Store) -> None:
        row = await running(store)
        for _ in range(2):
            assert list(await store.renew_tasks([held_of(row)], LATER + 50, NOW + 1)) == []
        assert (await row_of(store, row.task_id)).lease_until == LATER + 50
        assert await none_to_lease(store, LATER)
        assert (await lease(store, LATER + 51)).epoch == 2

    async def test_renewing_returns_those_that_are_lost_and_moves_the_others(self, store: Store) -> None:
        rows = [await running(store) for _ in range(4)]
        await commit(store, rows[0], index=COMPLETED)
        await store.release_task(held_of(rows[1]), NOW)
        unknown, stale = HeldTask("nobody", 1), HeldTask(rows[2].task_id, 7)
        asked = [*map(held_of, rows), unknown, stale]
        lost = await store.renew_tasks(asked, NOW + 100, NOW)
        assert set(lost) == {held_of(rows[0]), held_of(rows[1]), unknown, stale}
        ends = [(await row_of(store, row.task_id)).lease_until for row in rows]
        assert ends == [None, None, NOW + 100, NOW + 100]

    async def test_renewing_nothing_loses_nothing(self, store: Store) -> None:
        assert list(await store.renew_tasks([], LATER, NOW)) == []
        assert list(await store.lost_tasks([])) == []

    async def test_asking_what_is_lost_changes_nothing(self, store: Store) -> None:
        row, gone = await running(store), await running(store)
        await store.release_task(held_of(gone), NOW)
        stale = HeldTask(row.task_id, row.epoch + 1)
        asked = [held_of(row), held_of(gone), stale, HeldTask("nobody", 1)]
        assert set(await store.lost_tasks(asked)) == set(asked[1:])
        assert await row_of(store, row.task_id) == row

    async def test_what_another_instance_ended_is_lost(self, store_pair: tuple[Store, Store]) -> None:
        one, two = store_pair
        row = await running(one)
        assert list(await one.lost_tasks([held_of(row)])) == []
        assert await two.commit_task(change(row, CANCELED, epoch=None), NOW)
        assert list(await one.lost_tasks([held_of(row)])) == [held_of(row)]
        assert not await one.commit_task(change(row, COMPLETED), NOW)

    async def test_an_ended_lease_that_nobody_took_over_still_holds(self, store: Store) -> None:
        row = await running(store)
        assert list(await store.lost_tasks([held_of(row)])) == []
        row = await commit(store, row, LATER)
        assert list(await store.renew_tasks([held_of(row)], LATER + 50, LATER)) == []
        assert await none_to_lease(store, LATER)
        assert await store.release_task(held_of(row), LATER + 100)
        assert (await lease(store, LATER + 100)).attempt == 1

    async def test_after_a_take_over_the_old_epoch_achieves_nothing(self, store: Store) -> None:
        old = await running(store)
        new = await lease(store, LATER)
        assert list(await store.renew_tasks([held_of(old)], LATER + 500, LATER)) == [held_of(old)]
        assert list(await store.lost_tasks([held_of(old)])) == [held_of(old)]
        assert not await store.commit_task(change(old, COMPLETED, event=event(1)), LATER)
        assert not await store.release_task(held_of(old), LATER)
        assert await row_of(store, old.task_id) == new
        assert list(await events_of(store)) == []

    async def test_a_task_given_back_is_ready_again(self, store: Store) -> None:
        row = await running(store)
        assert await store.release_task(held_of(row), NOW)
        assert await row_of(store, row.task_id) == replace(row, index=QUEUED, lease_until=None)
        assert (await lease(store)).task_id == row.task_id

    async def test_a_repeated_release_gives_back_once(self, store: Store) -> None:
        first = await running(store)
        await store.release_task(held_of(first), NOW)
        await store.release_task(held_of(first), NOW)
        second = await lease(store)
        assert (second.epoch, second.attempt) == (2, 1)
        assert not await store.release_task(held_of(first), NOW)
        assert await row_of(store, first.task_id) == second

    async def test_only_its_holder_gives_a_task_back(self, store: Store) -> None:
        row = await running(store)
        assert not await store.release_task(HeldTask(row.task_id, row.epoch + 1), NOW)
        assert not await store.release_task(HeldTask("nobody", 1), NOW)
        ended = await commit(store, row, index=COMPLETED)
        assert not await store.release_task(held_of(row), NOW)
        assert await row_of(store, row.task_id) == ended
        assert await none_to_lease(store)


class TestCommit:
    async def test_a_change_replaces_record_and_index_and_the_version_grows_by_one(self, store: Store) -> None:
        row = await running(store)
        moved = TaskIndex("generating", is_ready=False, is_final=False, deadline=NOW + 700)
        assert await store.commit_task(change(row, moved, record=b"record 2"), NOW)
        assert await row_of(store, row.task_id) == replace(
            row, record=b"record 2", index=moved, version=row.version + 1
        )

    async def test_the_dispatch_never_changes(self, store: Store) -> None:
        row = await running(store, dispatch=b"as it came")
        row = await commit(store, row)
        assert (await commit(store, row, index=COMPLETED)).dispatch == b"as it came"

    @pytest.mark.parametrize("apart", [-1, 1])
    async def test_at_another_version_nothing_is_written(self, store: Store, apart: int) -> None:
        row = await commit(store, await running(store))
        late = change(row, COMPLETED, version=row.version + apart, event=event(1))
        assert not await store.commit_task(late, NOW)
        assert await row_of(store, row.task_id) == row
        assert list(await events_of(store)) == []

    async def test_under_an_epoch_that_does_not_hold_the_task_nothing_is_written(self, store: Store) -> None:
        row = await running(store)
        assert not await store.commit_task(change(row, epoch=row.epoch + 1, event=event(1)), NOW)
        await store.release_task(held_of(row), NOW)
        assert not await store.commit_task(change(row, event=event(1)), NOW)
        before = await row_of(store, row.task_id)
        assert (before.version, before.record) == (row.version, row.record)
        assert list(await events_of(store)) == []

    async def test_nobody_holds_a_task_under_epoch_nought(self, store: Store) -> None:
        row = await row_of(store, (await admit(store)).task_id)
        assert not await store.commit_task(change(row, epoch=0), NOW)

    async def test_an_unknown_task_is_not_changed(self, store: Store) -> None:
        row = replace(await running(store), task_id="nobody")
        assert not await store.commit_task(change(row), NOW)
        assert not await store.commit_task(change(row, epoch=None), NOW)
        assert await store.read_task("nobody", LISTING, None, NOW) is None

    async def test_an_outsider_s_change_needs_no_holder_and_leaves_him_his_lease(self, store: Store) -> None:
        row = await running(store)
        after = await commit(store, row, epoch=None)
        assert (after.epoch, after.lease_until) == (row.epoch, row.lease_until)
        assert list(await store.lost_tasks([held_of(row)])) == []

    async def test_an_outsider_s_end_takes_the_holder_s_right(self, store: Store) -> None:
        row = await running(store)
        ended = await commit(store, row, index=CANCELED, epoch=None)
        assert ended.lease_until is None
        assert list(await store.lost_tasks([held_of(row)])) == [held_of(row)]
        assert not await store.commit_task(change(row, COMPLETED, version=ended.version), NOW)
        assert await none_to_lease(store, LATER)

    async def test_a_change_that_does_not_keep_the_lease_ends_it(self, store: Store) -> None:
        row = await running(store)
        asking = await commit(store, row, index=ASKING, keeps_lease=False)
        assert asking.lease_until is None
        assert list(await store.lost_tasks([held_of(row)])) == [held_of(row)]
        assert not await store.commit_task(change(row, version=asking.version), NOW)
        assert await none_to_lease(store, LATER)

    async def test_a_task_that_becomes_ready_is_handed_out(self, store: Store) -> None:
        asking = await commit(store, await running(store), index=ASKING, keeps_lease=False)
        answered = await commit(store, asking, index=QUEUED)
        assert answered.index.is_ready
        assert (await lease(store)).version == answered.version

    async def test_a_waiting_task_that_ended_is_not_handed_out(self, store: Store) -> None:
        waiting = await row_of(store, (await admit(store)).task_id)
        await commit(store, waiting, index=CANCELED)
        assert await none_to_lease(store)
        assert await none_to_lease(store, LATER)

    @pytest.mark.parametrize("index", [WORKING, ASKING, COMPLETED])
    async def test_the_same_change_once_more_is_true_and_writes_nothing(self, store: Store, index: TaskIndex) -> None:
        row = await running(store)
        mine = change(row, index, event=event(1), keeps_lease=index is WORKING)
        assert await store.commit_task(mine, NOW)
        after = await row_of(store, row.task_id)
        assert await store.commit_task(mine, NOW + 1)
        assert await row_of(store, row.task_id) == after
        assert await sequences(store, row.task_id) == [1]

    async def test_a_change_once_more_is_recognised_after_a_take_over_too(self, store: Store) -> None:
        row = await running(store)
        mine = change(row)
        assert await store.commit_task(mine, NOW)
        taken = await lease(store, LATER)
        assert await store.commit_task(mine, LATER)
        assert await row_of(store, row.task_id) == taken

    async def test_a_repeated_end_does_not_bring_its_delivered_event_back(self, store: Store) -> None:
        row = await running(store)
        mine = change(row, COMPLETED, event=event(1))
        assert await store.commit_task(mine, NOW)
        assert await store.settle_event(await claim_one(store), Delivered(), NOW)
        assert await store.commit_task(mine, NOW + 1)
        assert list(await events_of(store)) == []

    async def test_an_ended_task_never_changes(self, store: Store) -> None:
        row = await running(store)
        ended = await commit(store, row, index=COMPLETED, record=b"the end")
        for version in (row.version, ended.version, ended.version + 1):
            for epoch in (None, row.epoch):
                late = change(row, CANCELED, version=version, epoch=epoch, event=event(2))
                assert not await store.commit_task(late, NOW)
        assert list(await store.renew_tasks([held_of(row)], LATER, NOW)) == [held_of(row)]
        assert await row_of(store, row.task_id) == ended
        assert list(await events_of(store)) == []

    async def test_of_many_changes_at_once_over_two_instances_one_is_written(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        row = await running(store_pair[0])
        changes = [change(row, event=event(i + 1)) for i in range(20)]
        done = await asyncio.gather(*(store_pair[i % 2].commit_task(one, NOW) for i, one in enumerate(changes)))
        assert done.count(True) == 1
        winner = changes[done.index(True)]
        after = await row_of(store_pair[1], row.task_id)
        assert (after.record, after.version) == (winner.record, row.version + 1)
        assert await sequences(store_pair[0], row.task_id) == [winner.event.sequence if winner.event else 0]

    async def test_cancelling_completing_and_expiring_at_once_end_a_task_once(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        for _ in range(20):
            row = await running(store_pair[0])
            ends = [change(row, COMPLETED), change(row, CANCELED, epoch=None), change(row, CANCELED, epoch=None)]
            done = await asyncio.gather(*(store_pair[i % 2].commit_task(one, NOW) for i, one in enumerate(ends)))
            assert done.count(True) == 1
            assert (await row_of(store_pair[1], row.task_id)).record == ends[done.index(True)].record

    async def test_a_change_and_its_event_are_seen_together(self, store_pair: tuple[Store, Store]) -> None:
        one, two = store_pair
        row = await running(one)
        for sequence in range(1, 21):
            mine = change(row, event=event(sequence))
            committing = asyncio.ensure_future(one.commit_task(mine, NOW))
            while (await row_of(two, row.task_id)).record != mine.record:
                pass
            assert sequence in await sequences(two, row.task_id)
            assert await committing
            row = replace(row, version=row.version + 1)

    async def test_a_task_and_its_first_event_are_seen_together(self, store_pair: tuple[Store, Store]) -> None:
        one, two = store_pair
        for _ in range(20):
            mine = admission(event=event(1))
            admitting = asyncio.ensure_future(one.admit_task(mine, NOW))
            while await two.read_task(mine.task_id, LISTING, None, NOW) is None:
                pass
            assert await sequences(two, mine.task_id) == [1]
            assert await admitting == Admitted(mine.receipt, True)


class TestDeadlines:
    async def test_open_tasks_whose_deadline_has_come_are_due_longest_overdue_first(self, store: Store) -> None:
        for seconds in (30, 10, 50, 20, 40):
            await admit(store, invocation_id=f"at {seconds}", index=replace(QUEUED, deadline=NOW + seconds))
        due = await store.due_tasks(NOW + 30, 100)
        assert [row.invocation_id for row in due] == ["at 10", "at 20", "at 30"]
        assert [row.invocation_id for row in await store.due_tasks(NOW + 100, 2)] == ["at 10", "at 20"]
        assert list(await store.due_tasks(NOW + 9, 100)) == []

    async def test_held_and_asking_tasks_are_due_too_and_ended_ones_are_not(self, store: Store) -> None:
        soon = {"deadline": NOW + 10}
        held = await commit(store, await running(store), index=replace(WORKING, **soon))
        asking = await running(store)
        asking = await commit(store, asking, index=replace(ASKING, **soon), keeps_lease=False)
        await commit(store, await running(store), index=replace(COMPLETED, **soon))
        due = await store.due_tasks(NOW + 10, 100)
        assert sorted(due, key=lambda row: row.task_id) == sorted([held, asking], key=lambda row: row.task_id)

    async def test_a_change_moves_the_deadline(self, store: Store) -> None:
        row = await running(store, index=replace(QUEUED, deadline=NOW + 10))
        row = await commit(store, row, index=replace(WORKING, deadline=NOW + 100))
        assert list(await store.due_tasks(NOW + 99, 100)) == []
        assert list(await store.due_tasks(NOW + 100, 100)) == [row]

    async def test_looking_for_what_is_due_changes_nothing(self, store: Store) -> None:
        row = await running(store, index=replace(QUEUED, deadline=NOW + 10))
        for _ in range(2):
            assert list(await store.due_tasks(NOW + 10, 100)) == [row]
        assert await row_of(store, row.task_id) == row


class TestSizes:
    async def test_large_and_binary_records_come_through_whole(self, store: Store) -> None:
        large = bytes(range(256)) * 4_096
        one = await admit(store, dispatch=large, record=large[::-1], receipt=large, event=progress(1, body=large))
        row = await lease(store)
        assert (row.dispatch, row.record) == (large, large[::-1])
        assert await store.admit_task(again(one), NOW) == Admitted(large, False)
        assert (await claim_one(store)).body == large
        row = await commit(store, row, index=COMPLETED, record=large, event=event(2, body=large[::-1]))
        assert (row.dispatch, row.record) == (large, large)
        assert (await events_of(store, row.task_id))[-1].body == large[::-1]

    async def test_empty_records_come_through_as_empty(self, store: Store) -> None:
        one = await admit(store, dispatch=b"", record=b"", receipt=b"", event=event(1, body=b""))
        row = await lease(store)
        assert (row.dispatch, row.record) == (b"", b"")
        assert await store.admit_task(again(one), NOW) == Admitted(b"", False)
        assert (await claim_one(store)).body == b""
