"""What an agent sees: one piece of work, what it may do with it, and what it hands back."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from .wire.dispatch import Dispatch

_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
MAX_QUESTION_CHARS = 10_000
MAX_QUESTION_ID_CHARS = 256


def _check_text(name: str, text: object) -> None:
    """Raise `TypeError` or `ValueError` for what cannot leave as a text: no `str`, or one with lone surrogates."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is a str, not {type(text).__name__}")
    text.encode()


class JobFailed(Exception):
    """A failure the buyer may read: a snake_case `code` and an optional safe `message`.

    Anything else an agent raises reaches the buyer as `agent_error`, with nothing of it shown.
    """

    def __init__(self, code: str, message: str = "") -> None:
        _check_text("message", message)
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise ValueError("a failure code is snake_case: a letter, then up to 63 letters, digits or underscores")
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Reply:
    """What the buyer receives: content parts `{"type":"text","text":…}` or `{"type":"json","json":…}` (wire 5.1)."""

    content: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        # A backend or an agent may have put anything there; only what the wire knows leaves.
        content: object = self.content
        if isinstance(content, str | bytes) or not isinstance(content, Sequence) or not content:
            raise TypeError("a reply's content is a list of one part or more")
        object.__setattr__(self, "content", tuple(_part(part) for part in content))

    @classmethod
    def of(cls, value: object) -> Reply:
        """Return what an agent handed back as a reply: a `str`, a `dict` (JSON), a list of parts, or a `Reply`.

        Raises `TypeError` for anything else, an unknown part or an empty reply.
        """
        # What nearly every agent returns, before the slower looks at abstract types.
        if isinstance(value, str):
            return cls(({"type": "text", "text": value},))
        if isinstance(value, Reply):
            return value
        if isinstance(value, Mapping):
            return cls(({"type": "json", "json": dict(value)},))
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray) and value:
            return cls(tuple(value))
        raise TypeError(f"an agent returns str, dict, a list of parts or Reply, not {type(value).__name__}")


def _part(part: object) -> Mapping[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping):
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        if part.get("type") == "json" and "json" in part:
            return {"type": "json", "json": part["json"]}
    raise TypeError('a reply part is a str, {"type": "text", "text": …} or {"type": "json", "json": …}')


@dataclass(frozen=True, slots=True)
class Question:
    """One question to the buyer (wire 5.1): an id of 1 to 256 and a text of 1 to 10,000 characters."""

    id: str
    question: str

    def __post_init__(self) -> None:
        _check_text("a question's id", self.id)
        _check_text("a question", self.question)
        if not 1 <= len(self.id) <= MAX_QUESTION_ID_CHARS or not 1 <= len(self.question) <= MAX_QUESTION_CHARS:
            raise ValueError(
                f"a question has an id of 1 to {MAX_QUESTION_ID_CHARS} characters "
                f"and a text of 1 to {MAX_QUESTION_CHARS}"
            )


@dataclass(frozen=True, slots=True)
class NeedInput:
    """The work cannot go on before the buyer answers; `state` (JSON) comes back with the answers."""

    questions: tuple[Question, ...]
    state: Any = None


class Asked(BaseException):
    """Leaves an agent's function when it asks a question that has no answer yet.

    A `BaseException`, so that an agent's `except Exception` does not swallow it; inside a `TaskGroup` it
    arrives in a `BaseExceptionGroup`.
    """


class JobPort(Protocol):
    """The engine's side of a running job; every method may be awaited on the engine's event loop only."""

    async def progress(self, percent: int | None, stage: str | None) -> None: ...

    async def save(self, state: Any) -> None: ...


