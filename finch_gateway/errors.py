"""What can go wrong, by boundary: one family for callers, one for operators, one for the store.

`REFUSALS` is the only place where an error code meets its HTTP status and its sentence (wire 2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RefusalRule:
    """An error code's HTTP status and the one safe sentence that goes with it."""

    status: int
    message: str


REFUSALS: dict[str, RefusalRule] = {
    "body_invalid": RefusalRule(400, "The body is not one well-formed JSON object in UTF-8."),
    "auth_failed": RefusalRule(401, "The request could not be authenticated."),
    "not_found": RefusalRule(404, "There is no such endpoint."),
    "task_not_found": RefusalRule(404, "There is no such task."),
    "method_not_allowed": RefusalRule(405, "This endpoint does not take that method."),
    "idempotency_conflict": RefusalRule(409, "This identity was already used with another input."),
    "task_terminal": RefusalRule(409, "The task has ended."),
    "task_not_awaiting_input": RefusalRule(409, "The task is not waiting for input."),
    "request_too_large": RefusalRule(413, "The body is larger than this endpoint accepts."),
    "encoding_unsupported": RefusalRule(415, "Bodies are accepted without a Content-Encoding only."),
    "envelope_invalid": RefusalRule(422, "The envelope does not have the form of this wire protocol."),
    "interaction_mode_unsupported": RefusalRule(422, "This listing does not serve that interaction mode."),
    "protocol_version_unsupported": RefusalRule(422, "This listing speaks protocol version 2.0."),
    "service_version_mismatch": RefusalRule(422, "This credential is bound to another service version."),
    "overloaded": RefusalRule(429, "The listing is at its limit; try again shortly."),
    "queue_full": RefusalRule(429, "The listing's queue is full; try again later."),
    "internal_error": RefusalRule(500, "The gateway failed to answer this request."),
    "unavailable": RefusalRule(503, "The gateway cannot answer right now."),
}
"""Every error code a caller can meet, with its status and sentence (wire 2.3)."""


class Refusal(Exception):
    """A request that is answered with an error body instead of a result.

    `code` is a key of `REFUSALS`. `reason` is for the log and the metrics only and never leaves the
    process; `detail`, when given, replaces the code's sentence and must hold nothing of the request.
    """

    def __init__(self, code: str, *, reason: str = "", detail: str = "", retry_after_s: int = 0) -> None:
        super().__init__(code)
        self.code = code
        self.reason = reason or code
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return REFUSALS[self.code].status

    @property
    def message(self) -> str:
        return self.detail or REFUSALS[self.code].message


class StoreUnavailable(Exception):
    """The store did not answer; what was asked of it may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing an operator must change: the setting, what is wrong with it, and the remedy."""

    setting: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        at = f" (line {self.line})" if self.line else ""
        return f"{self.setting}{at}: {self.message}"


class ConfigError(Exception):
    """The gateway cannot start as configured; `problems` names every setting that stops it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    @classmethod
    def one(cls, setting: str, message: str) -> ConfigError:
        return cls([Problem(setting, message)])
