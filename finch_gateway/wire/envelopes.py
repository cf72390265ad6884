"""The two dispatch envelopes as written on the wire (wire 4.1): what is required, and what is used when present."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec


class Fields(msgspec.Struct):
    """Fields that are used when present; a null counts as absent and unknown fields are ignored (wire 4.2)."""


class CallbackForm(Fields):
    url: str | None = None
    callback_key_id: str | None = None


class Limits(Fields):
    deadline_at: str | None = None


class ConversationForm(Fields):
    conversation_id: str | None = None
    turn_id: str | None = None
    messages: list[dict[str, Any]] | None = None


class ArtifactContract(Fields):
    min_items: int | None = None
    max_items: int | None = None
    allowed_media_types: list[str] | None = None
    max_bytes_per_asset: int | None = None
    max_total_bytes: int | None = None


class OutputContract(Fields):
    artifacts: ArtifactContract | None = None


class Common(Fields):
    invocation_id: str
    input: dict[str, Any]
    limits: Limits | None = None
    callback: CallbackForm | None = None
    conversation: ConversationForm | None = None
    task_completed: bool | None = None
    output_contract: OutputContract | None = None
    artifact_uploads: list[dict[str, Any]] | None = None
    contract_test: bool | None = None


class FinchV2(Common, kw_only=True):
    interaction_mode: str
    dispatch_id: str | None = None
    service_version_id: str | None = None
    offer_id: str | None = None
    offer_revision: int | str | None = None
    quantity: int | float | str | None = None
    terms_hash: str | None = None
    request_hash: str | None = None


class Order(Fields):
    order_id: str | None = None
    billable_entity_id: str | None = None


class Agent(Fields):
    interaction_mode: str
    agent_id: str | None = None
    version: str | int | None = None
    offer_id: str | None = None


class Commercial(Fields):
    pricing_version: int | str | None = None
    quantity: int | float | str | None = None


class Subject(Fields):
    locale: str | None = None


class AgentOnV0(Common, kw_only=True):
    agent: Agent
    order: Order | None = None
    commercial: Commercial | None = None
    subject: Subject | None = None


Form = TypeVar("Form", bound=Common)
