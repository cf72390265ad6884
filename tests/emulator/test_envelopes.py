"""The envelopes the emulator sends have the shape of the independent samples, key for key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from finch_gateway.emulator.envelopes import (
    Call,
    Sale,
    Slot,
    agent_message,
    encode,
    envelope_of,
    instant,
    new_invocation_id,
    user_message,
)

ENVELOPES = Path(__file__).parents[1] / "vectors" / "envelopes"
SAMPLES = sorted(path.stem for path in ENVELOPES.glob("*.json"))
DEADLINE = 1_787_567_400.0


def call_like(sample: dict[str, Any], name: str) -> Call:
    wire_protocol, mode = name.split("-")
    v2 = wire_protocol == "finch_v2"
    return Call(
        wire_protocol=wire_protocol,
        sale=Sale.invented(uuid4),
        invocation_id=new_invocation_id(wire_protocol, uuid4),
        dispatch_id=str(uuid4()),
        callback_key_id="finch.agenton.7a0e7e0c-3c0e-4f43-9d39-0d6c3a2f1b10" if v2 else "eav_0123456789abcdef",
        deadline=DEADLINE,
        text="Summarize this report.",
        mode=mode,
        conversation_id=str(uuid4()),
        turn_id=str(uuid4()),
        message_id=str(uuid4()),
        contract_test="contract_test" in sample,
        slots=tuple(
            Slot(str(uuid4()), str(uuid4()), "https://uploads.finch.example/1") for _ in sample["artifact_uploads"]
        ),
    )


def shape(value: object) -> object:
    """Return a value's keys and types."""
    if isinstance(value, dict):
        return {name: shape(child) for name, child in value.items()}
    if isinstance(value, list):
        return [shape(child) for child in value]
    return type(value).__name__


@pytest.mark.parametrize("name", SAMPLES)
def test_an_envelope_has_the_samples_keys_and_types(name: str) -> None:
    sample = json.loads((ENVELOPES / f"{name}.json").read_text("utf-8"))
    made = json.loads(encode(envelope_of(call_like(sample, name))))
    assert shape(made) == shape(sample)


@pytest.mark.parametrize("name", SAMPLES)
def test_what_names_no_id_is_the_samples_own_value(name: str) -> None:
    sample = json.loads((ENVELOPES / f"{name}.json").read_text("utf-8"))
    made = envelope_of(call_like(sample, name))
    for field in ("protocol_version", "interaction_mode", "quantity", "terms_hash", "callback", "limits", "input"):
        assert made.get(field) == sample.get(field)
    assert made["output_contract"] == sample["output_contract"]
    assert made.get("commercial") == sample.get("commercial")


def test_ids_have_their_protocols_form() -> None:
    assert len(new_invocation_id("finch_v2", uuid4)) == 36
    assert new_invocation_id("agenton_v0", uuid4).startswith("ivk_")
    assert len(new_invocation_id("agenton_v0", uuid4)) == 36


def test_a_text_only_offer_sends_zeros() -> None:
    sample = json.loads((ENVELOPES / "finch_v2-conversation_turn.json").read_text("utf-8"))
    call = replace(call_like(sample, "finch_v2-conversation_turn"), max_artifacts=0)
    assert envelope_of(call)["output_contract"]["artifacts"] == {
        "min_items": 0,
        "max_items": 0,
        "allowed_media_types": [],
        "max_bytes_per_asset": 0,
        "max_total_bytes": 0,
    }


def test_a_conversation_carries_its_history_before_the_turn() -> None:
    sample = json.loads((ENVELOPES / "finch_v2-conversation_turn.json").read_text("utf-8"))
    history = (user_message("m-1", "Hello"), agent_message("m-2", "Hello yourself"))
    call = replace(call_like(sample, "finch_v2-conversation_turn"), history=history)
    roles = [message["role"] for message in envelope_of(call)["conversation"]["messages"]]
    assert roles == ["user", "agent", "user"]


def test_a_bound_credential_names_its_service_version() -> None:
    assert Sale.invented(uuid4, "v-7").service_version_id == "v-7"


def test_an_instant_is_written_in_utc_with_milliseconds() -> None:
    assert instant(DEADLINE) == "2026-08-24T10:30:00.000Z"
