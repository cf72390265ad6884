"""Nonces, and the row that is written to find out whether writing works."""

from __future__ import annotations

import math
import sqlite3

from ....store import Nonce
from .rows import digest, op_mark


def spend(db: sqlite3.Connection, nonce: Nonce) -> bool:
    """Consume a nonce; True also when the same operation consumed it before."""
    key, op = digest(nonce.key_id, nonce.value), op_mark(nonce.op)
    if db.execute(_SPEND, (key, math.ceil(nonce.expires_at), op)).rowcount == 1:
        return True
    spent_by: int = db.execute("SELECT op FROM nonces WHERE id = ?", (key,)).fetchone()[0]
    return spent_by == op


def probe(db: sqlite3.Connection) -> None:
    """Change one row, so that the commit has something to write."""
    db.execute("UPDATE probe SET count = count + 1")


_SPEND = "INSERT INTO nonces VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
