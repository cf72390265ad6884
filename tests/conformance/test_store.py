"""What every store promises (finch_gateway/store.py), held on real SQLite files and a real Valkey server."""

from __future__ import annotations

import asyncio
import time
import unicodedata
import uuid
from collections.abc import Callable
from itertools import count

import pytest
from support.task_store import replace

from finch_gateway.store import (
    Answered,
    ClearQuestion,
    Conflict,
    Free,
    Held,
    KeepQuestion,
    KnownRevision,
    Nonce,
    Replayed,
    Running,
    Store,
    TurnClaim,
    TurnEnd,
    TurnKey,
)

NOW = float(int(time.time()))
LEASE_S = 30.0
LATER = NOW + LEASE_S + 1
KEEP = NOW + 30 * 86_400
KEY = TurnKey("report-writer", "7d0f6a52-1df3-4f2f-8a3e-0f7c4d3b2a10", "turn-1")
OTHER_KEY = replace(KEY, turn_id="turn-2")
_serial = count()


def nonce(value: str = "", *, key_id: str = "kid", op: str = "", expires_at: float = NOW + 301) -> Nonce:
    unique = f"n{next(_serial)}"
    return Nonce(key_id, value or unique, expires_at, op or f"op-{unique}")


def claim(key: TurnKey = KEY, **changes: object) -> TurnClaim:
    """A claim with a fresh nonce and a fresh operation id, unless `changes` says otherwise."""
    op = str(changes.get("op") or f"op-c{next(_serial)}")
    plain = TurnClaim(
        key=key,
        nonce=nonce(op=op),
        input_digest="digest-1",
        key_id="kid",
        conversation_id="conversation-1",
        op=op,
        lease_s=LEASE_S,
        keep_until=KEEP,
        may_start=True,
        facts=b'{"offer_id":"o"}',
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def end(held: Held, key: TurnKey = KEY, reply: bytes = b"reply", question: object = None, **changes: object) -> TurnEnd:
    plain = TurnEnd(key, held.epoch, reply, "conversation-1", question, KEEP)  # type: ignore[arg-type]
    return replace(plain, **changes)  # type: ignore[arg-type]


async def hold(store: Store, key: TurnKey = KEY, now: float = NOW, **changes: object) -> Held:
    verdict = await store.claim_turn(claim(key, **changes), now)
    assert isinstance(verdict, Held), verdict
    return verdict


async def answer(store: Store, key: TurnKey = KEY, reply: bytes = b"reply", **changes: object) -> Held:
    held = await hold(store, key)
    assert await store.finish_turn(end(held, key, reply, **changes), NOW)
    return held


async def question_of(store: Store, conversation_id: str = "conversation-1", listing: str = KEY.listing) -> Held:
    """What a new turn of the conversation is handed."""
    return await hold(store, TurnKey(listing, uuid.uuid4().hex, ""), conversation_id=conversation_id)


class TestNonces:
    async def test_a_nonce_is_consumed_once(self, store: Store) -> None:
        assert await store.spend(nonce("n"), NOW)
        assert not await store.spend(nonce("n"), NOW)

    async def test_the_same_operation_repeated_recognises_its_own_spend(self, store: Store) -> None:
        mine = nonce("n")
        assert await store.spend(mine, NOW)
        assert await store.spend(mine, NOW + 1)
        assert not await store.spend(nonce("n"), NOW + 1)

    async def test_of_fifty_spends_at_once_over_two_instances_one_wins(self, store_pair: tuple[Store, Store]) -> None:
        verdicts = await asyncio.gather(*(store_pair[i % 2].spend(nonce("n"), NOW) for i in range(50)))
        assert verdicts.count(True) == 1

    async def test_of_fifty_claims_at_once_with_one_nonce_over_two_instances_one_passes(
        self, store_pair: tuple[Store, Store]
    ) -> None:
        claims = [claim(TurnKey("l", f"i{i}", ""), nonce=nonce("n")) for i in range(50)]
        verdicts = await asyncio.gather(*(store_pair[i % 2].claim_turn(one, NOW) for i, one in enumerate(claims)))
        assert [type(verdict) for verdict in verdicts].count(Replayed) == 49
        assert verdicts.count(Held(1, 1, None, None, "")) == 1

    async def test_a_spend_and_a_claim_share_one_memory(self, store: Store) -> None:
        await store.spend(nonce("n"), NOW)
        assert await store.claim_turn(claim(nonce=nonce("n")), NOW) == Replayed()
        await hold(store, nonce=nonce("m"))
        assert not await store.spend(nonce("m"), NOW)

    async def test_the_scope_is_the_key_id(self, store: Store) -> None:
        assert await store.spend(nonce("n", key_id="a"), NOW)
        assert await store.spend(nonce("n", key_id="b"), NOW)

    @pytest.mark.parametrize("separator", [":", "\n", "\0", "/", "|", "}", " "])
    async def test_key_id_and_nonce_never_run_into_each_other(self, store: Store, separator: str) -> None:
        assert await store.spend(nonce(f"a{separator}b", key_id="k"), NOW)
        assert await store.spend(nonce("b", key_id=f"k{separator}a"), NOW)

    async def test_a_newer_timestamp_does_not_revive_a_nonce(self, store: Store) -> None:
        assert await store.spend(nonce("n", expires_at=NOW + 301), NOW)
        assert not await store.spend(nonce("n", expires_at=NOW + 500), NOW + 200)

    async def test_an_unexpired_nonce_is_never_forgotten(self, store: Store) -> None:
        await store.spend(nonce("n", expires_at=NOW + 100.5), NOW)
        while await store.purge(NOW + 100, 100):
            pass
        assert not await store.spend(nonce("n", expires_at=NOW + 401), NOW + 100)

    async def test_an_expired_nonce_may_be_forgotten_and_is_no_trouble(self, store: Store) -> None:
        await store.spend(nonce("n"), NOW)
        while await store.purge(NOW + 1_000, 100):
            pass
        assert await store.spend(nonce("n", expires_at=NOW + 1_301), NOW + 1_000) in (True, False)

    async def test_probe_returns_when_the_store_can_be_written_to(self, store: Store) -> None:
        await store.probe()


class TestClaim:
    async def test_the_first_claim_holds_the_turn(self, store: Store) -> None:
        assert await store.claim_turn(claim(), NOW) == Held(1, 1, None, None, "")

    async def test_while_it_is_held_others_learn_until_when(self, store: Store) -> None:
        await hold(store)
        assert await store.claim_turn(claim(), NOW + 1) == Running(NOW + LEASE_S)
        assert await store.peek_turn(KEY, NOW + 1) == Running(NOW + LEASE_S)

    async def test_of_fifty_claims_at_once_over_two_instances_one_holds(self, store_pair: tuple[Store, Store]) -> None:
        verdicts = await asyncio.gather(*(store_pair[i % 2].claim_turn(claim(), NOW) for i in range(50)))
        assert verdicts.count(Held(1, 1, None, None, "")) == 1
        assert verdicts.count(Running(NOW + LEASE_S)) == 49

    async def test_the_same_operation_is_told_again_that_it_holds(self, store: Store) -> None:
        mine = claim()
        first = await store.claim_turn(mine, NOW)
        assert isinstance(first, Held)
        assert await store.save_turn(KEY, first.epoch, b"saved", NOW)
        assert await store.claim_turn(mine, NOW + 1) == replace(first, saved=b"saved")
        assert await store.claim_turn(replace(mine, nonce=None), NOW + 1) == replace(first, saved=b"saved")

    async def test_the_same_operation_repeated_gets_its_verdict_again(self, store: Store) -> None:
        await hold(store)
        waiting, differing = claim(), claim(input_digest="digest-2")
        looking = claim(OTHER_KEY, may_start=False)
        for _ in range(2):
            assert await store.claim_turn(waiting, NOW) == Running(NOW + LEASE_S)
            assert await store.claim_turn(differing, NOW) == Conflict()
            assert await store.claim_turn(looking, NOW) == Free()

    async def test_the_repeat_of_an_answered_claim_gets_the_answer(self, store: Store) -> None:
        mine = claim()
        held = await store.claim_turn(mine, NOW)
        assert isinstance(held, Held)
        await store.finish_turn(end(held), NOW)
        assert await store.claim_turn(mine, NOW) == Answered(b"reply")

    async def test_without_a_nonce_none_is_spent(self, store: Store) -> None:
        await hold(store, nonce=None)
        assert await store.claim_turn(claim(nonce=None), NOW) == Running(NOW + LEASE_S)

    async def test_another_input_is_a_conflict_while_held_released_ended_and_answered(self, store: Store) -> None:
        other = {"input_digest": "digest-2"}
        first = await hold(store)
        assert await store.claim_turn(claim(**other), NOW) == Conflict()
        assert await store.claim_turn(claim(**other), LATER) == Conflict()
        await store.release_turn(KEY, first.epoch, NOW)
        assert await store.claim_turn(claim(**other), NOW) == Conflict()
        await answer(store)
        assert await store.claim_turn(claim(**other), NOW) == Conflict()
        assert await store.claim_turn(claim(may_start=False, **other), NOW) == Conflict()

    async def test_one_turn_is_not_another(self, store: Store) -> None:
        await answer(store)
        for other in (replace(KEY, listing="x"), replace(KEY, invocation_id="x"), replace(KEY, turn_id="")):
            assert await store.peek_turn(other, NOW) == Free()
            assert (await hold(store, other)).epoch == 1

    async def test_a_replay_comes_before_everything_else(self, store: Store) -> None:
        used = nonce("used")
        await store.spend(used, NOW)
        again = {"nonce": replace(used, op="another")}
        assert await store.claim_turn(claim(**again), NOW) == Replayed()
        held = await hold(store)
        assert await store.claim_turn(claim(**again), NOW) == Replayed()
        assert await store.claim_turn(claim(input_digest="digest-2", **again), NOW) == Replayed()
        await store.finish_turn(end(held), NOW)
        assert await store.claim_turn(claim(**again), NOW) == Replayed()

    async def test_an_answer_comes_before_a_lease(self, store: Store) -> None:
        await answer(store)
        assert await store.claim_turn(claim(), NOW + 1) == Answered(b"reply")
        assert await store.claim_turn(claim(), LATER) == Answered(b"reply")
        assert await store.claim_turn(claim(may_start=False), NOW) == Answered(b"reply")

    @pytest.mark.parametrize("verdict", [Held, Running, Answered, Conflict, Free])
    async def test_the_nonce_stays_spent_whatever_comes_back(self, store: Store, verdict: type) -> None:
        if verdict in (Running, Conflict):
            await hold(store)
        if verdict is Answered:
            await answer(store)
        digest = "digest-2" if verdict is Conflict else "digest-1"
        mine = claim(nonce=nonce("n"), input_digest=digest, may_start=verdict is not Free)
        assert isinstance(await store.claim_turn(mine, NOW), verdict)
        assert not await store.spend(nonce("n"), NOW)
        assert await store.claim_turn(claim(nonce=nonce("n")), NOW) == Replayed()

    async def test_a_replayed_claim_leaves_nothing_behind(self, store: Store) -> None:
        await store.spend(nonce("used"), NOW)
        await answer(store, OTHER_KEY, question=KeepQuestion(b"question", KEEP))
        replayed = claim(nonce=nonce("used"), input_digest="digest-2", key_id="stranger")
        assert await store.claim_turn(replayed, NOW) == Replayed()
        assert await store.peek_turn(KEY, NOW) == Free()
        assert await store.running_turns(NOW) == {}
        held = await hold(store)
        assert (held.epoch, held.attempt, held.question) == (1, 1, b"question")

    async def test_a_claim_that_may_not_start_never_takes_the_turn(self, store: Store) -> None:
        assert await store.claim_turn(claim(may_start=False), NOW) == Free()
        assert await store.peek_turn(KEY, NOW) == Free()
        assert await store.running_turns(NOW) == {}
        first = await hold(store, input_digest="digest-2")
        assert await store.claim_turn(claim(input_digest="digest-2", may_start=False), NOW) == Running(NOW + LEASE_S)
        assert await store.claim_turn(claim(input_digest="digest-2", may_start=False), LATER) == Free()
        assert first.epoch == 1
        assert await hold(store, now=LATER, input_digest="digest-2") == Held(2, 2, None, None, "")

    async def test_after_a_lease_ended_the_next_holder_has_the_next_epoch_and_attempt(self, store: Store) -> None:
        await hold(store)
        assert await store.peek_turn(KEY, LATER) == Free()
        assert await hold(store, now=LATER) == Held(2, 2, None, None, "")
        assert await store.claim_turn(claim(), LATER) == Running(LATER + LEASE_S)

    async def test_the_same_operation_after_its_lease_ended_is_a_new_holder(self, store: Store) -> None:
        mine = claim()
        await store.claim_turn(mine, NOW)
        assert await store.claim_turn(mine, LATER) == Held(2, 2, None, None, "")

    async def test_a_turn_given_back_has_the_next_epoch_and_the_same_attempt(self, store: Store) -> None:
        first = await hold(store)
        assert await store.release_turn(KEY, first.epoch, NOW)
        assert await store.peek_turn(KEY, NOW) == Free()
        second = await hold(store)
        assert (second.epoch, second.attempt) == (2, 1)
        third = await hold(store, now=LATER)
        assert (third.epoch, third.attempt) == (3, 2)

    async def test_a_turn_given_back_late_but_before_a_takeover_is_no_crash(self, store: Store) -> None:
        first = await hold(store)
        assert await store.release_turn(KEY, first.epoch, LATER)
        assert (await hold(store, now=LATER)).attempt == 1

    async def test_a_repeated_release_gives_back_once(self, store: Store) -> None:
        first = await hold(store)
        await store.release_turn(KEY, first.epoch, NOW)
        await store.release_turn(KEY, first.epoch, NOW)
        second = await hold(store)
        assert (second.epoch, second.attempt) == (2, 1)
        assert not await store.release_turn(KEY, first.epoch, NOW)
        assert await store.peek_turn(KEY, NOW) == Running(NOW + LEASE_S)

    async def test_what_one_instance_did_the_other_knows_at_once(self, store_pair: tuple[Store, Store]) -> None:
        one, two = store_pair
        held = await hold(one)
        assert await two.peek_turn(KEY, NOW) == Running(NOW + LEASE_S)
        assert await two.finish_turn(end(held), NOW)
        assert await one.peek_turn(KEY, NOW) == Answered(b"reply")
        assert await one.claim_turn(claim(), NOW) == Answered(b"reply")


async def try_everything(store: Store, held: Held, now: float) -> list[bool]:
    """What an epoch achieves with each call that asks for the turn."""
    late = end(held, reply=b"late", question=KeepQuestion(b"late", KEEP))
    return [
        await store.renew_turn(KEY, held.epoch, now + 500, now),
        await store.save_turn(KEY, held.epoch, b"late", now),
        await store.finish_turn(late, now),
        await store.release_turn(KEY, held.epoch, now),
    ]


class TestHolding:
    async def test_renewing_moves_the_end(self, store: Store) -> None:
        held = await hold(store)
        for _ in range(2):
            assert await store.renew_turn(KEY, held.epoch, LATER + 50, NOW + 1)
        assert await store.peek_turn(KEY, LATER) == Running(LATER + 50)
        assert await store.claim_turn(claim(), LATER) == Running(LATER + 50)
        assert await store.peek_turn(KEY, LATER + 51) == Free()

    async def test_what_was_saved_reaches_the_next_holder_after_a_crash(self, store: Store) -> None:
        held = await hold(store)
        assert await store.save_turn(KEY, held.epoch, b"one", NOW)
        assert await store.save_turn(KEY, held.epoch, b"two\0\xff", NOW)
        assert await store.save_turn(KEY, held.epoch, b"two\0\xff", NOW)
        assert await hold(store, now=LATER) == Held(2, 2, b"two\0\xff", None, "")

    async def test_what_was_saved_reaches_the_next_holder_after_a_release(self, store: Store) -> None:
        held = await hold(store)
        await store.save_turn(KEY, held.epoch, b"", NOW)
        await store.release_turn(KEY, held.epoch, NOW)
        assert (await hold(store)).saved == b""

    async def test_a_fenced_epoch_writes_nothing(self, store_pair: tuple[Store, Store]) -> None:
        old_instance, new_instance = store_pair
        old = await hold(old_instance)
        await hold(new_instance, now=LATER)
        for now in (NOW, LATER):
            assert await try_everything(old_instance, old, now) == [False] * 4
        assert await new_instance.peek_turn(KEY, LATER) == Running(LATER + LEASE_S)
        third = await hold(new_instance, now=LATER + LEASE_S + 1)
        assert third == Held(3, 3, None, None, "")

    async def test_an_ended_lease_that_nobody_took_over_is_renewed_or_finished_late(self, store: Store) -> None:
        held = await hold(store)
        assert await store.peek_turn(KEY, LATER) == Free()
        assert await store.renew_turn(KEY, held.epoch, LATER + 50, LATER)
        assert await store.claim_turn(claim(), LATER) == Running(LATER + 50)
        assert await store.finish_turn(end(held), LATER + 51)
        assert await store.claim_turn(claim(), LATER + 51) == Answered(b"reply")

    async def test_an_epoch_that_gave_the_turn_back_writes_nothing(self, store: Store) -> None:
        held = await hold(store)
        await store.release_turn(KEY, held.epoch, NOW)
        assert (await try_everything(store, held, NOW))[:3] == [False] * 3
        assert await hold(store) == Held(2, 1, None, None, "")

    async def test_an_answered_turn_never_changes(self, store: Store) -> None:
        held = await answer(store)
        assert await try_everything(store, held, NOW) == [False] * 4
        assert await store.peek_turn(KEY, NOW) == Answered(b"reply")
        assert (await question_of(store)).question is None

    async def test_an_epoch_never_given_out_writes_nothing(self, store: Store) -> None:
        assert await try_everything(store, Held(1, 1, None, None, ""), NOW) == [False] * 4
        await hold(store)
        for epoch in (0, 2):
            assert await try_everything(store, Held(epoch, 1, None, None, ""), NOW) == [False] * 4
        assert await store.peek_turn(KEY, NOW) == Running(NOW + LEASE_S)

    async def test_peeking_changes_nothing(self, store: Store) -> None:
        for _ in range(2):
            assert await store.peek_turn(KEY, NOW) == Free()
        held = await hold(store)
        for _ in range(2):
            assert await store.peek_turn(KEY, LATER) == Free()
        assert await store.peek_turn(KEY, NOW) == Running(NOW + LEASE_S)
        assert await store.renew_turn(KEY, held.epoch, NOW + LEASE_S, NOW)


REPLIES = {
    "empty": b"",
    "every-byte": bytes(range(256)),
    "not-utf8": b"\xff\xfe\0\r\n$-1\r\n",
    "a-megabyte": bytes(range(256)) * 4096,
    "a-number": b"1",
}


class TestFinish:
    @pytest.mark.parametrize("name", REPLIES)
    async def test_the_answer_comes_back_byte_for_byte(self, store: Store, name: str) -> None:
        reply = REPLIES[name]
        held = await hold(store, facts=reply)
        assert await store.save_turn(KEY, held.epoch, reply, NOW)
        assert await store.finish_turn(end(held, reply=reply, question=KeepQuestion(reply, KEEP)), NOW)
        assert await store.claim_turn(claim(), NOW) == Answered(reply)
        assert await store.peek_turn(KEY, NOW) == Answered(reply)
        assert (await question_of(store)).question == reply

    async def test_the_same_end_once_more_is_true(self, store: Store) -> None:
        held = await hold(store)
        for now in (NOW, NOW + 1, LATER):
            assert await store.finish_turn(end(held), now)
        assert await store.peek_turn(KEY, NOW) == Answered(b"reply")

    async def test_another_end_is_refused_and_writes_nothing(self, store: Store) -> None:
        held = await answer(store)
        assert not await store.finish_turn(end(held, reply=b"other", question=KeepQuestion(b"q", KEEP)), NOW)
        assert not await store.finish_turn(end(replace(held, epoch=2)), NOW)
        assert await store.peek_turn(KEY, NOW) == Answered(b"reply")
        assert (await question_of(store)).question is None

    async def test_of_many_ends_at_once_over_two_instances_one_stays(self, store_pair: tuple[Store, Store]) -> None:
        held = await hold(store_pair[0])
        ends = [end(held, reply=b"%d" % i) for i in range(20)]
        done = await asyncio.gather(*(store_pair[i % 2].finish_turn(one, NOW) for i, one in enumerate(ends)))
        assert done.count(True) == 1
        assert await store_pair[0].peek_turn(KEY, NOW) == Answered(b"%d" % done.index(True))

    async def test_a_finished_turn_runs_no_more(self, store: Store) -> None:
        await answer(store)
        assert await store.running_turns(NOW) == {}


class TestQuestions:
    async def test_a_kept_question_reaches_the_next_turns_of_its_conversation_only(self, store: Store) -> None:
        await answer(store, question=KeepQuestion(b"question", KEEP))
        first = await question_of(store)
        assert first.question == b"question"
        assert first.question_version
        assert await question_of(store) == first
        for elsewhere in (await question_of(store, "conversation-2"), await question_of(store, listing="other")):
            assert (elsewhere.question, elsewhere.question_version) == (None, "")

    async def test_the_holder_again_and_the_next_holder_see_the_question(self, store: Store) -> None:
        await answer(store, question=KeepQuestion(b"question", KEEP))
        mine = claim(OTHER_KEY)
        first = await store.claim_turn(mine, NOW)
        assert isinstance(first, Held)
        assert await store.claim_turn(mine, NOW) == first
        assert await hold(store, OTHER_KEY, LATER) == replace(first, epoch=2, attempt=2)

    async def test_clearing_drops_the_question(self, store: Store) -> None:
        await answer(store, question=KeepQuestion(b"question", KEEP))
        version = (await question_of(store)).question_version
        await answer(store, OTHER_KEY, question=ClearQuestion(version))
        cleared = await question_of(store)
        assert (cleared.question, cleared.question_version) == (None, "")

    async def test_clearing_an_older_version_drops_nothing(self, store: Store) -> None:
        await answer(store, question=KeepQuestion(b"one", KEEP))
        old = (await question_of(store)).question_version
        await answer(store, OTHER_KEY, question=KeepQuestion(b"two", KEEP))
        late = await hold(store, replace(KEY, turn_id="late"))
        assert await store.finish_turn(end(late, replace(KEY, turn_id="late"), question=ClearQuestion(old)), NOW)
        assert (await question_of(store)).question == b"two"

    async def test_every_question_has_a_version_of_its_own(self, store: Store) -> None:
        versions = set()
        for i in range(3):
            await answer(store, replace(KEY, turn_id=f"t{i}"), question=KeepQuestion(b"same words", KEEP))
            versions.add((await question_of(store)).question_version)
        assert len(versions) == 3

    async def test_no_change_leaves_the_question(self, store: Store) -> None:
        await answer(store, question=KeepQuestion(b"question", KEEP))
        await answer(store, OTHER_KEY, question=None)
        assert (await question_of(store)).question == b"question"

    async def test_a_repeated_end_does_not_bring_a_question_back(self, store: Store) -> None:
        held = await hold(store)
        asking = end(held, question=KeepQuestion(b"question", KEEP))
        assert await store.finish_turn(asking, NOW)
        version = (await question_of(store)).question_version
        await answer(store, OTHER_KEY, question=ClearQuestion(version))
        assert await store.finish_turn(asking, NOW)
        assert (await question_of(store)).question is None

    async def test_the_answer_and_the_question_commit_together(self, store_pair: tuple[Store, Store]) -> None:
        one, two = store_pair
        for i in range(20):
            key, conversation = TurnKey("l", f"i{i}", ""), f"c{i}"
            held = await hold(one, key, conversation_id=conversation)
            asking = end(held, key, question=KeepQuestion(b"q", KEEP), conversation_id=conversation)
            finishing = asyncio.ensure_future(one.finish_turn(asking, NOW))
            while await two.peek_turn(key, NOW) != Answered(b"reply"):
                pass
            assert (await question_of(two, conversation, "l")).question == b"q"
            assert await finishing


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
    "quote": "'; DROP TABLE turns; --",
    "number": "1",
    "number-again": "1.0",
    "padded": "01",
    "emoji": "\U0001f600",
    "ten-kilobytes": "x" * 10_240,
    "ten-kilobytes-and-one": "x" * 10_241,
}


