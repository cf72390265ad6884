"""One SQLite file: the checks before it is used, and connections that notice when it is gone."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias, TypeVar

from ...errors import ConfigError, StoreUnavailable
from .schema import APPLICATION_ID, SCHEMA, SCHEMA_VERSION

T = TypeVar("T")
Place: TypeAlias = tuple[int, ...]
"""The devices and inodes of a file and its log."""

SETTING = "store.url"
BUSY_LIMIT_S = 5.0
BUSY_PAUSE_S = 0.001
WAL_KEEP_BYTES = 4 << 20


def is_busy(error: sqlite3.Error) -> bool:
    """Say whether another process is in the way for a moment."""
    # The low byte is the primary code; extended ones (recovery, snapshot) share it.
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def unavailable(error: Exception) -> StoreUnavailable:
    """Return what a caller is told about a failure of SQLite or of the disk."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return StoreUnavailable(f"the SQLite store failed: {name}")


def patiently(work: Callable[[], T]) -> T:
    """Do `work` again while another process is in the way, for at most `BUSY_LIMIT_S`."""
    # Attempts are counted rather than timed, so that the store needs no clock. The pause is shorter and
    # fairer than SQLite's own waiting, whose steps grow to 100 ms.
    for _ in range(int(BUSY_LIMIT_S / BUSY_PAUSE_S)):
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        time.sleep(BUSY_PAUSE_S)
    return work()


class Database:
    """The file at `path`. `open` comes first and `close` last, in any thread; in between each thread has a `Link`.

    A connection is kept from `open` to `close`, so that SQLite does not replace the log meanwhile: when file
    or log are others than at the start, somebody moved or deleted them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._log = self.path.with_name(f"{self.path.name}-wal")
        self._anchor: sqlite3.Connection | None = None
        self._place: Place = ()

    def open(self) -> None:
        """Create the file or check it; raise `ConfigError` saying what to do."""
        try:
            self._create()
            with closing(self._plain_connection()) as connection:
                patiently(lambda: self._check(connection))
                self._anchor = self.connect()
            self._place, _ = self._look()
        except OSError as error:
            raise self._refused(f"cannot be created ({error.strerror}); name a folder that is writable") from error
        except sqlite3.Error as error:
            raise self._refused(_reason(error)) from error

    def close(self) -> None:
        """Let go of the file; the last one to do so empties the log into it."""
        if self._anchor is not None:
            self._anchor.close()

    def connect(self) -> sqlite3.Connection:
        """Return a connection to the file; it never creates one."""
        connection = self._plain_connection()
        try:
            patiently(lambda: _set_up(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    def log_size(self) -> int:
        """Return the log's size in bytes; raise `StoreUnavailable` unless file and log are still in their place."""
        try:
            place, size = self._look()
        except OSError as error:
            raise unavailable(error) from error
        if place != self._place:
            raise StoreUnavailable("the SQLite file or its log was replaced")
        return size

    def _look(self) -> tuple[Place, int]:
        main, log = self.path.stat(), self._log.stat()
        return (main.st_dev, main.st_ino, log.st_dev, log.st_ino), log.st_size

    def _create(self) -> None:
        if self.path.is_dir():
            raise self._refused("is a folder; name a file")
        # The records hold what buyers wrote; SQLite gives its log files the same mode.
        self.path.touch(mode=0o600, exist_ok=True)
        # Before SQLite looks: it would leave log files behind that nobody may write to either.
        if not (os.access(self.path, os.R_OK | os.W_OK) and os.access(self.path.parent, os.W_OK)):
            raise self._refused(_REASONS[sqlite3.SQLITE_READONLY])

    def _plain_connection(self) -> sqlite3.Connection:
        # One thread at a time uses a connection, though not always the one that made it.
        address = f"{self.path.as_uri()}?mode=rw"
        return sqlite3.connect(address, uri=True, timeout=0, isolation_level=None, check_same_thread=False)

    def _check(self, connection: sqlite3.Connection) -> None:
        """Make sure of the file's owner, WAL and the schema; another process may be doing the same."""
        if _number(connection, "application_id") != APPLICATION_ID and _tables(connection):
            raise self._refused("holds another program's data; name another file")
        if (version := _number(connection, "user_version")) > SCHEMA_VERSION:
            raise self._refused(f"was written by a newer version (schema {version}); upgrade finch-gateway")
        self._switch_wal_on(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not _tables(connection):
                for statement in SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("UPDATE probe SET count = count + 1")
        except BaseException:
            connection.rollback()
            raise
        connection.execute("COMMIT")

    def _switch_wal_on(self, connection: sqlite3.Connection) -> None:
        try:
            mode, cause = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0], None
            # The pragma alone does not touch the shared index that some file systems cannot hold.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
                raise
            mode, cause = "off", error
        if mode != "wal":
            raise self._refused("cannot use WAL here; name a file on a local disk, or use Redis") from cause

    def _refused(self, message: str) -> ConfigError:
        return ConfigError.one(SETTING, f"{self.path} {message}")


class Link:
    """One thread's connection: made when it is needed, dropped when it failed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        """Return a connection to the file, which is in its place; raise `StoreUnavailable` otherwise."""
        self._database.log_size()
        if self._connection is None:
            self._connection = self._database.connect()
        return self._connection

    def drop(self) -> None:
        """Close the connection, if there is one; an open transaction is undone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEEP_BYTES}")
    # The first look at the file; it opens the log, too.
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _tables(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])


_PERMISSIONS = "check the permissions of the file, its -wal and -shm files and their folder"
_REASONS = {
    sqlite3.SQLITE_NOTADB: "is not a SQLite database; name another file",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup or name another file",
    sqlite3.SQLITE_READONLY: f"cannot be written to; {_PERMISSIONS}",
    sqlite3.SQLITE_CANTOPEN: f"cannot be opened; {_PERMISSIONS}",
    sqlite3.SQLITE_FULL: "cannot grow, the disk is full; make room",
    sqlite3.SQLITE_BUSY: "is locked by another program; stop that program",
}


def _reason(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return _REASONS.get(_code(error), f"failed with {name}; check the disk")
