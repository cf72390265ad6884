"""Jobs to hand to a backend, with a port that keeps what the agent reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from finch_gateway.job import Job


@dataclass(slots=True)
class RecordingPort:
    """The engine's side of a job, for a test: remembers every call."""

    reported: list[tuple[int | None, str | None]] = field(default_factory=list)
    saved: list[Any] = field(default_factory=list)

    async def progress(self, percent: int | None, stage: str | None) -> None:
        self.reported.append((percent, stage))

    async def save(self, state: Any) -> None:
        self.saved.append(state)


def make_job(text: str = "", *, deadline_s: float = 30.0, **changes: Any) -> Job:
    """Return a P1 job with this text; any field can be given another value."""
    fields: dict[str, Any] = {
        "listing": "writer",
        "mode": "conversation_turn",
        "text": text,
        "content": ({"type": "text", "text": text},),
        "parameters": {},
        "conversation": (),
        "conversation_id": "conversation-1",
        "turn_id": "turn-1",
        "invocation_id": "6f3f1c1e-0000-4000-8000-000000000001",
        "quantity": "1",
        "attempt": 1,
        "deadline": datetime.now(UTC) + timedelta(seconds=deadline_s),
        "contract_test": False,
        "locale": "",
        "output": {},
        "_envelope": {},
        "port": RecordingPort(),
    }
    return Job(**{**fields, **changes})
