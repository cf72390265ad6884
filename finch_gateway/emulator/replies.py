"""What Finch finds wrong with a P1 reply, and with the parts that a task shares with it (wire 5.1)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_INSTANT = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_CODE = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_COMMON = ("protocol_version", "invocation_id", "status")
_FIELDS_BY_STATUS = {
    "completed": (*_COMMON, "message", "artifacts", "completed_at"),
    "input_required": (*_COMMON, "questions"),
    "failed": (*_COMMON, "error"),
}
_ABSENT = object()
_ARTIFACT = ("slot_id", "asset_id", "sha256", "bytes", "filename")


class NotJson(ValueError):
    """Bytes that are not one JSON document as every reader understands it."""


def read_json(body: bytes) -> Any:
    """Return the JSON document that `body` is; raise `NotJson` for repeated keys, NaN and the like too."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(items)
        if len(fields) != len(items):
            raise NotJson("an object repeats a key")
        return fields

    def constant(name: str) -> Any:
        raise NotJson(f"{name} is no JSON number")

    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except NotJson:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson("the body is not JSON in UTF-8") from error


def status_of(body: bytes) -> str:
    """Return a reply's `status`, or an empty text where there is none to read."""
    try:
        value = read_json(body)
    except NotJson:
        return ""
    status = value.get("status") if isinstance(value, dict) else None
    return status if isinstance(status, str) else ""


def questions_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts of a reply's or a snapshot's open questions."""
    questions = document.get("questions")
    found = questions if isinstance(questions, list) else []
    return tuple(str(question.get("question", "")) for question in found if isinstance(question, dict))


def failure_of(document: Mapping[str, Any]) -> tuple[str, str]:
    """Return the code and the message of something that failed; the message may be empty."""
    error = document.get("error")
    if not isinstance(error, dict):
        return "no code", ""
    return str(error.get("code", "no code")), str(error.get("message", ""))


def reply_faults(body: bytes, invocation_id: str) -> list[str]:
    """Return every fault of a P1 reply to the call `invocation_id`, each as one sentence without its texts."""
    try:
        reply = read_json(body)
    except NotJson as error:
        return [str(error)]
    if not isinstance(reply, dict):
        return ["the reply is not an object"]
    return [*_common_faults(reply, invocation_id), *null_faults(reply, "reply"), *_status_faults(reply)]


def _common_faults(reply: dict[str, Any], invocation_id: str) -> Iterator[str]:
    if reply.get("protocol_version") != "2.0":
        yield 'protocol_version is not "2.0"'
    if reply.get("invocation_id") != invocation_id:
        yield "invocation_id is not the request's"


def null_faults(value: object, where: str) -> Iterator[str]:
    """Yield every place of a document that says null (wire 4.5)."""
    if value is None:
        yield f"{where} is null; what is absent is left out"
    elif isinstance(value, dict):
        for name, child in value.items():
            if name == "json" and value.get("type") == "json":
                continue  # the agent's own document may say null
            yield from null_faults(child, f"{where}.{name}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from null_faults(child, f"{where}[{index}]")


def _status_faults(reply: dict[str, Any]) -> Iterator[str]:
    status = reply.get("status")
    if not isinstance(status, str) or status not in _FIELDS_BY_STATUS:
        yield "status is not completed, input_required or failed"
        return
    yield from field_faults(reply, _FIELDS_BY_STATUS[status], "the reply")
    if status == "completed":
        yield from completed_faults(reply)
    elif status == "input_required":
        yield from question_faults(reply.get("questions"))
    else:
        yield from error_faults(reply.get("error"))


def field_faults(
    value: dict[str, Any], fields: Sequence[str], where: str, optional: Sequence[str] = ()
) -> Iterator[str]:
    """Yield what an object lacks of `fields`, and what it has beside them and the `optional` ones."""
    missing, extra = [name for name in fields if name not in value], sorted(set(value) - {*fields, *optional})
    if missing:
        yield f"{where} lacks {', '.join(missing)}"
    if extra:
        yield f"{where} has fields that are not in the contract: {', '.join(extra)}"


def completed_faults(reply: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a result: message, artifacts, and the instant where it is there (wire 5.1)."""
    message = reply.get("message")
    if not isinstance(message, dict):
        yield "message is not an object"
    else:
        yield from field_faults(message, ("role", "content"), "message")
        if message.get("role") != "agent":
            yield 'message.role is not "agent"'
        yield from _content_faults(message.get("content"))
    yield from _artifact_faults(reply.get("artifacts"))
    completed_at = reply.get("completed_at", _ABSENT)
    if completed_at is not _ABSENT and not (isinstance(completed_at, str) and _INSTANT.fullmatch(completed_at)):
        yield "completed_at is not an ISO 8601 instant with Z or an offset"


def _content_faults(content: object) -> Iterator[str]:
    if not isinstance(content, list) or not content:
        yield "message.content is not a list of parts"
        return
    for index, part in enumerate(content):
        where = f"message.content[{index}]"
        if not isinstance(part, dict):
            yield f"{where} is not an object"
        elif part.get("type") == "text":
            yield from field_faults(part, ("type", "text"), where)
            if not isinstance(part.get("text"), str):
                yield f"{where}.text is not a text"
        elif part.get("type") == "json":
            yield from field_faults(part, ("type", "json"), where)
        else:
            yield f"{where}.type is neither text nor json"


def _artifact_faults(artifacts: object) -> Iterator[str]:
    if not isinstance(artifacts, list):
        yield "artifacts is not a list"
        return
    for index, reference in enumerate(artifacts):
        if isinstance(reference, dict):
            yield from field_faults(reference, _ARTIFACT, f"artifacts[{index}]")
        else:
            yield f"artifacts[{index}] is not an object"


def question_faults(questions: object) -> Iterator[str]:
    """Yield what is wrong with open questions (wire 5.1)."""
    if not isinstance(questions, list) or not questions:
        yield "questions is not a list of questions"
        return
    for index, question in enumerate(questions):
        where = f"questions[{index}]"
        if not isinstance(question, dict):
            yield f"{where} is not an object"
            continue
        yield from field_faults(question, ("id", "question"), where)
        if not all(isinstance(question.get(name), str) and question[name] for name in ("id", "question")):
            yield f"{where} needs an id and a question, both texts"


def error_faults(error: object) -> Iterator[str]:
    """Yield what is wrong with the error of something that failed (wire 5.1)."""
    if not isinstance(error, dict):
        yield "error is not an object"
        return
    yield from field_faults(error, ("code", "message") if "message" in error else ("code",), "error")
    if not isinstance(error.get("code"), str) or not _CODE.fullmatch(error["code"]):
        yield "error.code is not snake_case"
    if "message" in error and not isinstance(error["message"], str):
        yield "error.message is not a text"
