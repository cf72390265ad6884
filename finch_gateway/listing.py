"""One published service, as configured: its mount, paths, credential revisions and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .config import Config, CredentialSettings, ListingSettings, PathSettings, in_order, read
from .errors import ConfigError, Problem
from .wire.dispatch import Mode
from .wire.secrets import SecretError, WireProtocol, read_secret
from .wire.signing import SigningKey

RevisionState = Literal["current", "retiring", "revoked"]
OnCrash = Literal["rerun", "fail"]


@dataclass(frozen=True, slots=True)
class Revision:
    """A credential revision (wire 1.11, 1.12); `service_version_id` is empty where it is bound to none."""

    key_id: str
    state: RevisionState
    request_key: SigningKey
    callback_key: SigningKey
    service_version_id: str = ""

    @property
    def fingerprint(self) -> str:
        """Tells this revision's secrets from others without giving them away."""
        return f"{self.request_key.fingerprint()}:{self.callback_key.fingerprint()}"


@dataclass(frozen=True, slots=True)
class Listing:
    """One published service; `setting` is its place in the configuration, `listings[0]`."""

    name: str
    wire_protocol: WireProtocol
    mount: str
    modes: tuple[Mode, ...]
    revisions: Mapping[str, Revision]
    backend_type: str
    backend_options: Mapping[str, Any] = field(repr=False)
    paths: PathSettings = field(default_factory=PathSettings)
    default_deadline_s: float = 600
    max_deadline_s: float = 86400
    max_running_turns: int = 32
    max_running_tasks: int = 8
    max_queue: int = 100
    max_input_rounds: int = 5
    poll_after_ms: int = 3000
    max_output_bytes: int = 4 * 1024 * 1024
    on_crash: OnCrash = "rerun"
    capabilities: str = ""
    setting: str = "listings[0]"

    @property
    def current(self) -> Revision:
        """The one revision in state `current`."""
        return next(revision for revision in self.revisions.values() if revision.state == "current")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with its listings.

    `config.warnings` holds the secrets' warnings too. With `problems` it is only as whole as it could be read,
    and `listings` lacks those that have one.
    """

    config: Config
    listings: tuple[Listing, ...]
    problems: tuple[Problem, ...] = ()


def load_all(path: Path | None, environ: Mapping[str, str]) -> Loaded:
    """Return a whole configuration; raise `ConfigError` with every problem of the file and of its secrets."""
    loaded = read_all(path, environ)
    if loaded.problems:
        raise ConfigError(loaded.problems)
    return loaded


def read_all(path: Path | None, environ: Mapping[str, str]) -> Loaded:
    """Read as much as can be read; raise `ConfigError` only when the file is missing or not TOML."""
    reading = read(path, environ)
    keys = _Keys(reading.config)
    listings = keys.listings()
    problems = in_order([*reading.problems, *keys.problems])
    config = replace(reading.config, warnings=(*reading.config.warnings, *keys.warnings))
    return Loaded(config, listings, problems)


def build_listings(config: Config) -> tuple[Listing, ...]:
    """Return the listings of a whole configuration; raise `ConfigError` naming each secret that cannot be used.

    What is odd about a secret but harmless is said by `load_all`.
    """
    keys = _Keys(config)
    listings = keys.listings()
    if keys.problems:
        raise ConfigError(in_order(keys.problems))
    return listings


class _Keys:
    """Turns displayed secrets into signing keys and collects what is wrong or odd about them (wire 1.10)."""

    def __init__(self, config: Config) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self._config = config

    def listings(self) -> tuple[Listing, ...]:
        built = [self._listing(settings) for settings in self._config.listings]
        return tuple(listing for listing in built if listing is not None)

    def _listing(self, settings: ListingSettings) -> Listing | None:
        # Every revision is looked at before any verdict, so that all problems come together.
        built = [
            self._revision(f"{settings.setting}.credentials[{at}]", credential, settings.wire_protocol)
            for at, credential in enumerate(settings.credentials)
        ]
        revisions = {revision.key_id: revision for revision in built if revision is not None}
        if len(built) != len(revisions):
            return None
        return Listing(
            name=settings.name,
            wire_protocol=settings.wire_protocol,
            mount=settings.mount,
            modes=settings.modes,
            revisions=revisions,
            backend_type=settings.backend.type,
            backend_options=settings.backend.options,
            paths=settings.paths,
            default_deadline_s=settings.default_deadline_s,
            max_deadline_s=settings.max_deadline_s,
            max_running_turns=settings.max_running_turns,
            max_running_tasks=settings.max_running_tasks,
            max_queue=settings.max_queue,
            max_input_rounds=settings.max_input_rounds,
            poll_after_ms=settings.poll_after_ms,
            max_output_bytes=settings.max_output_bytes,
            on_crash=settings.on_crash,
            capabilities=settings.capabilities,
            setting=settings.setting,
        )

    def _revision(self, setting: str, credential: CredentialSettings, protocol: WireProtocol) -> Revision | None:
        request = self._key(f"{setting}.request_secret", credential.request_secret, protocol)
        callback = request
        if credential.callback_secret is not None:
            callback = self._key(f"{setting}.callback_secret", credential.callback_secret, protocol)
        if request is None or callback is None:
            return None
        return Revision(credential.key_id, credential.state, request, callback, credential.service_version_id)

    def _key(self, setting: str, displayed: str, protocol: WireProtocol) -> SigningKey | None:
        """Return a secret's key, or None when it cannot be used; an empty one was reported where it was read."""
        if not displayed:
            return None
        try:
            secret = read_secret(displayed, protocol)
        except SecretError as error:
            self.problems.append(self._at(setting, f"the secret it refers to {error}"))
            return None
        self.warnings += [str(self._at(setting, f"the secret it refers to {warning}")) for warning in secret.warnings]
        return SigningKey(secret.key)

    def _at(self, setting: str, message: str) -> Problem:
        return Problem(setting, message, self._config.line(setting))
