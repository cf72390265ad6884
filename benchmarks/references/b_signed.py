"""B: A with verify, envelope and sign, and no store."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.traffic import TARGET
from finch_gateway.wire.dispatch import read_dispatch
from finch_gateway.wire.signing import Unverified

from .door import REFUSED, Answer, reply, signed_response, verified_body


async def _invoke(request: Request) -> Response:
    try:
        _, body = await verified_body(request)
    except Unverified:
        return signed_response(Answer(401, REFUSED))
    dispatch = read_dispatch(body, "finch_v2")
    return signed_response(Answer(200, reply(dispatch.invocation_id)))


def build(_folder: Path, _store_port: int) -> Starlette:
    return Starlette(routes=[Route(TARGET.decode(), _invoke, methods=["POST"])])
