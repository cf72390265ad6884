"""What the SQLite store promises beyond the contract: groups, several processes, crashes, a disk that fails."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support import task_store

from finch_gateway.errors import ConfigError, StoreUnavailable
from finch_gateway.store import Admitted, Answered, Delivered, Held, Nonce, TurnClaim, TurnEnd, TurnKey
from finch_gateway.stores.sqlite import SqliteStore

NOW = float(int(time.time()))
KEEP = NOW + 86_400

CHILD = """
import asyncio, ctypes, json, os, resource, sys, time
from pathlib import Path
from finch_gateway.errors import ConfigError, StoreUnavailable
from finch_gateway.store import Nonce
from finch_gateway.stores.sqlite import SqliteStore

def nonce(value):
    return Nonce("kid", value, time.time() + 301, f"op-{value}-{os.getpid()}")

def obey_permissions():
    "Root gives up the right to ignore them; for anybody else nothing changes."
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()) == 0

async def outcome(call):
    try:
        return await call
    except (StoreUnavailable, ConfigError) as error:
        return type(error).__name__

path = Path(sys.argv[1])
"""


def nonce(value: str, op: str = "", expires_at: float = KEEP) -> Nonce:
    return Nonce("kid", value, expires_at, op or uuid.uuid4().hex)


def claim(key: TurnKey, keep_until: float = KEEP) -> TurnClaim:
    op = uuid.uuid4().hex
    return TurnClaim(key, nonce(op), "digest", "kid", "", op, 30.0, keep_until, True, b"{}")


async def child(code: str, path: Path) -> asyncio.subprocess.Process:
    """Start a process of its own that runs `code` after the common beginning."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD + code, str(path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def told_by_child(code: str, path: Path) -> object:
    """What a process prints as JSON before it ends well."""
    out, err = await (await child(code, path)).communicate()
    assert not err, err.decode()
    return json.loads(out)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    one = SqliteStore(path)
    await one.open()
    yield one
    await one.close()


async def spent(path: Path, values: Iterator[str] | list[str]) -> list[bool]:
    """Which of these nonces a fresh handle knows."""
    one = SqliteStore(path)
    await one.open()
    fresh = await asyncio.gather(*(one.spend(nonce(value), NOW) for value in values))
    await one.close()
    return [not new for new in fresh]


class TestGroups:
    async def test_thirty_two_callers_share_their_commits(self, store: SqliteStore) -> None:
        async def turns(name: str) -> None:
            for i in range(20):
                key = TurnKey("l", name, str(i))
                held = await store.claim_turn(claim(key), NOW)
                assert isinstance(held, Held)
                assert await store.finish_turn(TurnEnd(key, held.epoch, b"reply", "", None, KEEP), NOW)

        before = store.commits
        await asyncio.gather(*(turns(str(i)) for i in range(32)))
        assert (store.commits - before) / (32 * 20 * 2) <= 0.15

    async def test_a_lone_caller_waits_for_nobody(self, store: SqliteStore) -> None:
        before = store.commits
        assert await store.spend(nonce("n"), NOW)
        assert store.commits == before + 1

    async def test_a_failing_step_does_not_harm_the_others_of_its_group(self, store: SqliteStore) -> None:
        before = store.commits
        values = [f"n{i}" for i in range(10)]
        values[5] = "\ud800"
        answers = await asyncio.gather(*(store.spend(nonce(v), NOW) for v in values), return_exceptions=True)
        assert isinstance(answers.pop(5), UnicodeEncodeError)
        assert answers == [True] * 9
        assert store.commits == before + 1
        assert not await store.spend(nonce("n9"), NOW)

    async def test_a_hundred_cancelled_callers_leave_nothing_stuck(self, store: SqliteStore, path: Path) -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        values = [f"n{i}" for i in range(100)]
        callers = [asyncio.ensure_future(store.spend(nonce(value), NOW)) for value in values]
        await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        assert all(
            isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*callers, return_exceptions=True)
        )
        assert await store.spend(nonce("after"), NOW)
        assert await spent(path, values) == [True] * 100
        assert complaints == []

    async def test_closing_finishes_what_was_asked(self, path: Path) -> None:
        one = SqliteStore(path)
        await one.open()
        values = [f"n{i}" for i in range(2_000)]
        callers = [asyncio.ensure_future(one.spend(nonce(value), NOW)) for value in values]
        await asyncio.sleep(0)
        await one.close()
        assert all(caller.done() for caller in callers)
        assert await asyncio.gather(*callers) == [True] * 2_000
        assert await spent(path, values) == [True] * 2_000

    async def test_a_closed_store_has_no_threads_and_takes_no_calls(self, path: Path) -> None:
        others = set(threading.enumerate())
        one = SqliteStore(path)
        await one.open()
        await one.probe()
        await one.close()
        while any(thread.name.startswith("finch-sqlite") for thread in set(threading.enumerate()) - others):
            await asyncio.sleep(0.01)
        with pytest.raises(StoreUnavailable):
            await one.probe()
        with pytest.raises(StoreUnavailable):
            await one.peek_turn(TurnKey("l", "i", ""), NOW)


