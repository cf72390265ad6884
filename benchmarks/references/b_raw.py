"""B on the gateway's own front: a bare ASGI application, without routing, Request or Response."""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from finch_gateway.wire.dispatch import read_dispatch
from finch_gateway.wire.signing import Unverified

from .door import REFUSED, Answer, reply, signature, verify


async def _invoke(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message.get("more_body", False)
    answer = _answer(scope, body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(answer.body)).encode()),
        *signature(answer.body),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _answer(scope: Scope, body: bytes) -> Answer:
    try:
        verify(scope["headers"], body)
    except Unverified:
        return Answer(401, REFUSED)
    return Answer(200, reply(read_dispatch(body, "finch_v2").invocation_id))


def build(_folder: Path, _store_port: int) -> ASGIApp:
    return _invoke