class TestHostileIds:
    @pytest.mark.parametrize("part", ["listing", "invocation_id", "turn_id"])
    async def test_turns_never_collide(self, store: Store, part: str) -> None:
        keys = {name: replace(KEY, **{part: text}) for name, text in HOSTILE.items()}
        for name, key in keys.items():
            await answer(store, key, name.encode())
        for name, key in keys.items():
            assert await store.peek_turn(key, NOW) == Answered(name.encode())

    async def test_the_parts_of_a_turns_key_never_run_into_each_other(self, store: Store) -> None:
        for separator in ("", ":", "\n", "\0", "|", "}", "/"):
            one, two = TurnKey(f"a{separator}b", "c", ""), TurnKey("a", f"b{separator}c", "")
            three, four = TurnKey("a", "b", f"{separator}c"), TurnKey("a", f"b{separator}", "c")
            for i, key in enumerate({one, two, three, four}):
                assert (await hold(store, key)).epoch == 1, (separator, i)

    async def test_nonces_never_collide(self, store: Store) -> None:
        for text in HOSTILE.values():
            assert await store.spend(nonce(f"n{text}"), NOW)
            assert await store.spend(nonce("n", key_id=f"k{text}"), NOW)
        for text in HOSTILE.values():
            assert not await store.spend(nonce(f"n{text}"), NOW)

    async def test_conversations_never_collide(self, store: Store) -> None:
        for i, text in enumerate(HOSTILE.values()):
            changes = {"question": KeepQuestion(text.encode(), KEEP), "conversation_id": f"c{text}"}
            await answer(store, replace(KEY, turn_id=f"t{i}"), **changes)
        for text in HOSTILE.values():
            assert (await question_of(store, f"c{text}")).question == text.encode()

    async def test_key_ids_and_digests_come_through_whole(self, store: Store) -> None:
        for i, text in enumerate(HOSTILE.values()):
            await hold(store, replace(KEY, turn_id=f"t{i}"), key_id=text, input_digest=text, op=f"op{text}")
        assert await store.running_turns(NOW) == dict.fromkeys(HOSTILE.values(), 1)
        for i, text in enumerate(HOSTILE.values()):
            turn = replace(KEY, turn_id=f"t{i}")
            assert await store.claim_turn(claim(turn, input_digest=text), NOW) == Running(NOW + LEASE_S)
            assert await store.claim_turn(claim(turn, input_digest=f"{text}'"), NOW) == Conflict()