class TestTaskGroups:
    async def test_thirty_two_admissions_at_a_time_share_their_commits(self, store: SqliteStore) -> None:
        async def dispatches() -> None:
            for _ in range(20):
                one = task_store.admission(event=task_store.event(1))
                assert await store.admit_task(one, NOW) == Admitted(one.receipt, True)

        before = store.commits
        await asyncio.gather(*(dispatches() for _ in range(32)))
        assert (store.commits - before) / (32 * 20) <= 0.15

    async def test_a_lone_admission_is_one_commit(self, store: SqliteStore) -> None:
        before = store.commits
        await task_store.admit(store, event=task_store.event(1))
        assert store.commits == before + 1

    async def test_workers_and_deliverers_with_nothing_to_do_write_nothing(
        self, store: SqliteStore, path: Path
    ) -> None:
        later = task_store.event(1, not_before=task_store.NOW + 60)
        held = await task_store.running(store, event=later)
        before, log = store.commits, path.with_name("store.db-wal").read_bytes()
        for _ in range(20):
            assert await store.lease_task(task_store.LISTING, uuid.uuid4().hex, 30.0, NOW) is None
            assert list(await store.claim_events(task_store.HOST, uuid.uuid4().hex, 30.0, 10, NOW)) == []
            assert list(await store.renew_tasks([], NOW + 30, NOW)) == []
            assert list(await store.lost_tasks([task_store.held_of(held)])) == []
            assert list(await store.due_tasks(NOW, 10)) == []
            assert list(await store.due_hosts(NOW)) == []
            assert await store.purge(NOW, 100) == 0
        assert store.commits == before
        assert path.with_name("store.db-wal").read_bytes() == log

    async def test_a_heartbeat_does_not_rewrite_what_the_task_carries(self, store: SqliteStore, path: Path) -> None:
        row = await task_store.running(store, dispatch=b"d" * (1 << 20), record=b"r" * (1 << 20))
        log = path.with_name("store.db-wal")
        before = log.stat().st_size
        for i in range(10):
            assert list(await store.renew_tasks([task_store.held_of(row)], NOW + 30 + i, NOW)) == []
        assert log.stat().st_size - before < 10 * 10 * 4_096


WRITER = """
async def main():
    store = SqliteStore(path)
    await store.open()
    took = []
    async def one(i):
        begun = time.perf_counter()
        assert await store.spend(nonce(f"{os.getpid()}-{i}"), time.time())
        took.append(time.perf_counter() - begun)
    async with asyncio.TaskGroup() as group:
        for i in range(200):
            group.create_task(one(i))
            await asyncio.sleep(0.02)
    await store.close()
    print(json.dumps(took))
asyncio.run(main())
"""

RACER = """
async def main():
    store = SqliteStore(path)
    await store.open()
    won = await asyncio.gather(*(store.spend(nonce(f"n{i}"), time.time()) for i in range(500)))
    await store.close()
    print(json.dumps(sum(won)))
asyncio.run(main())
"""

ACKNOWLEDGER = """
async def main():
    store = SqliteStore(path)
    await store.open()
    async def one(name):
        i = 0
        while True:
            i += 1
            await store.spend(nonce(f"{name}-{i}"), time.time())
            os.write(1, f"{name}-{i}\\n".encode())
    await asyncio.gather(*(one(n) for n in range(8)))
asyncio.run(main())
"""


