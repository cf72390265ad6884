"""What is kept of a conversation while a question is open (wire 5.4)."""

from __future__ import annotations

from typing import Any

import msgspec


class OpenQuestion(msgspec.Struct, frozen=True):
    """The record of an asking turn.

    `ids` are the open questions, `answers` what was answered before, `input` the asking turn's own input,
    `state` what the backend handed over with the question, `saved` what the agent saved.
    """

    ids: list[str]
    answers: dict[str, str]
    input: dict[str, Any]
    state: Any = None
    saved: Any = None

    def answered_by(self, text: str) -> dict[str, str]:
        """Return all answers so far, `text` being the answer to every open question."""
        return {**self.answers, **dict.fromkeys(self.ids, text)}

    def to_bytes(self) -> bytes:
        """Return the record as JSON; raise `ValueError` when the state is not JSON."""
        try:
            return msgspec.json.encode(self)
        except TypeError as error:
            raise ValueError("the question's state is not JSON") from error

    @classmethod
    def from_bytes(cls, record: bytes) -> OpenQuestion:
        return msgspec.json.decode(record, type=cls)
