"""What Finch finds wrong with a P1 reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from finch_gateway.emulator.replies import reply_faults, status_of

HEAD = {"protocol_version": "2.0", "invocation_id": "i-1"}
TEXT = {"type": "text", "text": "Done."}
COMPLETED: dict[str, Any] = {
    **HEAD,
    "status": "completed",
    "message": {"role": "agent", "content": [TEXT, {"type": "json", "json": {"risk": None}}]},
    "artifacts": [{"slot_id": "s", "asset_id": "a", "sha256": "0" * 64, "bytes": 1, "filename": "r.png"}],
    "completed_at": "2026-08-24T10:29:12.000Z",
}
ASKS = {**HEAD, "status": "input_required", "questions": [{"id": "scope", "question": "Which period?"}]}
FAILS = {**HEAD, "status": "failed", "error": {"code": "agent_error", "message": "It failed."}}


def faults_of(reply: object) -> list[str]:
    return reply_faults(json.dumps(reply).encode(), "i-1")


@pytest.mark.parametrize("reply", [COMPLETED, ASKS, FAILS, {**FAILS, "error": {"code": "agent_error"}}])
def test_a_strict_reply_has_no_fault(reply: dict[str, Any]) -> None:
    assert faults_of(reply) == []
    assert status_of(json.dumps(reply).encode()) == reply["status"]


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ([], "not an object"),
        ({**COMPLETED, "protocol_version": 2.0}, "protocol_version"),
        ({**COMPLETED, "invocation_id": "i-2"}, "invocation_id"),
        ({**COMPLETED, "status": "done"}, "status is not"),
        ({**COMPLETED, "status": ["completed"]}, "status is not"),
        ({**COMPLETED, "error": None}, "reply.error is null"),
        ({**COMPLETED, "questions": []}, "not in the contract: questions"),
        ({name: value for name, value in COMPLETED.items() if name != "artifacts"}, "lacks artifacts"),
        ({**COMPLETED, "message": "Done."}, "message is not an object"),
        ({**COMPLETED, "message": {"role": "assistant", "content": [TEXT]}}, "message.role"),
        ({**COMPLETED, "message": {"role": "agent", "content": []}}, "list of parts"),
        ({**COMPLETED, "message": {"role": "agent", "content": ["Done."]}}, "message.content[0] is not an object"),
        ({**COMPLETED, "message": {"role": "agent", "content": [{**TEXT, "id": 1}]}}, "not in the contract: id"),
        ({**COMPLETED, "message": {"role": "agent", "content": [{"type": "text", "text": 1}]}}, "text is not a text"),
        ({**COMPLETED, "message": {"role": "agent", "content": [{"type": "url"}]}}, "neither text nor json"),
        ({**COMPLETED, "artifacts": [{"url": "https://x"}]}, "artifacts[0]"),
        ({**COMPLETED, "artifacts": ["https://x"]}, "artifacts[0] is not an object"),
        ({**COMPLETED, "completed_at": "2026-08-24T10:29:12"}, "completed_at"),
        ({**COMPLETED, "completed_at": "2026-13-24T10:29:12Z"}, "completed_at"),
        ({**ASKS, "questions": []}, "list of questions"),
        ({**ASKS, "questions": ["Which?"]}, "questions[0] is not an object"),
        ({**ASKS, "questions": [{"id": "", "question": "Which?"}]}, "needs an id"),
        ({**FAILS, "error": "broken"}, "error is not an object"),
        ({**FAILS, "error": {"code": "Agent Error"}}, "snake_case"),
        ({**FAILS, "error": {"code": "x", "message": 3}}, "error.message"),
        ({**FAILS, "error": {"code": "x", "trace": "…"}}, "not in the contract: trace"),
    ],
)
def test_a_fault_is_named(reply: object, fault: str) -> None:
    assert any(fault in sentence for sentence in faults_of(reply))


@pytest.mark.parametrize("body", [b"", b"\xff", b'{"a":1,"a":1}', b'{"a":NaN}', b"<html>"])
def test_what_is_no_json_is_named_once(body: bytes) -> None:
    assert len(reply_faults(body, "i-1")) == 1
    assert status_of(body) == ""
