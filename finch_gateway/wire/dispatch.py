"""Both dispatch envelopes read into one value (wire 4): the rest of the gateway never sees which it was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, cast

import msgspec

from ..errors import Refusal
from .documents import Json, JsonObject, digest, read_object, write_text
from .envelopes import AgentOnV0, CallbackForm, Common, ConversationForm, FinchV2, Form
from .secrets import WireProtocol

Mode = Literal["conversation_turn", "task", "generation"]
MODES: tuple[Mode, ...] = ("conversation_turn", "task", "generation")
PROTOCOL_VERSION = "2.0"
MAX_PARTS = 100
MAX_PART_CHARS = 10_000
PROBE_TEXT = "Describe your capabilities."
"""The text of Finch's connection test (wire 4.6, 11.1)."""

_INVOCATION_ID = {
    "finch_v2": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "agenton_v0": re.compile(r"ivk_[0-9a-f]{32}"),
}
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)
_QUANTITY = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?", re.ASCII)


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ids and hashes of the sale, stored with every turn and task (wire 4.2)."""

    dispatch_id: str = ""
    service_version_id: str = ""
    offer_id: str = ""
    offer_revision: str = ""
    terms_hash: str = ""
    request_hash: str = ""
    finch_task_id: str = ""

    def to_bytes(self) -> bytes:
        """Return the facts as JSON; what was not sent is left out."""
        return write_text(self)


class Conversation(msgspec.Struct, frozen=True):
    """The conversation a turn belongs to; an id that was not sent is empty."""

    conversation_id: str = ""
    turn_id: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


class Callback(msgspec.Struct, frozen=True):
    """Where Finch wants a task's events, and the credential they are signed under (wire 7.1)."""

    url: str
    callback_key_id: str


class Dispatch(msgspec.Struct, frozen=True):
    """One call for work, whichever wire protocol carried it (wire 4.1).

    `deadline` is in seconds since the epoch, None where the envelope names none. `contract_test` is the
    envelope's own flag and nothing else (wire 4.6). `input_digest` decides whether a repeat is the same
    call (wire 5.2).
    """

    wire_protocol: WireProtocol
    invocation_id: str
    mode: Mode
    facts: Facts
    quantity: str
    deadline: float | None
    callback: Callback | None
    conversation: Conversation
    input: Mapping[str, Any]
    content: tuple[Mapping[str, Any], ...]
    text: str
    parameters: Mapping[str, Any]
    task_completed: bool
    contract_test: bool
    locale: str
    output: Mapping[str, Any]
    input_digest: str
    envelope: Mapping[str, Any]


def read_dispatch(body: bytes, wire_protocol: WireProtocol) -> Dispatch:
    """Return the dispatch that `body` holds; raise `Refusal` with a code of wire 2.3 when it is not one."""
    envelope = read_object(body)
    _check_version(envelope)
    if wire_protocol == "finch_v2":
        v2 = _convert(envelope, FinchV2)
        facts = Facts(
            dispatch_id=v2.dispatch_id or "",
            service_version_id=v2.service_version_id or "",
            offer_id=v2.offer_id or "",
            offer_revision=_text(v2.offer_revision),
            terms_hash=v2.terms_hash or "",
            request_hash=v2.request_hash or "",
        )
        return _dispatch(v2, envelope, wire_protocol, v2.interaction_mode, v2.quantity, facts, "")
    v0 = _convert(envelope, AgentOnV0)
    facts = Facts(
        offer_id=v0.agent.offer_id or "",
        offer_revision=_text(v0.commercial.pricing_version) if v0.commercial else "",
        finch_task_id=(v0.order.billable_entity_id or "") if v0.order else "",
    )
    quantity = v0.commercial.quantity if v0.commercial else None
    locale = (v0.subject.locale or "") if v0.subject else ""
    return _dispatch(v0, envelope, wire_protocol, v0.agent.interaction_mode, quantity, facts, locale)


def _dispatch(
    fields: Common,
    envelope: JsonObject,
    wire_protocol: WireProtocol,
    mode: str,
    quantity: int | float | str | None,
    facts: Facts,
    locale: str,
) -> Dispatch:
    if not _INVOCATION_ID[wire_protocol].fullmatch(fields.invocation_id):
        raise _invalid("invocation_id does not have this wire protocol's form")
    if mode not in MODES:
        raise Refusal("interaction_mode_unsupported", reason="mode_unknown")
    content, parameters = _read_input(fields.input)
    amount = read_quantity(quantity)
    conversation = fields.conversation or ConversationForm()
    return Dispatch(
        wire_protocol=wire_protocol,
        invocation_id=fields.invocation_id,
        mode=mode,
        facts=facts,
        quantity=amount,
        deadline=read_instant(fields.limits.deadline_at) if fields.limits and fields.limits.deadline_at else None,
        callback=_read_callback(fields.callback),
        conversation=Conversation(
            conversation.conversation_id or "", conversation.turn_id or "", tuple(conversation.messages or ())
        ),
        input=fields.input,
        content=content,
        text=_joined(content),
        parameters=parameters,
        task_completed=bool(fields.task_completed),
        contract_test=fields.contract_test is True,
        locale=locale,
        output=cast("Mapping[str, Any]", envelope.get("output_contract") or {}),
        input_digest=digest([mode, envelope["input"], envelope.get("conversation"), amount, facts.terms_hash]),
        envelope=envelope,
    )


