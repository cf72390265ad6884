"""The record of a contract test: redacted, bound to the configuration it was made with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..emulator.checks import CheckResult


@dataclass(frozen=True, slots=True)
class ListingEvidence:
    """What the checks saw of one listing."""

    name: str
    wire_protocol: str
    mount: str
    key_id: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)

    @property
    def is_stranger(self) -> bool:
        """Say whether there were answers, and not one of them signed as the listing signs."""
        reasons = [trace.distrust for result in self.results for trace in result.exchanges]
        return bool(reasons) and all(reasons)

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(result.name for result in self.results if not result.ok)

    @property
    def untried(self) -> tuple[str, ...]:
        """The checks that could not be tried, which is no failure."""
        return tuple(result.name for result in self.results if not result.tried)

    @property
    def passed(self) -> int:
        return sum(result.passed for result in self.results)

    @property
    def fell_back(self) -> tuple[str, ...]:
        """The checks in which polling stood in for callbacks."""
        return tuple(result.name for result in self.results if result.fell_back)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run of the contract test.

    `store` says which store the tested gateway used, `receiver` where callbacks were awaited; empty where none was.
    """

    config_file: Path
    config_sha256: str
    base_url: str
    store: str
    receiver: str
    started_at: datetime
    listings: tuple[ListingEvidence, ...]

    @property
    def ok(self) -> bool:
        return all(listing.ok for listing in self.listings)


def hash_of(file: Path) -> str:
    """Return the SHA-256 of a file, which binds evidence to exactly this configuration."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def as_json(evidence: Evidence) -> str:
    """Return evidence as a JSON document."""
    document = {
        "tool": f"finch-gateway {__version__} contract-test",
        "started_at": evidence.started_at.isoformat(timespec="seconds"),
        "configuration": {"file": str(evidence.config_file), "sha256": evidence.config_sha256},
        "base_url": evidence.base_url,
        "store": evidence.store,
        "receiver": evidence.receiver,
        "ok": evidence.ok,
        "listings": [_listing(listing) for listing in evidence.listings],
    }
    return json.dumps(document, ensure_ascii=False, indent=2)


def _listing(listing: ListingEvidence) -> dict[str, Any]:
    return {
        "name": listing.name,
        "wire_protocol": listing.wire_protocol,
        "mount": listing.mount,
        "key_id": listing.key_id,
        "ok": listing.ok,
        "passed": listing.passed,
        "failed": len(listing.failed),
        "not_tried": len(listing.untried),
        "by_polling": list(listing.fell_back),
        "checks": _checks(listing.results),
    }


def _checks(results: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """Return the checks without what agent and tester said to each other: evidence holds no text of either."""
    return [{name: value for name, value in asdict(result).items() if name != "dialogue"} for result in results]


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner may read; what was there is replaced whole."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text + "\n")
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
