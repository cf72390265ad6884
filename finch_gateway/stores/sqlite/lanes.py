"""The store's own threads: one writer that commits in groups, a few readers, one that empties the log.

Calls enter on the event loop and their results return to it; no thread touches a future by itself.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ...errors import StoreUnavailable
from .database import Database, Link, patiently, unavailable

T = TypeVar("T")

MAX_BATCH = 512
MAX_WAITING = 20_000
CHECKPOINT_AT_BYTES = 8 << 20
RESTART_AT_BYTES = 64 << 20
WRITER_RESTARTS_AT_BYTES = 96 << 20
"""Where the writer no longer leaves it to the checkpoint thread: the log's bound, but for one batch."""

CHECKPOINT_PAUSE_S = 0.1
CHECKPOINT_BUSY_MS = 50


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """One step on its way through a thread, and the future of whoever asked for it."""

    step: Callable[[sqlite3.Connection], T]
    future: asyncio.Future[T]
    value: T | None = None
    error: Exception | None = None

    def settle(self) -> None:
        """Hand the result over, unless the caller is gone; the step has happened all the same."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)  # type: ignore[arg-type]


async def aside(work: Callable[[], T]) -> T:
    """Run something slow in a thread of its own: the interpreter's default pool is nobody's."""
    loop = asyncio.get_running_loop()
    call: Call[T] = Call(lambda _: work(), loop.create_future())

    def run() -> None:
        try:
            call.value = work()
        except Exception as error:
            call.error = error
        with suppress(RuntimeError):  # The loop has ended, and with it whoever waited.
            loop.call_soon_threadsafe(call.settle)

    threading.Thread(target=run, name="finch-sqlite-aside", daemon=True).start()
    return await call.future


class Lane:
    """Calls from one event loop of one process, handed to threads once per turn of the loop."""

    def __init__(self, database: Database, threads: int, name: str) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._queue: SimpleQueue[list[Call[Any]]] = SimpleQueue()
        self._gathered: list[Call[Any]] = []
        self._waiting = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"finch-sqlite-{name}", daemon=True) for _ in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def ask(self, step: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Return the future of a step's result."""
        if os.getpid() != self._process:
            raise RuntimeError("a SQLite store belongs to the process that opened it")
        if self._closed or self._waiting >= MAX_WAITING:
            raise StoreUnavailable("the SQLite store is closed" if self._closed else "the SQLite store cannot keep up")
        call = Call(step, self._loop.create_future())
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(call)
        self._waiting += 1
        return call.future

    async def close(self) -> None:
        """Take no more calls, finish those that came, end the threads."""
        self._closed = True
        self._hand_over()
        for _ in self._threads:
            self._queue.put([])
        for thread in self._threads:
            await aside(thread.join)

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered:
            self._queue.put(gathered)

    def _run(self) -> None:
        """Serve until an empty list says that no more will come."""
        link = Link(self._database)
        while batch := self._queue.get():
            self._serve(link, batch)
            with suppress(RuntimeError):  # The loop has ended, and with it whoever waited.
                self._loop.call_soon_threadsafe(self._settle, batch)
        link.drop()

    def _settle(self, batch: list[Call[Any]]) -> None:
        self._waiting -= len(batch)
        for call in batch:
            call.settle()

    def _serve(self, link: Link, batch: list[Call[Any]]) -> None:
        raise NotImplementedError


class Readers(Lane):
    """Threads that only look; each call sees what was committed before it began."""

    def __init__(self, database: Database, threads: int) -> None:
        super().__init__(database, threads, "reader")

    def _serve(self, link: Link, batch: list[Call[Any]]) -> None:
        for call in batch:
            try:
                call.value = patiently(lambda call=call: call.step(link.connection()))  # type: ignore[misc]
            except Exception as error:
                call.error = _converted(error)
                _let_go(link, error)


class Writer(Lane):
    """The one thread that changes the file: whatever waits is committed together, with one sync to disk.

    `commits` counts them. `on_growth` is called with the log's size when it is large.
    """

    def __init__(self, database: Database, gate: threading.Lock, on_growth: Callable[[int], None]) -> None:
        super().__init__(database, 1, "writer")
        self.commits = 0
        self._gate = gate
        self._on_growth = on_growth

    def _serve(self, link: Link, batch: list[Call[Any]]) -> None:
        try:
            with self._gate:
                connection = link.connection()
                patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
                self._join_in(batch)
                self._apply(connection, batch)
                connection.execute("COMMIT")
                self.commits += 1
            # What went into a file that is no longer in its place must not be called durable.
            if (size := self._database.log_size()) >= CHECKPOINT_AT_BYTES:
                self._on_growth(size)
            if size >= WRITER_RESTARTS_AT_BYTES:
                connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except Exception as error:
            for call in batch:
                call.error = _converted(error)
            _let_go(link, error)

    def _join_in(self, batch: list[Call[Any]]) -> None:
        """Add whoever came while the file was busy."""
        while len(batch) < MAX_BATCH:
            try:
                more = self._queue.get_nowait()
            except Empty:
                return
            if not more:
                self._queue.put(more)
                return
            batch += more

    def _apply(self, connection: sqlite3.Connection, batch: list[Call[Any]]) -> None:
        """Run every step. When one fails, start over with a savepoint around each, so that only it is undone.

        Savepoints from the start would make SQLite copy every page that two steps of a batch touch.
        """
        try:
            for call in batch:
                call.value = call.step(connection)
        except Exception:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            for call in batch:
                self._apply_alone(connection, call)

    def _apply_alone(self, connection: sqlite3.Connection, call: Call[Any]) -> None:
        connection.execute("SAVEPOINT step")
        try:
            call.value = call.step(connection)
        except Exception as error:
            call.error = _converted(error)
            connection.execute("ROLLBACK TO step")
        connection.execute("RELEASE step")


class Checkpointer:
    """The thread that moves the log's pages into the file, so that no commit waits for it."""

    def __init__(self, database: Database, gate: threading.Lock) -> None:
        self._database = database
        self._gate = gate
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="finch-sqlite-checkpoint", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def grown(self, size: int) -> None:
        """Take note of the log's size; called by the writer."""
        self._size = size
        self._wake.set()

    async def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._wake.set()
        await aside(self._thread.join)

    def _run(self) -> None:
        link = Link(self._database)
        while self._wake.wait() and not self._stop.is_set():
            self._wake.clear()
            try:
                self._checkpoint(link.connection())
            except (sqlite3.Error, StoreUnavailable) as error:
                # Whoever writes meets the same trouble and reports it; the log waits for the next attempt.
                _let_go(link, error)
            self._stop.wait(CHECKPOINT_PAUSE_S)
        link.drop()

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if self._size < RESTART_AT_BYTES:
            return
        # Writers that never pause keep the log from starting over; what is left to copy is little by now.
        with self._gate:
            connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_BUSY_MS}")
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()


def _let_go(link: Link, error: Exception) -> None:
    """Drop a connection that failed; one whose file was moved away is good again when the file is back."""
    if not isinstance(error, StoreUnavailable):
        link.drop()


def _converted(error: Exception) -> Exception:
    """Return the error for one caller; each gets an instance of its own."""
    if isinstance(error, StoreUnavailable):
        return StoreUnavailable(str(error))
    return unavailable(error) if isinstance(error, sqlite3.Error | OSError) else error