def revision(key_id: str, **changes: object) -> KnownRevision:
    return replace(KnownRevision(key_id, "report-writer", f"fp-{key_id}", NOW), **changes)  # type: ignore[arg-type]


class TestRevisions:
    async def test_new_revisions_are_recorded_oldest_first(self, store: Store) -> None:
        young, old = revision("young", first_seen=NOW), revision("old", first_seen=NOW - 10.5)
        assert list(await store.known_revisions()) == []
        assert list(await store.register_revisions([young, old])) == []
        assert list(await store.known_revisions()) == [old, young]

    async def test_registering_again_changes_nothing(self, store: Store) -> None:
        await store.register_revisions([revision("a")])
        assert list(await store.register_revisions([revision("a", first_seen=NOW + 99)])) == []
        assert list(await store.register_revisions([])) == []
        assert list(await store.known_revisions()) == [revision("a")]

    @pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"listing": "other"}])
    async def test_one_mismatch_refuses_all_and_names_what_is_held(self, store: Store, change: dict[str, str]) -> None:
        known = [revision("a"), revision("b"), revision("c")]
        await store.register_revisions(known)
        wanted = [revision("new-1"), revision("a", **change), revision("b"), revision("c", **change), revision("new-2")]
        held = await store.register_revisions(wanted)
        assert sorted(held, key=lambda one: one.key_id) == [revision("a"), revision("c")]
        assert sorted(await store.known_revisions(), key=lambda one: one.key_id) == known

    async def test_two_instances_that_disagree_cannot_both_register(self, store_pair: tuple[Store, Store]) -> None:
        answers = await asyncio.gather(
            *(one.register_revisions([revision("a", fingerprint=f"fp{i}")]) for i, one in enumerate(store_pair))
        )
        assert sorted(len(held) for held in answers) == [0, 1]
        assert len(await store_pair[0].known_revisions()) == 1

    async def test_a_forgotten_revision_is_unknown(self, store: Store) -> None:
        await store.register_revisions([revision("a"), revision("b")])
        assert await store.forget_revision("a")
        assert not await store.forget_revision("a")
        assert list(await store.known_revisions()) == [revision("b")]
        assert list(await store.register_revisions([revision("a", fingerprint="other")])) == []

    async def test_hostile_key_ids_never_collide(self, store: Store) -> None:
        all_of_them = [revision(text) for text in HOSTILE.values()]
        assert list(await store.register_revisions(all_of_them)) == []
        assert set(await store.known_revisions()) == set(all_of_them)


