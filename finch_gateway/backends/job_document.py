"""A job as one JSON document for an agent in another process, and that agent's answer read back strictly.

docs/http-backend.schema.json says the same in JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import Annotated, Any, Literal

import msgspec

from ..errors import Refusal
from ..job import MAX_QUESTION_CHARS, Job, JobFailed, NeedInput, Question, Reply
from ..wire.documents import read_object
from ..wire.replies import MAX_MESSAGE_CHARS


class AnswerInvalid(Exception):
    """The agent's answer does not have the documented form; holds nothing of what was answered."""


class _Part(msgspec.Struct, forbid_unknown_fields=True, tag_field="type"):
    pass


class _Text(_Part, tag="text"):
    text: str


class _JsonPart(_Part, tag="json"):
    json: Any


class _Completed(msgspec.Struct, forbid_unknown_fields=True):
    status: Literal["completed"] = "completed"
    text: str | msgspec.UnsetType = msgspec.UNSET
    content: Annotated[list[_Text | _JsonPart], msgspec.Meta(min_length=1)] | msgspec.UnsetType = msgspec.UNSET


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    question: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_QUESTION_CHARS)]


class _InputRequired(msgspec.Struct, forbid_unknown_fields=True):
    status: Literal["input_required"]
    questions: Annotated[list[_Question], msgspec.Meta(min_length=1, max_length=100)]
    state: Any = None


class _Error(msgspec.Struct, forbid_unknown_fields=True):
    code: Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9_]{0,63}\Z")]
    message: Annotated[str, msgspec.Meta(max_length=MAX_MESSAGE_CHARS)] = ""


class _Failed(msgspec.Struct, forbid_unknown_fields=True):
    status: Literal["failed"]
    error: _Error


_FORMS: Mapping[str, type[_Completed | _InputRequired | _Failed]] = {
    "completed": _Completed,
    "input_required": _InputRequired,
    "failed": _Failed,
}


def job_document(job: Job) -> dict[str, Any]:
    """Return the job as the agent reads it; what there is none of is left out, never null."""
    document: dict[str, Any] = {
        "listing": job.listing,
        "mode": job.mode,
        "invocation_id": job.invocation_id,
        "conversation_id": job.conversation_id,
        "turn_id": job.turn_id,
        "text": job.text,
        "content": list(job.content),
        "parameters": dict(job.parameters),
        "conversation": list(job.conversation),
        "quantity": job.quantity,
        "locale": job.locale,
        "attempt": job.attempt,
        "deadline": deadline_text(job),
        "contract_test": job.contract_test,
        "output": dict(job.output),
        "answers": dict(job.answers),
    }
    if job.task_id:
        document["task_id"] = job.task_id
    if job.resume is not None:
        document["state"] = job.resume
    return document


def deadline_text(job: Job) -> str:
    """Return the job's deadline as ISO 8601 in UTC with milliseconds."""
    return job.deadline.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_answer(body: bytes) -> Reply | NeedInput:
    """Return what the agent answered; raise the `JobFailed` that it reports, or `AnswerInvalid`."""
    try:
        document = read_object(body)
        status = document.get("status", "completed")
        form = _FORMS.get(status) if isinstance(status, str) else None
        if form is None:
            raise AnswerInvalid("the answer has a status that the contract does not know")
        answer = msgspec.convert(document, form)
    except Refusal as error:
        raise AnswerInvalid(f"the answer is no JSON object ({error.reason})") from None
    except msgspec.ValidationError as error:
        raise AnswerInvalid(f"the answer is not valid: {_reason(error)}") from None
    match answer:
        case _Failed():
            raise JobFailed(answer.error.code, answer.error.message)
        case _InputRequired():
            return _questions(answer)
        case _Completed():
            return _reply(answer)


def _reply(answer: _Completed) -> Reply:
    if (answer.text is msgspec.UNSET) == (answer.content is msgspec.UNSET):
        raise AnswerInvalid("a completed answer has either text or content")
    return Reply.of(answer.text if answer.content is msgspec.UNSET else msgspec.to_builtins(answer.content))


def _questions(answer: _InputRequired) -> NeedInput:
    if len({question.id for question in answer.questions}) != len(answer.questions):
        raise AnswerInvalid("the answer asks two questions under one id")
    return NeedInput(tuple(Question(asked.id, asked.question) for asked in answer.questions), answer.state)


def _reason(error: msgspec.ValidationError) -> str:
    """Return msgspec's sentence without the two kinds that repeat what was sent: unknown names and values."""
    text, _, place = str(error).partition(" - at ")
    if text.startswith("Object contains unknown field"):
        text = "Object contains a field that this status does not have"
    if text.startswith("Invalid value"):
        text = "Invalid value"
    return f"{text} at {place}" if place else text
