"""What must not get past the door: anything unsigned, altered, stale, replayed or turned round (wire 1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..envelopes import encode, envelope_of
from ..exchange import Exchange, Headers, Request
from ..platform import Outgoing
from ..signer import AGENT_HEADERS, MAX_SKEW_S, PLATFORM_HEADERS, Credential
from .judge import Bench, Check, Findings, answer_faults, unauthenticated

# Two clocks and a second that ticks on the way: the edge itself is not to be hit from outside.
_CLOCK_PLAY_S = 10


def _dispatch_body(bench: Bench) -> bytes:
    return encode(envelope_of(bench.platform.new_call(deadline_s=bench.deadline_s, contract_test=True)))


async def _send_all(bench: Bench, requests: Iterable[Request]) -> list[Exchange]:
    return [await bench.platform.send(request) for request in requests]


def _health_call(bench: Bench) -> Outgoing:
    return Outgoing("GET", bench.platform.endpoint.health)


async def _unsigned(bench: Bench) -> Findings:
    endpoint = bench.platform.endpoint
    json_only = (("Content-Type", "application/json"),)
    bare = [Request("GET", endpoint.health, ()), Request("POST", endpoint.invoke, json_only, _dispatch_body(bench))]
    return unauthenticated(await _send_all(bench, bare))


def _without(headers: Headers, name: str) -> Headers:
    return tuple(pair for pair in headers if pair[0] != name)


def _doubled(headers: Headers, name: str) -> Headers:
    return headers + tuple(pair for pair in headers if pair[0] == name)


async def _altered_headers(bench: Bench, alter: Callable[[Headers, str], Headers]) -> Findings:
    signed = [(bench.platform.sign(_health_call(bench)), name) for name in PLATFORM_HEADERS]
    return unauthenticated(
        await _send_all(bench, [replace(request, headers=alter(request.headers, name)) for request, name in signed])
    )


async def _missing_header(bench: Bench) -> Findings:
    return await _altered_headers(bench, _without)


async def _doubled_header(bench: Bench) -> Findings:
    return await _altered_headers(bench, _doubled)


async def _bad_signature(bench: Bench) -> Findings:
    platform = bench.platform
    stranger = Credential(platform.endpoint.credential.key_id, os.urandom(32))
    signed = platform.sign(_health_call(bench))
    loud = replace(signed, headers=tuple((name, _loud(name, value)) for name, value in signed.headers))
    wrong = platform.sign(replace(_health_call(bench), credential=stranger))
    return unauthenticated(await _send_all(bench, [wrong, loud]))


def _loud(name: str, value: str) -> str:
    """Write a signature's digest in capitals, which another verifier might let pass (wire 1.5)."""
    return "v1=" + value[3:].upper() if name == "X-Platform-Signature" else value


async def _tampered_body(bench: Bench) -> Findings:
    body = _dispatch_body(bench)
    tampered = body.replace(b"Describe your", b"Describe  our", 1)
    call = replace(bench.platform.dispatch(tampered), signed_body=body)
    return unauthenticated([await bench.platform.perform(call)])


async def _reserialised_body(bench: Bench) -> Findings:
    body = _dispatch_body(bench)
    spaced = body.replace(b'":', b'": ')
    call = replace(bench.platform.dispatch(spaced), signed_body=body)
    return unauthenticated([await bench.platform.perform(call)])


async def _skewed(bench: Bench) -> Findings:
    now = int(bench.platform.clock())
    times = (now - MAX_SKEW_S - 1, now + MAX_SKEW_S + _CLOCK_PLAY_S)
    calls = [replace(_health_call(bench), timestamp=time) for time in times]
    return unauthenticated([await bench.platform.perform(call) for call in calls])


async def _within_skew(bench: Bench) -> Findings:
    now = int(bench.platform.clock())
    times = (now - MAX_SKEW_S + _CLOCK_PLAY_S, now + MAX_SKEW_S - _CLOCK_PLAY_S)
    exchanges = [await bench.platform.perform(replace(_health_call(bench), timestamp=time)) for time in times]
    return Findings(tuple(exchanges), tuple(fault for exchange in exchanges for fault in answer_faults(exchange, 200)))


