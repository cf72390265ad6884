"""What the operator's scripts are told, and what their replies mean."""

from __future__ import annotations

from collections.abc import Sequence

from ...store import KnownRevision
from .reading import Reply
from .replies import instant, rows, text
from .scripts import Fact


def revisions(known: Sequence[KnownRevision]) -> tuple[Fact, ...]:
    """Tell of credential revisions."""
    return tuple((one.key_id, one.listing, one.fingerprint, one.first_seen) for one in known)


def known_revisions(reply: Reply) -> list[KnownRevision]:
    """Return the revisions of a reply."""
    parts = (rows(one) for one in rows(reply))
    return [KnownRevision(text(key), text(listing), text(mark), instant(seen)) for key, listing, mark, seen in parts]


def one_or_all(name: str | None) -> Fact:
    """Tell a name that narrows a list; all where there is none."""
    return False if name is None else name


def one_kind_or_both(kind: bool | None) -> Fact:
    """Tell which of two kinds a list shall hold; both where none is named."""
    return "" if kind is None else kind
