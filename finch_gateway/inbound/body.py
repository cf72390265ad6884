"""Reading a body that nobody has proven yet, within bounds (wire 1.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from ..errors import Refusal

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

DISCARD_FACTOR = 8
DISCARD_FLOOR_BYTES = 1024 * 1024
DISCARD_TIMEOUT_S = 5.0


class CallerGone(Exception):
    """The caller closed the connection before the request was whole."""


class UnverifiedBudget:
    """One budget for the bytes of all bodies that are not verified yet, so that strangers cannot fill the memory."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Hold a share that grows with a body and is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.held_bytes

    def grow(self, by_bytes: int) -> None:
        if self.held_bytes + by_bytes > self._limit_bytes:
            raise Refusal("overloaded", reason="unverified_bodies", retry_after_s=1)
        self.held_bytes += by_bytes


class Share:
    """What one body holds of the budget."""

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: UnverifiedBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def grow(self, by_bytes: int) -> None:
        self._budget.grow(by_bytes)
        self.held_bytes += by_bytes


async def read_body(receive: Receive, share: Share, *, limit_bytes: int, timeout_s: float) -> bytes:
    """Return the whole body.

    Raises `Refusal` when it is over `limit_bytes`, over the budget or not there within `timeout_s` seconds,
    and `CallerGone` when the connection ends first.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise CallerGone
                chunk = message.get("body", b"")
                if chunk:
                    size += len(chunk)
                    if size > limit_bytes:
                        raise Refusal("request_too_large")
                    share.grow(len(chunk))
                    chunks.append(chunk)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except TimeoutError as error:
        raise Refusal("auth_failed", reason="body_timeout") from error


async def discard_body(receive: Receive, *, limit_bytes: int) -> None:
    """Read on and throw away, within bounds of bytes and time, so that a refusal reaches a caller still sending."""
    left = max(DISCARD_FACTOR * limit_bytes, DISCARD_FLOOR_BYTES)
    try:
        async with asyncio.timeout(DISCARD_TIMEOUT_S):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
    except TimeoutError:
        return