class TestOperator:
    async def test_running_turns_are_counted_by_key_id_while_their_lease_lives(self, store: Store) -> None:
        for i in range(3):
            await hold(store, TurnKey("l", f"a{i}", ""), key_id="a")
        held = await hold(store, TurnKey("l", "b", ""), key_id="b", lease_s=100.0)
        assert await store.running_turns(NOW) == {"a": 3, "b": 1}
        assert await store.running_turns(LATER) == {"b": 1}
        await store.renew_turn(TurnKey("l", "a0", ""), 1, LATER + 50, NOW)
        assert await store.running_turns(LATER) == {"a": 1, "b": 1}
        await store.release_turn(TurnKey("l", "b", ""), held.epoch, NOW)
        assert await store.running_turns(LATER) == {"a": 1}

    async def test_a_turn_taken_over_under_another_key_id_counts_there(self, store: Store) -> None:
        await hold(store, key_id="retiring")
        await hold(store, now=LATER, key_id="current")
        assert await store.running_turns(LATER) == {"current": 1}

    async def test_purging_drops_only_what_is_over_and_no_more_than_the_limit(self, store: Store) -> None:
        over, kept = NOW + 100, NOW + 100_000
        for i in range(7):
            short, long = TurnKey("l", f"short{i}", ""), TurnKey("l", f"long{i}", "")
            for key, until in ((short, over), (long, kept)):
                changes = {"conversation_id": key.invocation_id, "keep_until": until}
                held = await hold(store, key, **changes)
                ending = end(held, key, question=KeepQuestion(b"q", until), **changes)
                assert await store.finish_turn(ending, NOW)
            await store.spend(nonce(f"long{i}", expires_at=kept), NOW)
        await store.register_revisions([revision("a")])
        dropped = [await store.purge(over + 1, 4)]
        while dropped[-1]:
            dropped.append(await store.purge(over + 1, 4))
        assert max(dropped) <= 4
        for i in range(7):
            assert await store.peek_turn(TurnKey("l", f"long{i}", ""), over + 1) == Answered(b"reply")
            assert not await store.spend(nonce(f"long{i}", expires_at=kept), over + 1)
            assert (await question_of(store, f"long{i}", "l")).question == b"q"
        assert list(await store.known_revisions()) == [revision("a")]

    async def test_the_later_of_two_keeping_times_counts(self, store: Store) -> None:
        held = await hold(store, keep_until=NOW + 10)
        await store.finish_turn(end(held, keep_until=NOW + 10_000), NOW)
        while await store.purge(NOW + 1_000, 100):
            pass
        assert await store.peek_turn(KEY, NOW + 1_000) == Answered(b"reply")


class TestLife:
    async def test_reopening_keeps_everything(self, new_store: Callable[[], Store]) -> None:
        before = new_store()
        await before.open()
        await before.spend(nonce("spent"), NOW)
        await answer(before, question=KeepQuestion(b"question", KEEP))
        mine = claim(OTHER_KEY)
        held = await before.claim_turn(mine, NOW)
        assert isinstance(held, Held)
        await before.save_turn(OTHER_KEY, held.epoch, b"saved", NOW)
        await before.register_revisions([revision("a")])
        await before.close()
        after = new_store()
        await after.open()
        assert not await after.spend(nonce("spent"), NOW)
        assert await after.peek_turn(KEY, NOW) == Answered(b"reply")
        assert await after.peek_turn(OTHER_KEY, NOW) == Running(NOW + LEASE_S)
        assert await after.claim_turn(mine, NOW) == replace(held, saved=b"saved")
        assert (await question_of(after)).question == b"question"
        assert list(await after.known_revisions()) == [revision("a")]
        assert await after.finish_turn(end(held, OTHER_KEY), NOW)
        await after.close()
