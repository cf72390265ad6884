"""The configuration as values: what the file, the environment and the defaults come to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

WireProtocolName = Literal["finch_v2", "agenton_v0"]
ModeName = Literal["conversation_turn", "task"]
CredentialState = Literal["current", "retiring", "revoked"]
CrashRule = Literal["rerun", "fail"]
LogLevel = Literal["debug", "info", "warning", "error"]

SQLITE = "sqlite:///"

_LAST_STEP = re.compile(r"(\.[^.\[\]]*|\[[0-9]+\]|^[^.\[\]]+)$")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The public side. `max_unverified_bytes` is one budget for all bodies that are not verified yet (wire 1.6)."""

    host: str = "127.0.0.1"
    port: int = 8080
    public_prefix: str = ""
    max_body_bytes: int = 1024 * 1024
    body_timeout_s: float = 30
    max_unverified_bytes: int = 64 * 1024 * 1024
    grace_s: float = 20
    log_level: LogLevel = "info"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where state lives. `url` may hold a password: show `safe_url` instead."""

    url: str = field(default=SQLITE + "finch.db", repr=False)
    namespace: str = "finch"
    retention_days: float = 30
    lease_s: float = 20

    @property
    def sqlite_path(self) -> Path | None:
        """The database file, or None when the store is not SQLite."""
        return Path(self.url.removeprefix(SQLITE)) if self.url.startswith(SQLITE) else None

    @property
    def safe_url(self) -> str:
        """The URL without user, password and query."""
        return self.url if self.sqlite_path else safe_url(self.url)


@dataclass(frozen=True, slots=True)
class OutboundSettings:
    """Where the URLs of dispatches may lead (wire 9.1), and for how long a callback is tried (wire 7.4).

    `allow_hosts` are exact names or `*.suffix`; none means any public host.
    """

    allow_hosts: tuple[str, ...] = ()
    allow_private: bool = False
    callback_schedule_s: float = 86400


@dataclass(frozen=True, slots=True)
class PathSettings:
    """The suffixes under the mount (wire 3.2)."""

    health: str = "/health"
    invoke: str = "/invoke"
    task: str = "/tasks/{merchant_task_id}"
    messages: str = "/tasks/{merchant_task_id}/messages"
    cancel: str = "/tasks/{merchant_task_id}/cancel"


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """How the agent is reached: the backend's type, and its own options with references resolved."""

    type: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class CredentialSettings:
    """A credential revision as displayed by Finch (wire 1.11); `callback_secret` is None where only one was shown."""

    key_id: str
    request_secret: str = field(repr=False)
    callback_secret: str | None = field(default=None, repr=False)
    state: CredentialState = "current"
    service_version_id: str = ""


@dataclass(frozen=True, slots=True)
class ListingSettings:
    """One published service; `setting` is its place in the file, `listings[0]`."""

    name: str
    mount: str
    backend: BackendSettings
    credentials: tuple[CredentialSettings, ...]
    family: str = "agenton_v2"
    wire_protocol: WireProtocolName = "finch_v2"
    modes: tuple[ModeName, ...] = ("conversation_turn",)
    paths: PathSettings = PathSettings()
    default_deadline_s: float = 600
    max_deadline_s: float = 86400
    max_running_turns: int = 32
    max_running_tasks: int = 8
    max_queue: int = 100
    max_input_rounds: int = 5
    poll_after_ms: int = 3000
    max_output_bytes: int = 4 * 1024 * 1024
    on_crash: CrashRule = "rerun"
    capabilities: str = ""
    setting: str = "listings[0]"


@dataclass(frozen=True, slots=True)
class Shown:
    """One effective setting in a form that is safe to print, and where it came from."""

    setting: str
    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration.

    `variables` are those that `env_file` adds to the environment: whoever runs agents in this process puts
    them there. `shown` lists every setting in the file's order, redacted, with its origin.
    """

    server: ServerSettings
    store: StoreSettings
    outbound: OutboundSettings
    listings: tuple[ListingSettings, ...]
    file: Path
    folder: Path
    warnings: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    shown: tuple[Shown, ...] = field(default=(), repr=False)
    lines: Mapping[str, int] = field(default_factory=dict, repr=False)

    def line(self, setting: str) -> int | None:
        """Return the line of a setting such as `listings[0].mount`, or of the nearest table around it."""
        return nearest_line(self.lines, setting)

    def origin(self, setting: str) -> str:
        """Return where a setting's value came from: a line of the file, a variable, or the default."""
        return next((shown.origin for shown in self.shown if shown.setting == setting), "default")


def nearest_line(lines: Mapping[str, int], setting: str) -> int | None:
    """Return the line of `setting`, or of the innermost table or list around it that has one."""
    while setting and setting not in lines:
        setting = _LAST_STEP.sub("", setting, count=1) if _LAST_STEP.search(setting) else ""
    return lines.get(setting)


def safe_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; an ellipsis where it cannot be taken apart."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "…"
    bracketed = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{bracketed}{f':{port}' if port is not None else ''}{parts.path}"
