"""What a signed but wrong request gets, and that a target counts byte for byte (wire 1.2, 2.2, 2.3)."""

from __future__ import annotations

import gzip
from dataclasses import replace

from ..envelopes import Call, Mode, encode, envelope_of
from ..exchange import Exchange
from ..platform import Outgoing
from .judge import Bench, Check, Findings, answer_faults, refused, unauthenticated

_MODES: tuple[Mode, ...] = ("conversation_turn", "task", "generation")
_MAX_PROBE_BYTES = 32 * 1024 * 1024


async def _query_kept(bench: Bench) -> Findings:
    kept = await bench.platform.perform(Outgoing("GET", bench.platform.endpoint.health + "?b=2&a=1&q=a+b%20c&e="))
    return Findings((kept,), tuple(answer_faults(kept, 200)))


async def _query_sorted(bench: Bench) -> Findings:
    health = bench.platform.endpoint.health
    call = Outgoing("GET", f"{health}?b=2&a=1", signed_target=f"{health}?a=1&b=2")
    return unauthenticated([await bench.platform.perform(call)])


async def _target_as_signed(bench: Bench, sent: str, misspelled: tuple[str, ...]) -> Findings:
    """Send one target signed as it is, which leads nowhere, then signed in other spellings, which prove nothing."""
    verbatim = await bench.platform.perform(Outgoing("GET", sent))
    others = [await bench.platform.perform(Outgoing("GET", sent, signed_target=target)) for target in misspelled]
    absent = refused([verbatim], 404, "not_found", "task_not_found")
    return Findings((verbatim, *others), (*absent.faults, *unauthenticated(others).faults))


async def _escapes_kept(bench: Bench) -> Findings:
    tasks = f"{bench.platform.endpoint.mount}/tasks"
    return await _target_as_signed(bench, f"{tasks}/a%2Fb", (f"{tasks}/a%2fb", f"{tasks}/a/b"))


async def _slashes_kept(bench: Bench) -> Findings:
    endpoint = bench.platform.endpoint
    return await _target_as_signed(bench, f"{endpoint.mount}/{endpoint.health_path}", (endpoint.health,))


async def _no_slash_redirect(bench: Bench) -> Findings:
    endpoint = bench.platform.endpoint
    calls = [
        Outgoing("GET", f"{endpoint.health}/"),
        replace(bench.platform.dispatch(b"{}"), target=endpoint.invoke + "/"),
    ]
    return refused([await bench.platform.perform(call) for call in calls], 404, "not_found")


async def _unknown_path(bench: Bench) -> Findings:
    target = f"{bench.platform.endpoint.mount}/no-such-endpoint"
    calls = [Outgoing("GET", target), Outgoing("POST", target, b"{}")]
    return refused([await bench.platform.perform(call) for call in calls], 404, "not_found")


async def _wrong_method(bench: Bench) -> Findings:
    endpoint = bench.platform.endpoint
    calls = [Outgoing("GET", endpoint.invoke), Outgoing("POST", endpoint.health), Outgoing("DELETE", endpoint.invoke)]
    return refused([await bench.platform.perform(call) for call in calls], 405, "method_not_allowed")


async def _head(bench: Bench) -> Findings:
    exchange = await bench.platform.perform(Outgoing("HEAD", bench.platform.endpoint.health))
    return Findings((exchange,), tuple(answer_faults(exchange, 405)))


async def _dispatched(bench: Bench, *bodies: bytes) -> list[Exchange]:
    return [await bench.platform.perform(bench.platform.dispatch(body)) for body in bodies]


async def _not_json(bench: Bench) -> Findings:
    bodies = (
        b"",
        b"hello",
        b"[]",
        b'{"a":1}{"b":2}',
        b'{"a":NaN}',
        b'{"a":1,"a":2}',
        b"\xff\xfe{}",
        b"[" * 500 + b"]" * 500,
    )
    return refused(await _dispatched(bench, *bodies), 400, "body_invalid")


def _a_call(bench: Bench) -> Call:
    """Return a call in the first mode that the listing serves."""
    served = next(mode for mode in _MODES if mode in bench.modes)
    return bench.platform.new_call(deadline_s=bench.deadline_s, mode=served, contract_test=True)


async def _wrong_version(bench: Bench) -> Findings:
    call = _a_call(bench)
    body = encode(envelope_of(replace(call, protocol_version="1.0")))
    return refused(await _dispatched(bench, body), 422, "protocol_version_unsupported")


async def _wrong_envelope(bench: Bench) -> Findings:
    envelope = envelope_of(_a_call(bench))
    bodies = [encode({name: value for name, value in envelope.items() if name != left_out}) for left_out in _REQUIRED]
    other_form = encode({**envelope, "invocation_id": "not-an-invocation-id"})
    return refused(await _dispatched(bench, *bodies, other_form), 422, "envelope_invalid")


async def _wrong_mode(bench: Bench) -> Findings:
    unserved = [mode for mode in _MODES if mode not in bench.modes]
    calls = [bench.platform.new_call(deadline_s=bench.deadline_s, mode=mode, contract_test=True) for mode in unserved]
    bodies = [encode(envelope_of(call)) for call in calls]
    unknown = encode(envelope_of(bench.platform.new_call(deadline_s=bench.deadline_s, contract_test=True)))
    bodies.append(unknown.replace(b'"interaction_mode":"conversation_turn"', b'"interaction_mode":"telepathy"'))
    return refused(await _dispatched(bench, *bodies), 422, "interaction_mode_unsupported")


async def _oversize(bench: Bench) -> Findings:
    if bench.max_body_bytes > _MAX_PROBE_BYTES:
        return Findings((), untried=f"the listing takes over {_MAX_PROBE_BYTES} bytes")
    return refused(await _dispatched(bench, b" " * (bench.max_body_bytes + 1)), 413, "request_too_large")


async def _encoded(bench: Bench) -> Findings:
    call = bench.platform.dispatch(gzip.compress(b"{}", mtime=0), headers=(("Content-Encoding", "gzip"),))
    return refused([await bench.platform.perform(call)], 415, "encoding_unsupported")


_REQUIRED = ("protocol_version", "invocation_id", "input")
_VERBATIM = "signed 404 where signed as sent, 401 in any other spelling"

REQUEST_CHECKS = (
    Check("query kept", ("1.2",), "200, with the query signed in its own order", _query_kept),
    Check("query re-ordered", ("1.2",), "401 auth_failed, signed", _query_sorted),
    Check("escapes kept", ("1.2",), _VERBATIM, _escapes_kept),
    Check("slashes kept", ("1.2",), _VERBATIM, _slashes_kept),
    Check("no slash redirect", ("2.2",), "404 not_found, signed, no redirect", _no_slash_redirect),
    Check("unknown path", ("2.1", "2.3"), "404 not_found, signed", _unknown_path),
    Check("wrong method", ("2.1", "2.3"), "405 method_not_allowed, signed", _wrong_method),
    Check("HEAD", ("2.2",), "405, signed over zero bytes", _head),
    Check("body that is no JSON object", ("2.3",), "400 body_invalid, signed", _not_json),
    Check("another protocol version", ("2.3",), "422 protocol_version_unsupported, signed", _wrong_version),
    Check("incomplete envelope", ("2.3", "4.1"), "422 envelope_invalid, signed", _wrong_envelope),
    Check("mode that is not served", ("2.3",), "422 interaction_mode_unsupported, signed", _wrong_mode),
    Check("body over the bound", ("1.6", "2.6"), "413 request_too_large, signed", _oversize),
    Check("encoded body", ("1.6",), "415 encoding_unsupported, signed", _encoded),
)
