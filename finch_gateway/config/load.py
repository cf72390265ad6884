"""From a file and the environment to a `Config`, or to every problem that stands in the way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from ..errors import ConfigError, Problem
from .document import Document, read_document
from .environment import Environment, is_reference, read_env_file, shown_reference
from .listings import MOUNT, read_listings
from .reading import Ledger, Table, show_value, unknown
from .rules import Rule, Wrong, choice, flag, number, text, whole
from .settings import SQLITE, Config, LogLevel, OutboundSettings, ServerSettings, StoreSettings, safe_url

CONFIG_VARIABLE = "FINCH_GATEWAY_CONFIG"
CONFIG_FILE = "finch.toml"

GIB = 1024**3
DAY_S = 86400

_HOST = text(re.compile(r"[A-Za-z0-9._:%-]{1,255}", re.ASCII), 'a host name or address, such as "127.0.0.1"')
_PREFIX = Rule(lambda value: "" if value == "" else MOUNT.read(value))
_NAMESPACE = text(re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII), "1 to 64 letters, digits, dots, dashes, underscores")
_LOG_LEVEL: Rule[LogLevel] = choice("debug", "info", "warning", "error")
_SQLITE_FILE = re.compile(r"[^\x00-\x1f\x7f?#]+")
_DATABASE = re.compile(r"/?[0-9]{0,4}", re.ASCII)
_URL_FORMS = '"sqlite:///FILE", "redis://HOST:PORT/NUMBER", "rediss://HOST:PORT/NUMBER", env:NAME or file:PATH'


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file comes to: `config` is whole only when there are no `problems`; else it holds defaults for them."""

    config: Config
    problems: tuple[Problem, ...]


def load(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Return the configuration of a file; raise `ConfigError` with all of its problems.

    The file is `path`, else the one that `FINCH_GATEWAY_CONFIG` names, else `finch.toml` here.
    """
    reading = read(path, environ)
    if reading.problems:
        raise ConfigError(reading.problems)
    return reading.config


def read(path: Path | None, environ: Mapping[str, str]) -> Reading:
    """Read as much as can be read; raise `ConfigError` only when the file is missing or not TOML."""
    file = path or Path(environ.get(CONFIG_VARIABLE) or CONFIG_FILE)
    document = read_document(file)
    folder = file.absolute().parent
    env_file = _EnvFile.read(document, folder)
    ledger = Ledger(document, Environment(environ, folder, env_file.missing_in(environ)))
    root = Table(ledger, (), document.values)
    _note_env_file(root, env_file)
    server = _read_server(root.table("server", overridable=True))
    store = _read_store(root.table("store", overridable=True), folder)
    outbound = _read_outbound(root.table("outbound", overridable=True))
    if store.retention_days * DAY_S < outbound.callback_schedule_s:
        root.ledger.problem(
            ("store", "retention_days"),
            "must not be shorter than outbound.callback_schedule_s: a task's last callback would be forgotten first",
        )
    _refuse_unknown_overrides(ledger)
    listings = read_listings(root)
    root.refuse_unknown()
    config = Config(
        server=server,
        store=store,
        outbound=outbound,
        listings=listings,
        file=file,
        folder=folder,
        warnings=tuple(ledger.warnings),
        variables=ledger.environment.added,
        shown=tuple(ledger.shown),
        lines=ledger.lines,
    )
    return Reading(config, in_order(ledger.problems))


def in_order(problems: list[Problem]) -> tuple[Problem, ...]:
    """Return problems in the file's order, those without a line last."""
    return tuple(sorted(problems, key=lambda problem: (problem.line is None, problem.line or 0)))


@dataclass(frozen=True, slots=True)
class _EnvFile:
    """The variables of `env_file`, or what is wrong with it."""

    variables: Mapping[str, str]
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, document: Document, folder: Path) -> _EnvFile:
        name = document.values.get("env_file")
        if name is None:
            return cls({})
        if not isinstance(name, str) or not name:
            return cls({}, ('must be a file\'s name, such as ".env"',))
        try:
            return cls(read_env_file(folder / name))
        except ConfigError as error:
            return cls({}, tuple(_said_of_env_file(problem) for problem in error.problems))

    def missing_in(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in self.variables.items() if name not in environ}


def _said_of_env_file(problem: Problem) -> str:
    return (
        f"the file it names {problem.message}" if problem.line is None else f"its line {problem.line} {problem.message}"
    )


def _note_env_file(root: Table, env_file: _EnvFile) -> None:
    name = root.get("env_file")
    for problem in env_file.problems:
        root.ledger.problem(root.at("env_file"), problem)
    if name is not None and not env_file.problems:
        root.ledger.show(root.at("env_file"), show_value(name))