def read_message(body: bytes) -> str:
    """Return the text of a supplemental message, its text parts joined by newlines (wire 6.4); raise `Refusal`.

    The body's `task_id` is Finch's own and is not matched against ours.
    """
    envelope = read_object(body)
    _check_version(envelope)
    message = envelope.get("message")
    if not isinstance(message, dict) or "content" not in message:
        raise _invalid("message must be an object with content")
    content, _ = _read_input(cast("dict[str, Any]", {"content": message["content"]}), "message")
    return _joined(content)


def read_cancel(body: bytes) -> str:
    """Return a cancel's reason, empty where there is none; an empty body is accepted (wire 2.3); raise `Refusal`."""
    if not body:
        return ""
    envelope = read_object(body)
    _check_version(envelope)
    reason = envelope.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise _invalid("reason must be a text")
    return reason or ""


def with_input(dispatch: Dispatch, fields: Mapping[str, Any]) -> Dispatch:
    """Return the dispatch with the input of an earlier turn in its place (wire 5.4)."""
    content, parameters = _read_input(dict(fields))
    return msgspec.structs.replace(
        dispatch, input=fields, content=content, text=_joined(content), parameters=parameters
    )


def read_instant(text: str) -> float:
    """Return an ISO 8601 instant with offset or `Z` as seconds since the epoch (wire 4.4); raise `Refusal`."""
    if _INSTANT.fullmatch(text):
        try:
            return datetime.fromisoformat(text).astimezone(UTC).timestamp()
        except (ValueError, OverflowError):
            pass  # a form without a moment behind it, such as hour 24: refused below like any other
    raise _invalid("limits.deadline_at must be an ISO 8601 time with Z or an offset")


def read_quantity(quantity: int | float | str | None) -> str:
    """Return a quantity as plain decimal text, so that 1, 1.0 and "1.00" are one value (wire 4.2, 5.2)."""
    if quantity is None:
        return ""
    if type(quantity) is int and quantity >= 0:
        return str(quantity)
    text = quantity if isinstance(quantity, str) else repr(quantity)
    try:
        if isinstance(quantity, str) and not _QUANTITY.fullmatch(text):
            raise _invalid("quantity must be a number or a decimal string")
        number = Decimal(text)
        if number < 0 or number.adjusted() > 60:
            raise _invalid("quantity is out of range")
    except (InvalidOperation, ValueError) as error:
        raise _invalid("quantity must be a number or a decimal string") from error
    plain = f"{abs(number):f}"  # zero has a sign, too
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _check_version(envelope: JsonObject) -> None:
    version = envelope.get("protocol_version")
    if version is None:
        raise _invalid("protocol_version is missing")
    if version != PROTOCOL_VERSION:
        raise Refusal("protocol_version_unsupported")


def _read_input(
    fields: dict[str, Any], where: str = "input"
) -> tuple[tuple[Mapping[str, Any], ...], Mapping[str, Any]]:
    """Split the turn's input into content parts and parameters (wire 4.3)."""
    if "content" not in fields:
        return (), fields
    parts = fields["content"]
    if not isinstance(parts, list) or not 1 <= len(parts) <= MAX_PARTS:
        raise _invalid(f"{where}.content must be a list of 1 to {MAX_PARTS} parts")
    for part in parts:
        _check_part(part, where)
    parameters = fields.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise _invalid("input.parameters must be an object")
    return tuple(parts), parameters


def _joined(content: tuple[Mapping[str, Any], ...]) -> str:
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _check_part(part: Json, where: str) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _invalid(f"each part of {where}.content must be an object with a type")
    if part["type"] != "text":
        return
    text = part.get("text")
    if not isinstance(text, str) or len(text) > MAX_PART_CHARS:
        raise _invalid(f"a text part of {where}.content must hold a text of up to {MAX_PART_CHARS} characters")


def _read_callback(fields: CallbackForm | None) -> Callback | None:
    if fields is None or not fields.url:
        return None
    return Callback(fields.url, fields.callback_key_id or "")


def _convert(envelope: JsonObject, form: type[Form]) -> Form:
    try:
        return msgspec.convert(envelope, form)
    except msgspec.ValidationError as error:
        # msgspec's sentence names our own fields and types only, never a value that was sent.
        raise Refusal("envelope_invalid", detail=f"The envelope is not valid: {error}") from error


def _text(value: int | str | None) -> str:
    return "" if value is None else str(value)


def _invalid(message: str) -> Refusal:
    return Refusal("envelope_invalid", detail=f"The envelope is not valid: {message}.")
