"""Both dispatch envelopes as Finch composes them: one call, two forms, the mode's fragment at the root (wire 4.1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from .signer import WireProtocol

Mode = Literal["conversation_turn", "task", "generation"]
JsonObject = dict[str, Any]

CONTRACT_TEST_TEXT = "Describe your capabilities."
"""The text of Finch's connection test (wire 4.6, 11.1)."""

_IMAGE_BYTES = 5 * 1024 * 1024
_UPLOAD_GRACE_S = 300


@dataclass(frozen=True, slots=True)
class Sale:
    """What was bought, the same in every call of it."""

    service_version_id: str
    offer_id: str
    order_id: str
    finch_task_id: str
    agent_id: str
    user_id: str
    terms_hash: str = "0x" + "aa" * 32
    offer_revision: int = 3

    @classmethod
    def invented(cls, new_uuid: Callable[[], UUID], service_version_id: str = "") -> Sale:
        """Return a sale with fresh ids, of the service version a credential is bound to, if any (wire 1.13)."""
        return cls(
            service_version_id=service_version_id or str(new_uuid()),
            offer_id=str(new_uuid()),
            order_id=str(new_uuid()),
            finch_task_id=str(new_uuid()),
            agent_id=str(new_uuid()),
            user_id=f"usr_{new_uuid().hex[:16]}",
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an artifact may be uploaded (wire 8.1)."""

    slot_id: str
    asset_id: str
    put_url: str


@dataclass(frozen=True, slots=True)
class Call:
    """One logical call for work; `dispatch_id` and `deadline` belong to the attempt, the rest to the call."""

    wire_protocol: WireProtocol
    sale: Sale
    invocation_id: str
    dispatch_id: str
    callback_key_id: str
    deadline: float
    text: str
    mode: Mode = "conversation_turn"
    conversation_id: str = ""
    turn_id: str = ""
    message_id: str = ""
    history: tuple[JsonObject, ...] = ()
    contract_test: bool = False
    slots: tuple[Slot, ...] = ()
    max_artifacts: int = 1
    callback_url: str = "https://finch.example/callbacks/op4que"  # empty: the envelope names no callback
    protocol_version: str = "2.0"
    parameters: JsonObject = field(default_factory=dict)


def new_invocation_id(wire_protocol: WireProtocol, new_uuid: Callable[[], UUID]) -> str:
    """Return a fresh invocation id of the wire protocol's form."""
    return str(new_uuid()) if wire_protocol == "finch_v2" else f"ivk_{new_uuid().hex}"


def envelope_of(call: Call) -> JsonObject:
    """Return the envelope that carries a call."""
    head = _finch_v2(call) if call.wire_protocol == "finch_v2" else _agenton_v0(call)
    return {**head, **_fragment(call)}


def encode(envelope: JsonObject) -> bytes:
    """Return the bytes that are hashed, signed and sent."""
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def user_message(message_id: str, text: str) -> JsonObject:
    """Return a turn of the buyer as it stands in `conversation.messages`."""
    return {"message_id": message_id, "role": "user", "content": _text(text)}


def agent_message(message_id: str, text: str) -> JsonObject:
    """Return an earlier answer as it stands in `conversation.messages`."""
    return {"message_id": message_id, "role": "agent", "content": _text(text)}


def message_of(finch_task_id: str, text: str) -> JsonObject:
    """Return the body of a supplemental message; `task_id` is Finch's own, not the provider's (wire 6.4)."""
    return {
        "protocol_version": "2.0",
        "task_id": finch_task_id,
        "message": {"role": "user", "content": _text(text)},
    }


def cancel_of(reason: str) -> JsonObject:
    """Return the body of a cancel (wire 3)."""
    return {"protocol_version": "2.0", "reason": reason}


def instant(seconds: float) -> str:
    """Return a time as Finch writes it: UTC, milliseconds, `Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _finch_v2(call: Call) -> JsonObject:
    flag: JsonObject = {"contract_test": True} if call.contract_test else {}
    return {
        "protocol_version": call.protocol_version,
        "invocation_id": call.invocation_id,
        **flag,
        "dispatch_id": call.dispatch_id,
        "service_version_id": call.sale.service_version_id,
        "offer_id": call.sale.offer_id,
        "offer_revision": call.sale.offer_revision,
        "interaction_mode": call.mode,
        "quantity": "1",
        "terms_hash": call.sale.terms_hash,
        "request_hash": "0x" + hashlib.sha256(encode(_input(call))).hexdigest(),
        **_callback(call),
        "limits": {"deadline_at": instant(call.deadline)},
    }


def _agenton_v0(call: Call) -> JsonObject:
    flag: JsonObject = {"contract_test": True} if call.contract_test else {}
    sale = call.sale
    return {
        "protocol_version": call.protocol_version,
        "invocation_id": call.invocation_id,
        **flag,
        "order": {
            "order_id": sale.order_id,
            "billable_entity_type": "task",
            "billable_entity_id": sale.finch_task_id,
        },
        "agent": {
            "agent_id": sale.agent_id,
            "version": "1",
            "offer_id": sale.offer_id,
            "interaction_mode": call.mode,
        },
        "commercial": {
            "pricing_version": 1,
            "model": "per_completed_task",
            "currency": "USDC",
            "unit": "completed_task",
            "unit_price_micro_usdc": 0,
            "quantity": 1,
            "authorized_amount_micro_usdc": 0,
        },
        "subject": {"user_id": sale.user_id, "locale": "zh-CN"},
        **_callback(call),
        "limits": {"deadline_at": instant(call.deadline)},
    }


def _fragment(call: Call) -> JsonObject:
    turn: JsonObject = {}
    if call.mode == "conversation_turn":
        turn = {
            "conversation": {
                "conversation_id": call.conversation_id,
                "turn_id": call.turn_id,
                "context_mode": "platform_managed",
                "messages": [*call.history, user_message(call.message_id, call.text)],
            },
            "task_completed": False,
        }
    return {
        **turn,
        "input": _input(call),
        "output_contract": {"artifacts": _artifact_contract(call)},
        "artifact_uploads": [_slot(slot, call.deadline) for slot in call.slots],
    }


def _callback(call: Call) -> JsonObject:
    if not call.callback_url:
        return {}
    return {"callback": {"url": call.callback_url, "callback_key_id": call.callback_key_id}}


def _input(call: Call) -> JsonObject:
    return {"content": _text(call.text), "parameters": call.parameters}


def _artifact_contract(call: Call) -> JsonObject:
    # A text-only offer sends zeros, not an absent contract (wire 4.8).
    size = _IMAGE_BYTES if call.max_artifacts else 0
    return {
        "min_items": 1 if call.mode == "generation" else 0,
        "max_items": call.max_artifacts,
        "allowed_media_types": ["image/png"] if call.max_artifacts else [],
        "max_bytes_per_asset": size,
        "max_total_bytes": size,
    }


def _slot(slot: Slot, deadline: float) -> JsonObject:
    return {
        "slot_id": slot.slot_id,
        "asset_id": slot.asset_id,
        "put_url": slot.put_url,
        "allowed_media_types": ["image/png"],
        "max_bytes": _IMAGE_BYTES,
        "expected_kind": "image",
        "expires_at": instant(deadline + _UPLOAD_GRACE_S),
    }


def _text(text: str) -> list[JsonObject]:
    return [{"type": "text", "text": text}]
