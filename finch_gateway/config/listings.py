"""The listings of the file: each one's settings, and what must hold among all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from .document import Place
from .environment import is_reference
from .reading import Ledger, Table, secret_reference, setting_name, show_value
from .rules import Rule, Wrong, choice, number, text, whole
from .settings import (
    BackendSettings,
    CrashRule,
    CredentialSettings,
    CredentialState,
    ListingSettings,
    ModeName,
    PathSettings,
    WireProtocolName,
    safe_url,
)

DAY_S = 86400
MODES: tuple[ModeName, ...] = ("conversation_turn", "task")

NAME = text(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII), "1 to 64 letters, digits, dots, dashes and underscores"
)
# RFC 3986 path characters without escapes: only what every client leaves as it is can be matched byte for byte.
_PATH_FORM = r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@-]+)+"
MOUNT = text(
    re.compile(_PATH_FORM, re.ASCII),
    'a path such as "/finch/v2": it starts with "/", does not end with one, and holds no "//", "?", "#", "%" or blank',
)
SUFFIX = text(re.compile(_PATH_FORM, re.ASCII), 'a path such as "/health"')
TASK_ID = "{merchant_task_id}"
TASK_SUFFIX = text(
    re.compile(rf"(?:{_PATH_FORM})?/{re.escape(TASK_ID)}(?:{_PATH_FORM})?", re.ASCII),
    f'a path such as "/tasks/{TASK_ID}", with that segment once',
)
_KEY_ID = text(re.compile(r"[!-~]{1,256}"), "1 to 256 visible ASCII characters, as Finch shows it")
_VERSION_ID = text(re.compile(r"[!-~]{1,256}"), "1 to 256 visible ASCII characters, as Finch shows it")
_CAPABILITIES = text(re.compile(r".{0,10000}", re.DOTALL), "a text of up to 10000 characters")
_TYPE = text(re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII), 'a backend\'s name, such as "python" or "http"')
_FAMILY = choice("agenton_v2", "direct_api_v1")
_WIRE_PROTOCOL: Rule[WireProtocolName] = choice("finch_v2", "agenton_v0")
_STATE: Rule[CredentialState] = choice("current", "retiring", "revoked")
_ON_CRASH: Rule[CrashRule] = choice("rerun", "fail")

_KEY_ID_FORMS = {
    "finch_v2": re.compile(r"finch\.agenton\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE),
    "agenton_v0": re.compile(r"eav_[0-9a-f]{16}"),
}
_KEY_ID_LOOKS = {"finch_v2": "finch.agenton.<uuid>", "agenton_v0": "eav_<16 hex digits>"}
_SECRET_LOOK = re.compile(r"[A-Za-z0-9_-]{43}=?")
_SECRET_NAMES = re.compile(r"secret|token|passw|api_?key|authorization|cookie", re.IGNORECASE)
_SHOWN_OPTIONS = frozenset({"target", "url", "health_url"})


def read_listings(root: Table) -> tuple[ListingSettings, ...]:
    """Read every `[[listings]]` table and note what does not fit together."""
    read = [(table.place, _read_listing(table)) for table in root.tables("listings")]
    found = [(place, listing) for place, listing in read if listing is not None]
    _check_unique(root.ledger, [((*place, "name"), listing.name) for place, listing in found])
    _check_mounts(root.ledger, [((*place, "mount"), listing.mount) for place, listing in found])
    _check_unique(root.ledger, [key for place, listing in found for key in _key_ids(place, listing)])
    return tuple(listing for _, listing in found)


def _read_listing(table: Table) -> ListingSettings | None:
    family = table.take("family", _FAMILY, "agenton_v2")
    if family != "agenton_v2":
        table.ledger.problem(table.at("family"), 'this version does not serve that family; it serves "agenton_v2"')
        return None
    wire_protocol = table.take("wire_protocol", _WIRE_PROTOCOL, "finch_v2")
    listing = ListingSettings(
        family=family,
        name=table.require("name", NAME),
        wire_protocol=wire_protocol,
        mount=table.require("mount", MOUNT),
        modes=_read_modes(table),
        paths=_read_paths(table.table("paths")),
        default_deadline_s=table.take("default_deadline_s", number(0.1, 30 * DAY_S), 600.0),
        max_deadline_s=table.take("max_deadline_s", number(0.1, 30 * DAY_S), 86400.0),
        max_running_turns=table.take("max_running_turns", whole(1, 10_000), 32),
        max_running_tasks=table.take("max_running_tasks", whole(1, 10_000), 8),
        max_queue=table.take("max_queue", whole(1, 1_000_000), 100),
        max_input_rounds=table.take("max_input_rounds", whole(0, 1000), 5),
        poll_after_ms=table.take("poll_after_ms", whole(0, 3_600_000), 3000),
        max_output_bytes=table.take("max_output_bytes", whole(256, 1024**3), 4 * 1024 * 1024),
        on_crash=table.take("on_crash", _ON_CRASH, "rerun"),
        capabilities=table.take("capabilities", _CAPABILITIES, "", lambda value: f"({len(value)} characters)"),
        backend=_read_backend(table),
        credentials=_read_credentials(table, wire_protocol),
        setting=setting_name(table.place),
    )
    if listing.default_deadline_s > listing.max_deadline_s:
        table.ledger.problem(table.at("default_deadline_s"), "must not be larger than max_deadline_s")
    table.refuse_unknown()
    return listing


def _read_modes(table: Table) -> tuple[ModeName, ...]:
    raw = table.get("modes")
    for index, mode in enumerate(raw if isinstance(raw, list) else ()):
        if mode == "generation":
            table.ledger.problem((*table.at("modes"), index), "this version does not serve generations; leave it out")
            return MODES

    def read(value: object) -> tuple[ModeName, ...]:
        modes = tuple(mode for mode in MODES if isinstance(value, list) and mode in value)
        if not isinstance(value, list) or not modes or len(modes) != len(value):
            raise Wrong('must list what the agent serves: "conversation_turn", "task"')
        return modes

    return table.take("modes", Rule(read), MODES)


def _read_paths(table: Table) -> PathSettings:
    fallback = PathSettings()
    paths = PathSettings(
        health=table.take("health", SUFFIX, fallback.health),
        invoke=table.take("invoke", SUFFIX, fallback.invoke),
        task=table.take("task", TASK_SUFFIX, fallback.task),
        messages=table.take("messages", TASK_SUFFIX, fallback.messages),
        cancel=table.take("cancel", TASK_SUFFIX, fallback.cancel),
    )
    for first, second in combinations(("health", "invoke", "task", "messages", "cancel"), 2):
        if getattr(paths, first) == getattr(paths, second):
            table.ledger.problem(table.at(second), f"must differ from paths.{first}")
    table.refuse_unknown()
    return paths


def _read_backend(listing: Table) -> BackendSettings:
    raw = listing.get("backend")
    if not isinstance(raw, dict):
        listing.ledger.problem(listing.at("backend"), "must be a table with a type; add [listings.backend]")
        return BackendSettings("")
    table = listing.table("backend")
    kind = table.require("type", _TYPE)
    options = {
        name: _read_option(listing.ledger, table.at(name), value) for name, value in raw.items() if name != "type"
    }
    return BackendSettings(kind, options)


def _read_option(ledger: Ledger, place: Place, value: object) -> object:
    """Resolve references anywhere inside a backend's option; what it means is the backend's business."""
    if isinstance(value, dict):
        return {name: _read_option(ledger, (*place, name), inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_read_option(ledger, (*place, index), inner) for index, inner in enumerate(value)]
    if is_reference(value):
        return secret_reference(ledger, place, value)
    ledger.show(place, _shown_option(str(place[-1]), value))
    if isinstance(value, str) and any(isinstance(step, str) and _SECRET_NAMES.search(step) for step in place[3:]):
        ledger.warn(place, "looks like a secret in the file; move it out and write env:NAME or file:PATH")
    return value


def _shown_option(name: str, value: object) -> str:
    if not isinstance(value, str):
        return show_value(value)
    if name not in _SHOWN_OPTIONS:
        return "…"
    return show_value(safe_url(value) if "://" in value else value)


def _read_credentials(listing: Table, wire_protocol: WireProtocolName) -> tuple[CredentialSettings, ...]:
    before = len(listing.ledger.problems)
    credentials = tuple(_read_credential(table, wire_protocol) for table in listing.tables("credentials"))
    current = sum(credential.state == "current" for credential in credentials)
    if current != 1 and len(listing.ledger.problems) == before:
        listing.ledger.problem(
            listing.at("credentials"),
            f'{current} of them are in state "current"; exactly one must be, the others "retiring" or "revoked"',
        )
    return credentials


def _read_credential(table: Table, wire_protocol: WireProtocolName) -> CredentialSettings:
    credential = CredentialSettings(
        key_id=_read_key_id(table, wire_protocol),
        request_secret=_read_secret(table, "request_secret"),
        callback_secret=_read_secret(table, "callback_secret") if "callback_secret" in table else None,
        state=table.take("state", _STATE, "current"),
        service_version_id=table.take("service_version_id", _VERSION_ID, ""),
    )
    if table.get("callback_secret") is None:
        table.ledger.warn(table.at("callback_secret"), "is left out, so the request secret serves for both (wire 1.11)")
    table.refuse_unknown()
    return credential


def _read_key_id(table: Table, wire_protocol: WireProtocolName) -> str:
    raw = table.get("key_id")
    if is_reference(raw):
        table.ledger.problem(table.at("key_id"), "is no secret and cannot be a reference; write the key id itself")
        return ""
    if isinstance(raw, str) and _SECRET_LOOK.fullmatch(raw):
        table.ledger.problem(table.at("key_id"), "looks like a secret; write the key id here and refer to the secret")
        return ""
    key_id = table.require("key_id", _KEY_ID)
    if key_id and not _KEY_ID_FORMS[wire_protocol].fullmatch(key_id):
        looks = _KEY_ID_LOOKS[wire_protocol]
        table.ledger.warn(table.at("key_id"), f"does not look like {looks}; compare it with what Finch shows")
    return key_id


def _read_secret(table: Table, name: str) -> str:
    raw = table.get(name)
    if raw is None:
        table.ledger.problem(table.at(name), "is missing; write env:NAME or file:PATH")
        return ""
    return secret_reference(table.ledger, table.at(name), raw)


def _key_ids(place: Place, listing: ListingSettings) -> Iterator[tuple[Place, str]]:
    for index, credential in enumerate(listing.credentials):
        yield (*place, "credentials", index, "key_id"), credential.key_id


def _check_unique(ledger: Ledger, values: Sequence[tuple[Place, str]]) -> None:
    seen: set[str] = set()
    for place, value in values:
        if value and value in seen:
            ledger.problem(place, "is used twice in this file; make it unique")
        seen.add(value)


def _check_mounts(ledger: Ledger, mounts: Sequence[tuple[Place, str]]) -> None:
    for (_, first), (place, second) in combinations(mounts, 2):
        if first and second and f"{first}/".startswith(f"{second}/"):
            ledger.problem(place, "is another listing's mount or the beginning of it; give each its own")
        elif first and second and f"{second}/".startswith(f"{first}/"):
            ledger.problem(place, "lies under another listing's mount; give each its own")