def _read_server(table: Table) -> ServerSettings:
    fallback = ServerSettings()
    settings = ServerSettings(
        host=table.take("host", _HOST, fallback.host),
        port=table.take("port", whole(0, 65535), fallback.port),
        public_prefix=table.take("public_prefix", _PREFIX, fallback.public_prefix),
        max_body_bytes=table.take("max_body_bytes", whole(1024, GIB), fallback.max_body_bytes),
        body_timeout_s=table.take("body_timeout_s", number(0.1, 3600), fallback.body_timeout_s),
        max_unverified_bytes=table.take("max_unverified_bytes", whole(1024, 64 * GIB), fallback.max_unverified_bytes),
        grace_s=table.take("grace_s", number(0, 3600), fallback.grace_s),
        log_level=table.take("log_level", _LOG_LEVEL, fallback.log_level),
    )
    if settings.max_unverified_bytes < settings.max_body_bytes:
        table.ledger.problem(table.at("max_unverified_bytes"), "must not be smaller than max_body_bytes")
    table.refuse_unknown()
    return settings


def _read_store(table: Table, folder: Path) -> StoreSettings:
    fallback = StoreSettings()
    settings = StoreSettings(
        url=_read_url(table, folder),
        namespace=table.take("namespace", _NAMESPACE, fallback.namespace),
        retention_days=table.take("retention_days", number(0.01, 3650), fallback.retention_days),
        lease_s=table.take("lease_s", number(3, 3600), fallback.lease_s),
    )
    table.refuse_unknown()
    return settings


_HOST_RULE = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?|[0-9a-f:.]*:[0-9a-f:.]*", re.ASCII)


def _read_outbound(table: Table) -> OutboundSettings:
    fallback = OutboundSettings()
    settings = OutboundSettings(
        allow_hosts=table.take("allow_hosts", _HOSTS, fallback.allow_hosts),
        allow_private=table.take("allow_private", flag(), fallback.allow_private),
        callback_schedule_s=table.take("callback_schedule_s", number(1, 30 * DAY_S), fallback.callback_schedule_s),
    )
    if settings.allow_private and not settings.allow_hosts:
        table.ledger.problem(table.at("allow_private"), "is for local work and needs the hosts named in allow_hosts")
    table.refuse_unknown()
    return settings


def _read_hosts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(host, str) and _HOST_RULE.fullmatch(host) for host in value):
        raise Wrong('must list host names in lower case, exact or as "*.suffix"')
    return tuple(value)


_HOSTS = Rule(_read_hosts, lambda text: [part.strip() for part in text.split(",") if part.strip()])


class _FromVariable(str):
    """A text that came from the environment, where it may hold a password."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Url:
    url: str
    shown: str


def _read_url(table: Table, folder: Path) -> str:
    environment = table.ledger.environment

    def read(value: object) -> _Url:
        if not isinstance(value, str):
            raise Wrong(f"must be {_URL_FORMS}")
        if is_reference(value):
            return _Url(_checked_url(environment.resolve(value), folder), show_value(shown_reference(value)))
        if not isinstance(value, _FromVariable):
            _refuse_password(value)
        return _Url(_checked_url(value, folder), show_value(safe_url(value)))

    default = StoreSettings().url
    fallback = _Url(f"{SQLITE}{folder / default.removeprefix(SQLITE)}", show_value(default))
    raw = table.get("url")
    if table.is_overridden("url") and isinstance(raw, str):
        # What the variable hides is still a password in a file.
        table.check("url", _refuse_password, raw)
    return table.take("url", Rule(read, _FromVariable), fallback, lambda url: url.shown).url


def _refuse_password(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # not a URL at all, which is refused right after this
    if parts.password is not None or "password" in parse_qs(parts.query, keep_blank_values=True):
        raise Wrong("holds a password; put the URL into an environment variable and write env:NAME")


def _checked_url(url: str, folder: Path) -> str:
    """Return a store URL with its file made absolute; raise `Wrong`, which never quotes it."""
    if url.startswith(SQLITE):
        return _checked_sqlite(url.removeprefix(SQLITE), folder)
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known or parts.fragment or not _DATABASE.fullmatch(parts.path):
        raise Wrong(f"must be {_URL_FORMS}")
    return url


def _checked_sqlite(name: str, folder: Path) -> str:
    if not _SQLITE_FILE.fullmatch(name) or name == ":memory:" or name.endswith("/"):
        raise Wrong('must name a database file, such as "sqlite:///finch.db"')
    path = folder / name
    if path.is_dir():
        raise Wrong("names a folder; name a database file")
    if not path.parent.is_dir():
        raise Wrong("names a file in a folder that does not exist; create the folder")
    return f"{SQLITE}{path}"


def _refuse_unknown_overrides(ledger: Ledger) -> None:
    for variable in ledger.overrides:
        if variable not in ledger.known_overrides:
            ledger.problems.append(Problem(variable, unknown(variable, ledger.known_overrides)))
