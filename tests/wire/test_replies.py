"""Replies hold exactly the fields of the contract, and never a null (wire 4.5, 5.1)."""

from __future__ import annotations

import json
import re

import pytest

from finch_gateway.wire import replies

INVOCATION = "cd613e30-d8f1-4adf-91b7-584a2265b1f5"


def test_a_completed_reply_has_exactly_its_fields() -> None:
    reply = json.loads(replies.completed(INVOCATION, [{"type": "text", "text": "é 🎌"}], 1787567400.25))
    assert reply == {
        "protocol_version": "2.0",
        "invocation_id": INVOCATION,
        "status": "completed",
        "message": {"role": "agent", "content": [{"type": "text", "text": "é 🎌"}]},
        "artifacts": [],
        "completed_at": "2026-08-24T10:30:00.250Z",
    }


def test_an_asking_reply_has_exactly_its_fields() -> None:
    assert json.loads(replies.input_required(INVOCATION, [("scope", "Which?")])) == {
        "protocol_version": "2.0",
        "invocation_id": INVOCATION,
        "status": "input_required",
        "questions": [{"id": "scope", "question": "Which?"}],
    }


def test_a_failed_reply_leaves_an_empty_message_out() -> None:
    assert json.loads(replies.failed(INVOCATION, "no_data"))["error"] == {"code": "no_data"}
    assert json.loads(replies.failed(INVOCATION, "no_data", "Nothing."))["error"] == {
        "code": "no_data",
        "message": "Nothing.",
    }


def test_large_integers_leave_digit_for_digit() -> None:
    body = replies.completed(INVOCATION, [{"type": "json", "json": {"n": 2**64 + 1}}], 0)
    assert b"18446744073709551617" in body


def test_nan_is_no_reply() -> None:
    with pytest.raises(ValueError):
        replies.completed(INVOCATION, [{"type": "json", "json": float("nan")}], 0)


def test_instants_have_milliseconds_and_z() -> None:
    for at in (0, 1787567400, 1787567400.9999, 1.5):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", replies.instant(at))
