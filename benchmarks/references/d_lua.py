"""D: Starlette and redis-py's default client, with one Lua call to claim and one to finish."""

from __future__ import annotations

from pathlib import Path

from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.traffic import TARGET
from finch_gateway.wire.dispatch import read_dispatch
from finch_gateway.wire.signing import NONCE_MEMORY_S, Unverified

from .door import CONFLICT, REFUSED, Answer, reply, signed_response, verified_body

_DAY_S = 86400
# KEYS: nonce, turn. ARGV: the nonce's and the turn's seconds to live, the input's digest.
_CLAIM = """
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[1]) then return {'replayed'} end
local turn = redis.call('HMGET', KEYS[2], 'digest', 'reply')
if turn[1] then
  if turn[1] ~= ARGV[3] then return {'conflict'} end
  if turn[2] then return {'answered', turn[2]} end
  return {'running'}
end
redis.call('HSET', KEYS[2], 'digest', ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return {'held'}
"""
# KEYS: turn. ARGV: the reply.
_FINISH = "return redis.call('HSET', KEYS[1], 'reply', ARGV[1])"


def build(_folder: Path, store_port: int) -> Starlette:
    store = Redis(port=store_port)
    claim_turn, finish_turn = store.register_script(_CLAIM), store.register_script(_FINISH)

    async def invoke(request: Request) -> Response:
        try:
            claim, body = await verified_body(request)
        except Unverified:
            return signed_response(Answer(401, REFUSED))
        dispatch = read_dispatch(body, "finch_v2")
        turn = f"turn:{dispatch.invocation_id}:{dispatch.conversation.turn_id}"
        said = await claim_turn(
            keys=[f"nonce:{claim.key_id}:{claim.nonce}", turn],
            args=[2 * NONCE_MEMORY_S, _DAY_S, dispatch.input_digest],
        )
        if said[0] == b"replayed":
            return signed_response(Answer(401, REFUSED))
        if said[0] == b"answered":
            return signed_response(Answer(200, said[1]))
        if said[0] != b"held":
            return signed_response(Answer(409, CONFLICT))
        answer = reply(dispatch.invocation_id)
        await finish_turn(keys=[turn], args=[answer])
        return signed_response(Answer(200, answer))

    return Starlette(routes=[Route(TARGET.decode(), invoke, methods=["POST"])])
