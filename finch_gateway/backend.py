"""What a backend author implements: the adapter between the gateway and one way of reaching an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .job import Job, JobFailed, NeedInput, Question, Reply

__all__ = ["Backend", "BackendEnv", "Health", "Job", "JobFailed", "NeedInput", "Question", "Reply", "Supports"]


@dataclass(frozen=True, slots=True)
class Supports:
    """What a backend can do; what it does not declare is refused cleanly, never half done.

    `after_crash` is "rerun" when the agent simply runs again, "reattach" when saved state lets the backend
    find its remote work again.
    """

    modes: frozenset[str] = frozenset({"conversation_turn"})
    questions: bool = False
    progress: bool = False
    cancel: bool = False
    after_crash: str = "rerun"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the agent can take work; `detail` is for the operator only."""

    ready: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BackendEnv:
    """What a backend starts with.

    `options` is the `[listings.backend]` table without `type`, secrets resolved; `setting` its name for error
    messages (`listings.<name>.backend`); `folder` the configuration file's; `max_jobs` how many jobs the
    gateway runs on it at once.
    """

    listing: str
    setting: str
    options: Mapping[str, Any]
    folder: Path
    max_jobs: int
    max_output_bytes: int


class Backend:
    """Base class of every backend; `run` is the only method without a default.

    The gateway calls `check`, then `start` once before any job and `close` once after the last. `run` may be
    called many times at once. Cancellation is task cancellation: stop the remote work within 3 seconds, then re-raise.
    """

    supports: Supports = Supports()

    def check(self, env: BackendEnv) -> None:
        """Raise `ConfigError` for options that cannot be right; imports nothing and connects to nothing.

        Called by the `check` command, and by the gateway before `start`.
        """

    async def start(self, env: BackendEnv) -> None:
        """Get ready; import SDKs here. Raise `ConfigError` naming the setting and the remedy."""

    async def run(self, job: Job) -> Reply | NeedInput:
        """Do the job. Raise `JobFailed` for a failure the buyer may read; anything else becomes `agent_error`."""
        raise NotImplementedError

    async def health(self) -> Health:
        """Say whether the agent can take work; called every few seconds under a time limit."""
        return Health(ready=True)

    async def close(self) -> None:
        """Let go of every resource; no job is running any more."""

    @staticmethod
    def refuse_unknown_options(env: BackendEnv, known: frozenset[str]) -> None:
        """Raise `ConfigError` for an option this backend does not have."""
        unknown = sorted(set(env.options) - known)
        if unknown:
            names = ", ".join(sorted(known))
            raise ConfigError.one(f"{env.setting}.{unknown[0]}", f"is not a setting of this backend; it has: {names}")