async def _milliseconds(bench: Bench) -> Findings:
    call = replace(_health_call(bench), timestamp=int(bench.platform.clock() * 1000))
    return unauthenticated([await bench.platform.perform(call)])


async def _replayed(bench: Bench) -> Findings:
    request = bench.platform.sign(_health_call(bench))
    first, second = await _send_all(bench, [request, request])
    refusal = unauthenticated([second])
    return Findings((first, second), (*answer_faults(first, 200), *refusal.faults))


async def _replayed_elsewhere(bench: Bench) -> Findings:
    """Spend a nonce on one endpoint and present it, signed anew and correctly, on another."""
    platform = bench.platform
    nonce = platform.new_uuid().hex
    first = await platform.perform(replace(_health_call(bench), nonce=nonce))
    second = await platform.perform(replace(platform.dispatch(b"{}"), nonce=nonce))
    return Findings((first, second), (*answer_faults(first, 200), *unauthenticated([second]).faults))


async def _unknown_key(bench: Bench) -> Findings:
    known = bench.platform.endpoint.credential
    stranger = Credential(f"{known.key_id[:-4]}zzzz", known.secret)
    return unauthenticated([await bench.platform.perform(replace(_health_call(bench), credential=stranger))])


async def _get_with_body(bench: Bench) -> Findings:
    health = _health_call(bench)
    over_body, over_nothing = replace(health, body=b"{}"), replace(health, body=b"{}", signed_body=b"")
    return unauthenticated([await bench.platform.perform(call) for call in (over_body, over_nothing)])


async def _reflected(bench: Bench) -> Findings:
    """Turn signed answers round as requests: one with a body, one that was signed over none (wire 1.9)."""
    platform = bench.platform
    refusal = await platform.perform(platform.dispatch(b"no JSON"))
    empty = await platform.perform(Outgoing("HEAD", platform.endpoint.health))
    turned = [
        Request("POST", platform.endpoint.invoke, _as_request(refusal), refusal.answer.body),
        Request("HEAD", platform.endpoint.health, _as_request(empty)),
    ]
    exchanges = await _send_all(bench, turned)
    post = unauthenticated(exchanges[:1])
    return Findings(tuple(exchanges), (*post.faults, *answer_faults(exchanges[1], 401)))


def _as_request(exchange: Exchange) -> Headers:
    return tuple(
        (theirs, exchange.answer.value(ours)) for theirs, ours in zip(PLATFORM_HEADERS, AGENT_HEADERS, strict=True)
    )


_REFUSED = "401 auth_failed, signed"

DOOR_CHECKS = (
    Check("unsigned", ("1.5", "2.1"), _REFUSED, _unsigned),
    Check("missing header", ("1.5",), f"{_REFUSED}, for each of the four", _missing_header),
    Check("doubled header", ("1.5",), f"{_REFUSED}, for each of the four", _doubled_header),
    Check("bad signature", ("1.1", "1.5"), _REFUSED, _bad_signature),
    Check("tampered body", ("1.3",), _REFUSED, _tampered_body),
    Check("re-serialised body", ("1.3",), _REFUSED, _reserialised_body),
    Check("clock too far off", ("1.4",), f"{_REFUSED}, at 301 s behind and over 300 s ahead", _skewed),
    Check("clock within bounds", ("1.4",), "200 at 290 s behind and ahead", _within_skew),
    Check("time in milliseconds", ("1.4",), _REFUSED, _milliseconds),
    Check("replayed nonce", ("1.7",), f"200 once, then {_REFUSED}", _replayed),
    Check("nonce used elsewhere", ("1.7",), f"200 on health, then {_REFUSED} on invoke", _replayed_elsewhere),
    Check("unknown key id", ("1.6", "2.1"), f"{_REFUSED} by the current revision", _unknown_key),
    Check("GET with a body", ("1.8",), _REFUSED, _get_with_body),
    Check("reflected answer", ("1.9",), _REFUSED, _reflected),
)
