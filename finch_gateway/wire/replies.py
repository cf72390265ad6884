"""What leaves under a signature: P1 replies, error bodies, health (wire 2.3, 3, 4.5, 5.1).

Each function serialises once; these bytes are stored, signed and sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from .dispatch import PROTOCOL_VERSION
from .documents import write, write_text

READY = write({"status": "ready"})
UNAVAILABLE = write({"status": "unavailable"})
MAX_MESSAGE_CHARS = 2_000


def completed(invocation_id: str, content: Sequence[Mapping[str, Any]], completed_at: float) -> bytes:
    """Return the reply of a finished turn; raise `ValueError` where the content is not JSON."""
    # What an agent calls JSON may hold what JSON cannot say; text cannot.
    say = write_text if all(part["type"] == "text" for part in content) else write
    return say(
        {
            **_head(invocation_id, "completed"),
            "message": {"role": "agent", "content": list(content)},
            "artifacts": [],
            "completed_at": instant(completed_at),
        }
    )


def input_required(invocation_id: str, questions: Sequence[tuple[str, str]]) -> bytes:
    """Return the reply of a turn that asks: pairs of question id and text."""
    asked = [{"id": id_, "question": text} for id_, text in questions]
    return write_text({**_head(invocation_id, "input_required"), "questions": asked})


def failed(invocation_id: str, code: str, message: str = "") -> bytes:
    """Return the reply of a failed turn; an empty message is left out."""
    error = {"code": code}
    if message:
        error["message"] = message[:MAX_MESSAGE_CHARS]
    return write_text({**_head(invocation_id, "failed"), "error": error})


def error_body(code: str, message: str) -> bytes:
    """Return the flat body of a refused request (wire 2.3)."""
    return write_text({"code": code, "message": message})


def instant(at: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC with milliseconds."""
    whole, micros = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(whole)}.{micros // 1000:03d}Z"


@lru_cache(maxsize=8)
def _second(at: int) -> str:
    """Return a whole second's text, which many replies of that second share."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _head(invocation_id: str, status: str) -> dict[str, Any]:
    return {"protocol_version": PROTOCOL_VERSION, "invocation_id": invocation_id, "status": status}
