"""C: what a competent person writes in an afternoon: FastAPI, pydantic, redis-py, four round trips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from redis.asyncio import Redis

from benchmarks.traffic import TARGET
from finch_gateway.wire.signing import NONCE_MEMORY_S, Unverified

from .door import CONFLICT, REFUSED, Answer, signed_response, verified_body

_DAY_S = 86400


class _Part(BaseModel):
    type: str
    text: str = ""


class _Input(BaseModel):
    content: list[_Part]
    parameters: dict[str, Any] = {}


class _Conversation(BaseModel):
    conversation_id: str
    turn_id: str
    messages: list[dict[str, Any]] = []


class _Turn(BaseModel):
    protocol_version: str
    invocation_id: str
    interaction_mode: str
    conversation: _Conversation
    input: _Input


class _Message(BaseModel):
    role: str = "agent"
    content: list[_Part]


class _Reply(BaseModel):
    protocol_version: str = "2.0"
    invocation_id: str
    status: str = "completed"
    message: _Message
    artifacts: list[dict[str, Any]] = []
    completed_at: str = "2026-08-24T10:30:00Z"


def build(_folder: Path, store_port: int) -> FastAPI:
    app, store = FastAPI(), Redis(port=store_port)

    @app.post(TARGET.decode())
    async def invoke(request: Request) -> Response:
        try:
            claim, body = await verified_body(request)
        except Unverified:
            return signed_response(Answer(401, REFUSED))
        if not await store.set(f"nonce:{claim.key_id}:{claim.nonce}", 1, nx=True, ex=2 * NONCE_MEMORY_S):
            return signed_response(Answer(401, REFUSED))
        turn = _Turn.model_validate_json(body)
        identity = f"{turn.invocation_id}:{turn.conversation.turn_id}"
        first = await store.set(f"claim:{identity}", 1, nx=True, ex=_DAY_S)
        if (stored := await store.get(f"reply:{identity}")) is not None:
            return signed_response(Answer(200, stored))
        if not first:
            return signed_response(Answer(409, CONFLICT))
        answer = _Reply(invocation_id=turn.invocation_id, message=_Message(content=turn.input.content))
        reply = answer.model_dump_json().encode()
        await store.set(f"reply:{identity}", reply, ex=_DAY_S)
        return signed_response(Answer(200, reply))

    return app
