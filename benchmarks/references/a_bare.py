"""A: a bare Starlette route that reads the body and answers 424 bytes."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.traffic import TARGET

from .door import reply

_REPLY = reply("00000000-0000-4000-8000-000000000000")


async def _invoke(request: Request) -> Response:
    await request.body()
    return Response(_REPLY, media_type="application/json")


def build(_folder: Path, _store_port: int) -> Starlette:
    return Starlette(routes=[Route(TARGET.decode(), _invoke, methods=["POST"])])