@dataclass(slots=True)
class Job:
    """One piece of work as the agent sees it.

    `text` holds the text parts joined by newlines, `content` every part, `parameters` the form's fields.
    `deadline` is an aware time in UTC. `attempt` counts from 1 and grows when a crash makes the agent run
    again. `answers` holds the buyer's answers so far by question id, `state` what was last saved, `resume`
    the `state` of the `NeedInput` that these answers belong to.
    """

    listing: str
    mode: str
    text: str
    content: tuple[Mapping[str, Any], ...]
    parameters: Mapping[str, Any]
    conversation: tuple[Mapping[str, Any], ...]
    conversation_id: str
    turn_id: str
    invocation_id: str
    quantity: str
    attempt: int
    deadline: datetime
    contract_test: bool
    locale: str
    output: Mapping[str, Any]
    _envelope: Mapping[str, Any] = field(repr=False)
    port: JobPort = field(repr=False)
    task_id: str = ""
    state: Any = None
    resume: Any = None
    answers: Mapping[str, str] = field(default_factory=dict)
    _asked: dict[str, Question] = field(default_factory=dict, repr=False)
    _folder: Path | None = field(default=None, repr=False)

    async def progress(self, percent: float | None = None, stage: str | None = None) -> None:
        """Report progress, 0 to 100 whole percent (a fraction is cut off) and a short stage.

        Shown where the mode has a place for it. Raises `TypeError` or `ValueError` for anything else.
        """
        if percent is not None:
            if isinstance(percent, bool) or not isinstance(percent, int | float):
                raise TypeError(f"percent is a number, not {type(percent).__name__}")
            if not 0 <= percent <= 100:
                raise ValueError("percent is 0 to 100")
            percent = int(percent)
        if stage is not None:
            _check_text("stage", stage)
        await self.port.progress(percent, stage)

    async def ask(self, id: str, question: str) -> str:  # noqa: A002 - the wire's own name (wire 5.1)
        """Return the buyer's answer to `question`.

        Without one the agent's function is left here and nothing stays in memory; when the answer comes the
        function runs again from the top, and what was answered is returned at once. Asking one id twice in a
        run raises `ValueError`.
        """
        asked = Question(id, question)
        if id in self._asked:
            raise ValueError(f"the question {id!r} was asked twice in one run")
        self._asked[id] = asked
        if id in self.answers:
            return self.answers[id]
        raise Asked

    async def save(self, state: Any) -> None:
        """Keep `state` (JSON) durably: it is `job.state` when the agent runs again after a crash or a question."""
        await self.port.save(state)
        self.state = state

    @property
    def dispatch(self) -> Mapping[str, Any]:
        """The whole envelope as a copy of the agent's own, without what only the gateway may use.

        That is the callback and the upload URLs: whoever has them can speak for this provider.
        """
        copy = deepcopy(dict(self._envelope))
        copy.pop("callback", None)
        uploads = copy.get("artifact_uploads")
        for slot in uploads if isinstance(uploads, list) else ():
            slot.pop("put_url", None)
        return copy

    @property
    def folder(self) -> Path:
        """A private directory of this run, made on first use and removed when the run ends."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="finch-job-"))
        return self._folder

    @property
    def open_questions(self) -> tuple[Question, ...]:
        """The questions asked in this run that have no answer yet."""
        return tuple(question for asked, question in self._asked.items() if asked not in self.answers)

    def discard_folder(self) -> None:
        """Remove the job's directory, if one was made."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def job_of(
    dispatch: Dispatch,
    port: JobPort,
    *,
    listing: str,
    attempt: int,
    deadline: float,
    contract_test: bool,
    task_id: str = "",
    state: Any = None,
    resume: Any = None,
    answers: Mapping[str, str] | None = None,
) -> Job:
    """Return the job that a dispatch asks for; `deadline` is in seconds since the epoch."""
    return Job(
        listing=listing,
        mode=dispatch.mode,
        text=dispatch.text,
        content=dispatch.content,
        parameters=dispatch.parameters,
        conversation=dispatch.conversation.messages,
        conversation_id=dispatch.conversation.conversation_id,
        turn_id=dispatch.conversation.turn_id,
        invocation_id=dispatch.invocation_id,
        quantity=dispatch.quantity,
        attempt=attempt,
        deadline=datetime.fromtimestamp(deadline, UTC),
        contract_test=contract_test,
        locale=dispatch.locale,
        output=dispatch.output,
        _envelope=dispatch.envelope,
        port=port,
        task_id=task_id,
        state=state,
        resume=resume,
        answers=answers or {},
    )
