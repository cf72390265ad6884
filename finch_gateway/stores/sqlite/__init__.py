"""The embedded store: one SQLite file in WAL mode, shared by the processes of one machine.

`store` is the handle, `lanes` the threads it owns, `steps` what each call does inside a transaction,
`schema` the tables, `database` the file: its checks, its connections.
"""

from .store import SqliteStore

__all__ = ["SqliteStore"]
