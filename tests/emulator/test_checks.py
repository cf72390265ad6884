"""Each check finds the fault it is there for, on a provider that has nothing of ours in it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from finch_gateway.emulator.checks import CHECKS, Bench, CheckResult, run_check
from finch_gateway.emulator.following import Asked
from finch_gateway.emulator.line import SocketLine
from finch_gateway.emulator.platform import Platform

FOUND_BY = {
    "unsigned_404": ({"escapes kept", "slashes kept", "no slash redirect", "unknown path"}, "unsigned"),
    "forgets_nonces": ({"replayed nonce", "nonce used elsewhere", "replayed turn"}, "instead of 401"),
    "signs_reserialised": ({"contract-test turn", "five attempts at once"}, "not over this method, target and these"),
    "compresses": ({"no compression"}, "carries a Content-Encoding"),
    "slash_redirect": ({"no slash redirect"}, "redirects"),
    "null_in_reply": ({"contract-test turn", "five attempts at once"}, "reply.error is null"),
    "answers_201": ({"contract-test turn", "five attempts at once"}, "status 201 instead of 200"),
    "other_invocation_id": ({"contract-test turn", "five attempts at once"}, "invocation_id is not the request's"),
    "future_accepted": ({"clock too far off"}, "status 200 instead of 401"),
    "reflectable": ({"reflected answer"}, "instead of 401"),
    "cacheable": ({"health", "unsigned", "HEAD"}, "Cache-Control is not no-store"),
    "first_header_wins": ({"doubled header"}, "status 200 instead of 401"),
    "verifies_parsed_body": ({"re-serialised body"}, "instead of 401"),
    "reruns": ({"five attempts at once"}, "different answers"),
    "unbounded": ({"body over the bound"}, "instead of 413"),
    "one_nonce": ({"unsigned", "replayed nonce"}, "used for another answer before"),
    "tells_why": ({"unsigned", "missing header"}, "401 bodies differ"),
    "added_field": ({"contract-test turn"}, "not in the contract: usage"),
    "local_time": ({"contract-test turn"}, "completed_at"),
    "fails": ({"contract-test turn"}, "agent_error"),
}


def unused_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run_all(bench: Bench) -> list[CheckResult]:
    return [await run_check(check, bench) for check in CHECKS]


@pytest.mark.parametrize("wire_protocol", ["finch_v2", "agenton_v0"])
async def test_a_right_provider_passes_every_check(start_bench: Callable[..., Bench], wire_protocol: str) -> None:
    results = await run_all(start_bench("", wire_protocol))
    assert {result.name: result.faults for result in results if not result.ok} == {}
    assert [result.name for result in results] == [check.name for check in CHECKS]


@pytest.mark.parametrize("fault", FOUND_BY)
async def test_a_seeded_fault_is_found_and_named(start_bench: Callable[..., Bench], fault: str) -> None:
    names, words = FOUND_BY[fault]
    results = {result.name: result for result in await run_all(start_bench(fault))}
    found = {name for name, result in results.items() if not result.ok}
    assert names <= found
    assert any(words in sentence for name in names for sentence in results[name].faults)


async def test_a_question_passes_and_is_remarked(start_bench: Callable[..., Bench]) -> None:
    results = await run_all(start_bench("asks"))
    assert [result.name for result in results if not result.ok] == []
    turn = next(result for result in results if result.name == "contract-test turn")
    assert "question" in turn.remark
    assert turn.dialogue == (Asked(("Which one?",)),)


async def test_what_builds_on_a_failed_check_is_not_tried_and_no_failure(start_bench: Callable[..., Bench]) -> None:
    results = {result.name: result for result in await run_all(start_bench("answers_201"))}
    assert not results["five attempts at once"].ok
    for name in ("retried turn", "replayed turn", "same turn, other input"):
        assert (results[name].ok, results[name].tried, results[name].got) == (True, False, "not tried")


async def test_evidence_says_which_answer_proves_nothing(start_bench: Callable[..., Bench]) -> None:
    results = {result.name: result for result in await run_all(start_bench("unsigned_404"))}
    assert [trace.distrust for trace in results["health"].exchanges] == [""]
    assert {trace.distrust for trace in results["unknown path"].exchanges} == {"unsigned: X-Agent-Key-Id is missing"}


async def test_the_agent_runs_for_two_turns_only(start_bench: Callable[..., Bench]) -> None:
    bench = start_bench()
    await run_all(bench)
    assert bench.repeated is not None
    assert b"run 2." in bench.repeated[1].answer.body


async def test_a_provider_that_is_away_fails_the_check_with_the_reason(start_bench: Callable[..., Bench]) -> None:
    platform = Platform(start_bench().platform.endpoint, SocketLine(f"http://127.0.0.1:{unused_port()}"))
    result = await run_check(CHECKS[0], Bench(platform, 1, 4096))
    assert (result.ok, result.got) == (False, "no answer")
    assert result.faults == ("GET /finch/v2/health: no connection: Connection refused",)


async def test_evidence_holds_no_signature_nonce_or_text(start_bench: Callable[..., Bench]) -> None:
    bench = start_bench()
    results = await run_all(bench)
    text = repr(results)
    assert bench.repeated is not None
    for name, value in (*bench.repeated[1].request.headers, *bench.repeated[1].answer.headers):
        if name.lower().endswith(("-signature", "-nonce")):
            assert value not in text
    assert "I am useful" not in text
    assert "Describe your" not in text
