"""S: Starlette and SQLite in WAL mode with `synchronous=FULL`, one commit to claim and one to finish."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.traffic import TARGET
from finch_gateway.wire.dispatch import Dispatch, read_dispatch
from finch_gateway.wire.signing import NONCE_MEMORY_S, Claim, Unverified

from .door import CONFLICT, REFUSED, Answer, reply, signed_response, verified_body

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE nonce (key_id TEXT, value TEXT, expires_at REAL, PRIMARY KEY (key_id, value)) WITHOUT ROWID;
CREATE TABLE turn (id TEXT PRIMARY KEY, digest TEXT, reply BLOB) WITHOUT ROWID;
"""


class _Turns:
    """Runs on one thread; each method is one transaction."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, check_same_thread=False)
        self.db.executescript(_SCHEMA)

    def claim(self, claim: Claim, identity: str, dispatch: Dispatch) -> Answer | None:
        with self.db as db:
            nonce = (claim.key_id, claim.nonce, time.time() + NONCE_MEMORY_S)
            if not db.execute("INSERT OR IGNORE INTO nonce VALUES (?, ?, ?)", nonce).rowcount:
                return Answer(401, REFUSED)
            turn = (identity, dispatch.input_digest)
            if db.execute("INSERT OR IGNORE INTO turn VALUES (?, ?, NULL)", turn).rowcount:
                return None
            digest, stored = db.execute("SELECT digest, reply FROM turn WHERE id = ?", (identity,)).fetchone()
        return Answer(200, stored) if stored and digest == dispatch.input_digest else Answer(409, CONFLICT)

    def finish(self, identity: str, answer: bytes) -> None:
        with self.db as db:
            db.execute("UPDATE turn SET reply = ? WHERE id = ?", (answer, identity))


def build(folder: Path, _store_port: int) -> Starlette:
    turns, thread = _Turns(folder / "turns.db"), ThreadPoolExecutor(max_workers=1)

    async def invoke(request: Request) -> Response:
        try:
            claim, body = await verified_body(request)
        except Unverified:
            return signed_response(Answer(401, REFUSED))
        dispatch, loop = read_dispatch(body, "finch_v2"), asyncio.get_running_loop()
        identity = f"{dispatch.invocation_id}:{dispatch.conversation.turn_id}"
        known = await loop.run_in_executor(thread, turns.claim, claim, identity, dispatch)
        if known is not None:
            return signed_response(known)
        answer = reply(dispatch.invocation_id)
        await loop.run_in_executor(thread, turns.finish, identity, answer)
        return signed_response(Answer(200, answer))

    return Starlette(routes=[Route(TARGET.decode(), invoke, methods=["POST"])])