class TestProcesses:
    async def test_four_writers_and_a_long_reader_never_meet_a_locked_file(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        writers = [await child(WRITER, path) for _ in range(4)]
        with closing(sqlite3.connect(path, timeout=20)) as reader:
            while not reader.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'nonces'").fetchone()[0]:
                await asyncio.sleep(0.01)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM nonces").fetchone()
            results = await asyncio.gather(*(writer.communicate() for writer in writers))
        assert [err for _, err in results] == [b""] * 4
        took = sorted(second for out, _ in results for second in json.loads(out))
        p99 = took[len(took) * 99 // 100]
        print(f"\n4 processes, 50 writes/s each, a reader open: p50 {took[400] * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms")
        assert len(took) == 800
        assert p99 < 1.0

    async def test_four_processes_that_start_on_no_file_share_one_store(self, path: Path) -> None:
        racers = [await child(RACER, path) for _ in range(4)]
        results = await asyncio.gather(*(racer.communicate() for racer in racers))
        assert [err for _, err in results] == [b""] * 4
        assert sum(json.loads(out) for out, _ in results) == 500

    async def test_a_killed_process_has_kept_every_write_it_acknowledged(self, path: Path) -> None:
        writer = await child(ACKNOWLEDGER, path)
        assert writer.stdout is not None
        seen = [await writer.stdout.readline() for _ in range(400)]
        writer.send_signal(signal.SIGKILL)
        seen += (await writer.stdout.read()).splitlines(keepends=True)
        await writer.communicate()
        acknowledged = [line.decode().strip() for line in seen if line.endswith(b"\n")]
        assert await spent(path, acknowledged) == [True] * len(acknowledged)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    async def test_a_forked_process_is_told_that_the_handle_is_not_its_own(self, path: Path) -> None:
        code = """
async def main():
    store = SqliteStore(path)
    await store.open()
    if (pid := os.fork()) == 0:
        try:
            store.probe().send(None)
        except RuntimeError as error:
            os.write(1, json.dumps(str(error)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    await store.probe()
    await store.close()
asyncio.run(main())
"""
        assert await told_by_child(code, path) == "a SQLite store belongs to the process that opened it"

    async def test_a_writer_waits_while_another_program_has_the_file(self, store: SqliteStore, path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.ensure_future(store.spend(nonce("n"), NOW))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            assert await store.peek_turn(TurnKey("l", "i", ""), NOW) is not None
            other.execute("COMMIT")
        assert await waiting

    async def test_a_file_that_stays_locked_is_unavailable_and_then_well_again(
        self, store: SqliteStore, path: Path
    ) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            calls = (store.spend(nonce(f"n{i}"), NOW) for i in range(3))
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
        assert await store.spend(nonce("n0"), NOW)


async def refusal(path: Path) -> str:
    """The one line with which a store does not start."""
    one = SqliteStore(path)
    with pytest.raises(ConfigError) as caught:
        await one.open()
    (problem,) = caught.value.problems
    assert problem.setting == "store.url"
    assert "\n" not in problem.message
    assert str(path) in problem.message
    await one.close()
    return problem.message


class TestStart:
    async def test_does_not_start_where_wal_cannot_be_used(self, path: Path) -> None:
        # The index that WAL shares through memory cannot be made here, as on some network file systems.
        path.with_name("store.db-shm").symlink_to(path.with_name("missing") / "shm")
        assert "cannot use WAL" in await refusal(path)

    async def test_does_not_start_on_a_file_that_is_no_database(self, path: Path) -> None:
        path.write_bytes(b"# a text about something else\n" * 100)
        before = path.read_bytes()
        assert "not a SQLite database" in await refusal(path)
        assert path.read_bytes() == before

    async def test_does_not_start_on_another_programs_database(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE theirs (x)")
        assert "another program's data" in await refusal(path)

    async def test_does_not_start_on_a_newer_schema(self, path: Path, store: SqliteStore) -> None:
        await store.close()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 99")
        assert "newer version (schema 99)" in await refusal(path)

    async def test_does_not_start_on_a_folder_or_without_one(self, tmp_path: Path) -> None:
        assert "is a folder" in await refusal(tmp_path)
        assert "cannot be created" in await refusal(tmp_path / "missing" / "store.db")

    async def test_does_not_start_on_a_damaged_database(self, path: Path, store: SqliteStore) -> None:
        await store.close()
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
        assert "damaged" in await refusal(path)

    async def test_does_not_start_where_it_may_not_write(self, path: Path) -> None:
        code = """
async def opened():
    store = SqliteStore(path)
    try:
        await store.open()
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    await store.close()
    return []
obey_permissions()
folder = path.parent
folder.chmod(0o555)
told = [asyncio.run(opened())]
folder.chmod(0o755)
told.append(asyncio.run(opened()))
path.chmod(0o444)
told.append(asyncio.run(opened()))
path.chmod(0o000)
told.append(asyncio.run(opened()))
path.chmod(0o600)
told.append(asyncio.run(opened()))
print(json.dumps(told))
"""
        no_folder, well, read_only, closed, well_again = await told_by_child(code, path)  # type: ignore[misc]
        assert no_folder == [f"store.url: {path} cannot be created (Permission denied); name a folder that is writable"]
        assert "cannot be written to" in read_only[0]
        assert "cannot be written to" in closed[0]
        assert well == well_again == []

    async def test_a_new_file_is_for_its_owner_only(self, store: SqliteStore, path: Path) -> None:
        await store.probe()
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file


class TestTrouble:
    async def test_a_full_disk_fails_the_whole_group_and_heals(self, path: Path) -> None:
        code = """
async def main():
    store = SqliteStore(path)
    await store.open()
    for i in range(5):
        assert await store.spend(nonce(f"early{i}"), time.time())
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(path.name + "-wal").stat().st_size, hard))
    full = await asyncio.gather(*(outcome(store.spend(nonce(f"late{i}"), time.time())) for i in range(32)))
    health = await outcome(store.probe())
    known = await outcome(store.known_revisions())
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    after = await asyncio.gather(*(outcome(store.spend(nonce(f"late{i}"), time.time())) for i in range(32)))
    await store.close()
    print(json.dumps([full, health, known, after]))
asyncio.run(main())
"""
        full, health, known, after = await told_by_child(code, path)  # type: ignore[misc]
        assert full == ["StoreUnavailable"] * 32
        assert health == "StoreUnavailable"
        assert known == []
        assert after == [True] * 32
        values = [f"early{i}" for i in range(5)] + [f"late{i}" for i in range(32)]
        assert await spent(path, values) == [True] * 37

    async def test_a_file_moved_away_is_unavailable_until_it_is_back(self, store: SqliteStore, path: Path) -> None:
        assert await store.spend(nonce("n"), NOW)
        await store.known_revisions()
        path.rename(path.with_suffix(".away"))
        for _ in range(2):
            for call in (store.spend(nonce("m"), NOW), store.probe(), store.known_revisions()):
                with pytest.raises(StoreUnavailable):
                    await call
        path.with_suffix(".away").rename(path)
        assert not await store.spend(nonce("n"), NOW)
        assert await store.spend(nonce("m"), NOW)
        assert list(await store.known_revisions()) == []

    @pytest.mark.parametrize("name", ["store.db", "store.db-wal"])
    async def test_a_deleted_file_is_never_replaced_by_one_that_has_forgotten(self, path: Path, name: str) -> None:
        one = SqliteStore(path)
        await one.open()
        assert await one.spend(nonce("n"), NOW)
        path.with_name(name).unlink()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await one.spend(nonce("n"), NOW)
            with pytest.raises(StoreUnavailable):
                await one.known_revisions()
        assert not path.with_name(name).exists()
        await one.close()
        if name.endswith("-wal"):
            assert await spent(path, ["n"]) == [True]

    async def test_a_file_put_in_the_stores_place_is_not_taken_for_it(self, store: SqliteStore, path: Path) -> None:
        other = SqliteStore(path.with_name("other.db"))
        await other.open()
        await other.close()
        path.rename(path.with_suffix(".away"))
        path.with_name("other.db").rename(path)
        with pytest.raises(StoreUnavailable):
            await store.spend(nonce("n"), NOW)
        path.with_suffix(".away").rename(path)
        assert await store.spend(nonce("n"), NOW)

    async def test_taking_away_permissions_does_not_stop_a_running_store(self, path: Path) -> None:
        code = """
async def main():
    obey_permissions()
    store, late = SqliteStore(path), SqliteStore(path)
    await store.open()
    told = [await outcome(store.spend(nonce("a"), time.time()))]
    for file in path.parent.iterdir():
        file.chmod(0o444)
    path.parent.chmod(0o555)
    told += [await outcome(store.spend(nonce("b"), time.time())), await outcome(store.probe())]
    told += [await outcome(late.open())]
    path.parent.chmod(0o755)
    for file in path.parent.iterdir():
        file.chmod(0o600)
    told += [await outcome(store.spend(nonce("c"), time.time()))]
    await store.close()
    print(json.dumps(told))
asyncio.run(main())
"""
        assert await told_by_child(code, path) == [True, True, None, "ConfigError", True]
        assert await spent(path, ["a", "b", "c"]) == [True] * 3


class TestRoom:
    async def test_the_log_does_not_grow_without_bound(self, store: SqliteStore, path: Path) -> None:
        key, log, largest = TurnKey("l", "i", ""), path.with_name("store.db-wal"), 0
        held = await store.claim_turn(claim(key), NOW)
        assert isinstance(held, Held)
        for i in range(160):
            assert await store.save_turn(key, held.epoch, bytes([i]) * (1 << 20), NOW)
            largest = max(largest, log.stat().st_size)
        assert largest < 100 << 20
        for _ in range(500):
            if log.stat().st_size < 16 << 20:
                break
            await store.probe()
            await asyncio.sleep(0.01)
        assert log.stat().st_size < 16 << 20

    async def test_a_nonce_takes_little_room(self, path: Path) -> None:
        one = SqliteStore(path)
        await one.open()
        await asyncio.gather(*(one.spend(nonce(uuid.uuid4().hex), NOW) for _ in range(10_000)))
        await one.close()
        each = (path.stat().st_size - 13 * 4096) / 10_000
        print(f"\n{each:.0f} bytes per nonce")
        assert each < 60

    async def test_purging_drops_all_that_is_over_and_says_how_many(self, store: SqliteStore) -> None:
        for i in range(10):
            key = TurnKey("l", f"i{i}", "")
            held = await store.claim_turn(claim(key, keep_until=NOW + 100), NOW)
            assert isinstance(held, Held)
            await store.spend(nonce(f"n{i}", expires_at=NOW + 50), NOW)
            if i % 2:
                await store.finish_turn(TurnEnd(key, held.epoch, b"reply", "", None, NOW + 100), NOW)
        assert await store.purge(NOW + 49, 100) == 0
        assert await store.purge(NOW + 50, 4) == 4
        assert await store.purge(NOW + 50, 100) == 6
        assert [await store.purge(NOW + 101, 7) for _ in range(3)] == [7, 3, 0]
        assert await store.spend(nonce("n0"), NOW + 50)

    async def test_purging_drops_ended_tasks_with_all_they_had_and_receipts_by_their_own_time(
        self, store: SqliteStore, path: Path
    ) -> None:
        for _ in range(3):
            row = await task_store.running(store, event=task_store.event(1), nonce=None, receipt_until=NOW + 200)
            final = {"event": task_store.event(2), "keep_until": NOW + 100}
            await task_store.commit(store, row, index=task_store.COMPLETED, **final)
        assert [await store.purge(NOW + 100, 2) for _ in range(3)] == [2, 1, 0]
        assert [await store.purge(NOW + 200, 2) for _ in range(3)] == [2, 1, 0]
        await store.close()
        with closing(sqlite3.connect(path)) as connection:
            for table in ("tasks", "dispatches", "records", "events", "letters", "receipts"):
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table

    async def test_a_delivered_event_leaves_nothing_behind(self, store: SqliteStore, path: Path) -> None:
        await task_store.admit(store, event=task_store.event(1))
        assert await store.settle_event(await task_store.claim_one(store), Delivered(), NOW)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM letters").fetchone() == (0,)

    async def test_a_turn_under_a_live_lease_is_not_dropped(self, store: SqliteStore) -> None:
        key = TurnKey("l", "i", "")
        held = await store.claim_turn(claim(key, keep_until=NOW + 1), NOW)
        assert isinstance(held, Held)
        assert await store.purge(NOW + 2, 100) == 0
        assert await store.finish_turn(TurnEnd(key, held.epoch, b"reply", "", None, KEEP), NOW + 2)
        assert await store.peek_turn(key, NOW + 2) == Answered(b"reply")
