"""Both envelopes become one value, and what is not an envelope becomes a code of wire 2.3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finch_gateway.errors import Refusal
from finch_gateway.wire.dispatch import read_dispatch, read_instant, read_quantity

ENVELOPES = sorted((Path(__file__).parent.parent / "vectors" / "envelopes").glob("*.json"))
ABSENT = object()


def protocol_of(path: Path) -> Any:
    return path.name.partition("-")[0]


def turn(wire_protocol: str) -> dict[str, Any]:
    path = next(path for path in ENVELOPES if path.name == f"{wire_protocol}-conversation_turn.json")
    loaded: dict[str, Any] = json.loads(path.read_bytes())
    return loaded


def changed(envelope: dict[str, Any], path: str, value: object) -> bytes:
    *parents, last = path.split(".")
    place = envelope
    for name in parents:
        place = place[name]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return json.dumps(envelope).encode()


def code_of(body: bytes, wire_protocol: Any = "finch_v2") -> str:
    try:
        read_dispatch(body, wire_protocol)
    except Refusal as refusal:
        return refusal.code
    return "read"


@pytest.mark.parametrize("path", ENVELOPES, ids=lambda path: path.stem)
def test_every_sample_envelope_is_read(path: Path) -> None:
    envelope = json.loads(path.read_bytes())
    dispatch = read_dispatch(path.read_bytes(), protocol_of(path))
    assert dispatch.invocation_id == envelope["invocation_id"]
    assert dispatch.mode == path.stem.partition("-")[2]
    assert dispatch.text == "Summarize this report."
    assert dispatch.quantity == "1"
    assert dispatch.deadline == read_instant("2026-08-24T10:30:00+00:00")
    assert dispatch.callback is not None
    assert dispatch.callback.url == "https://finch.example/callbacks/op4que"
    assert dispatch.contract_test is (protocol_of(path) == "agenton_v0")
    assert dispatch.envelope == envelope
    if protocol_of(path) == "agenton_v0":
        assert dispatch.facts.finch_task_id == envelope["order"]["billable_entity_id"]
        assert dispatch.facts.offer_id == envelope["agent"]["offer_id"]
        assert dispatch.locale == "zh-CN"
    else:
        assert dispatch.facts.dispatch_id == envelope["dispatch_id"]
        assert dispatch.facts.terms_hash == envelope["terms_hash"]
        assert dispatch.facts.request_hash == envelope["request_hash"]
        assert dispatch.facts.offer_revision == "3"


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("protocol_version", ABSENT, "envelope_invalid"),
        ("protocol_version", "1.0", "protocol_version_unsupported"),
        ("protocol_version", 2.0, "protocol_version_unsupported"),
        ("invocation_id", ABSENT, "envelope_invalid"),
        ("invocation_id", 7, "envelope_invalid"),
        ("invocation_id", "not-a-uuid", "envelope_invalid"),
        ("invocation_id", "ivk_" + "0" * 32, "envelope_invalid"),
        ("interaction_mode", ABSENT, "envelope_invalid"),
        ("interaction_mode", "chat", "interaction_mode_unsupported"),
        ("input", ABSENT, "envelope_invalid"),
        ("input", [], "envelope_invalid"),
        ("input.content", [], "envelope_invalid"),
        ("input.content", [{"type": "text", "text": "x"}] * 101, "envelope_invalid"),
        ("input.content", "text", "envelope_invalid"),
        ("input.content", [{"text": "x"}], "envelope_invalid"),
        ("input.content", [{"type": "text"}], "envelope_invalid"),
        ("input.content", [{"type": "text", "text": "x" * 10_001}], "envelope_invalid"),
        ("input.parameters", [], "envelope_invalid"),
        ("limits.deadline_at", "tomorrow", "envelope_invalid"),
        ("limits.deadline_at", 1790000000, "envelope_invalid"),
        ("quantity", True, "envelope_invalid"),
        ("quantity", "1e3", "envelope_invalid"),
        ("quantity", -1, "envelope_invalid"),
        ("quantity", [1], "envelope_invalid"),
        ("conversation", "x", "envelope_invalid"),
        ("conversation.turn_id", 5, "envelope_invalid"),
        ("contract_test", "yes", "envelope_invalid"),
        ("artifact_uploads", {}, "envelope_invalid"),
    ],
)
def test_what_breaks_the_envelope_is_named_by_its_code(path: str, value: object, code: str) -> None:
    assert code_of(changed(turn("finch_v2"), path, value)) == code


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dispatch_id", ABSENT),
        ("quantity", ABSENT),
        ("quantity", None),
        ("terms_hash", None),
        ("limits", ABSENT),
        ("callback", ABSENT),
        ("conversation", ABSENT),
        ("conversation.messages", []),
        ("output_contract", ABSENT),
        ("artifact_uploads", ABSENT),
        ("task_completed", ABSENT),
        ("input.parameters", ABSENT),
        ("input.content", [{"type": "image", "asset": {"any": 1}}]),
        ("input.content", [{"type": "text", "text": "x" * 10_000}] * 100),
        ("input", {"topic": "A form", "pages": 3}),
        ("a_field_of_tomorrow", {"x": None}),
    ],
)
def test_what_is_optional_or_unknown_does_not_break_it(path: str, value: object) -> None:
    assert code_of(changed(turn("finch_v2"), path, value)) == "read"


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("agent", ABSENT, "envelope_invalid"),
        ("agent.interaction_mode", ABSENT, "envelope_invalid"),
        ("agent.interaction_mode", "chat", "interaction_mode_unsupported"),
        ("invocation_id", "cd613e30-d8f1-4adf-91b7-584a2265b1f5", "envelope_invalid"),
        ("order", ABSENT, "read"),
        ("commercial", ABSENT, "read"),
        ("subject", ABSENT, "read"),
    ],
)
def test_the_v0_envelope_has_its_own_required_fields(path: str, value: object, code: str) -> None:
    assert code_of(changed(turn("agenton_v0"), path, value), "agenton_v0") == code


def test_a_form_offers_fields_are_the_parameters() -> None:
    dispatch = read_dispatch(changed(turn("finch_v2"), "input", {"topic": "bees", "contract_test": True}), "finch_v2")
    assert dispatch.parameters == {"topic": "bees", "contract_test": True}
    assert dispatch.text == ""
    assert dispatch.content == ()
    assert dispatch.contract_test is False


def test_text_parts_are_joined_by_newlines_and_other_parts_kept() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "file", "file_id": 1}, {"type": "text", "text": "b"}]
    dispatch = read_dispatch(changed(turn("finch_v2"), "input.content", parts), "finch_v2")
    assert dispatch.text == "a\nb"
    assert list(dispatch.content) == parts


def digest_with(path: str, value: object) -> str:
    return read_dispatch(changed(turn("finch_v2"), path, value), "finch_v2").input_digest


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dispatch_id", "2a9d2e5e-0000-4000-8000-000000000000"),
        ("request_hash", "0x" + "1" * 64),
        ("callback.url", "https://elsewhere.example/"),
        ("limits.deadline_at", "2026-08-24T11:00:00Z"),
        ("artifact_uploads", [{"slot_id": "s"}]),
        ("quantity", 1),
        ("quantity", 1.0),
        ("quantity", "1.00"),
    ],
)
def test_a_repeat_is_the_same_whatever_its_transport_says(path: str, value: object) -> None:
    assert digest_with(path, value) == digest_with("protocol_version", "2.0")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("interaction_mode", "task"),
        ("quantity", 2),
        ("terms_hash", "0x" + "b" * 64),
        ("input.parameters", {"a": 1}),
        ("conversation.messages", []),
    ],
)
def test_a_repeat_with_another_input_is_another_call(path: str, value: object) -> None:
    assert digest_with(path, value) != digest_with("protocol_version", "2.0")


@pytest.mark.parametrize(
    "text",
    ["2026-08-24T10:30:00.000Z", "2026-08-24T10:30:00+00:00", "2026-08-24T12:30:00+02:00", "2026-08-24T10:30:00.0Z"],
)
def test_the_same_instant_in_every_accepted_form(text: str) -> None:
    assert read_instant(text) == 1787567400.0


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-24T10:30:00z",
        "2026-08-24T10:30:00",
        "2026-08-24",
        "2026-W35-1T10:30:00Z",
        "2026-08-24T24:00:00Z",
        "2026-08-24T10:30:60Z",
        "2026-02-30T10:30:00Z",
        "2026-08-24 10:30:00Z",
        "20260824T103000Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2026-08-24T10:30:00+99:99",
        "２０２６-08-24T10:30:00Z",
        "2026-08-24T10:30:00Z\n",
        "",
    ],
)
def test_an_instant_without_zone_or_moment_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_instant(text)
    assert caught.value.code == "envelope_invalid"


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (None, ""),
        (1, "1"),
        ("1", "1"),
        (1.0, "1"),
        ("1.50", "1.5"),
        (2.5, "2.5"),
        ("0010", "10"),
        (1e3, "1000"),
        (0, "0"),
    ],
)
def test_a_quantity_has_one_text(quantity: object, text: str) -> None:
    assert read_quantity(quantity) == text  # type: ignore[arg-type]
