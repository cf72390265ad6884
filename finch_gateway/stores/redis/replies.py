"""The pieces of a script's reply, each checked for its kind."""

from __future__ import annotations

from ...errors import StoreUnavailable
from .reading import Reply


def nonsense() -> StoreUnavailable:
    """Return the error for a reply that no script of ours gives."""
    return StoreUnavailable("the server's reply makes no sense")


def rows(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise nonsense()
    return reply


def raw(reply: Reply) -> bytes:
    if not isinstance(reply, bytes):
        raise nonsense()
    return reply


def text(reply: Reply) -> str:
    return raw(reply).decode()


def number(reply: Reply) -> int:
    if not isinstance(reply, int):
        raise nonsense()
    return reply


def instant(reply: Reply) -> float:
    return float(raw(reply))


def counts(reply: Reply) -> dict[str, int]:
    """Return a flat list of name, count, name, count … as what it is."""
    flat = rows(reply)
    return {text(name): int(text(count)) for name, count in zip(flat[::2], flat[1::2], strict=True)}
