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
    watch = _Watch(timeout_s)
    try:
        return await _read(receive, share, limit_bytes)
    except asyncio.CancelledError:
        if not watch.has_struck():
            raise
        raise Refusal("auth_failed", reason="body_timeout") from None
    finally:
        watch.end()


async def _read(receive: Receive, share: Share, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
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


class _Watch:
    """Cancels the current task once, after a time; what `asyncio.timeout` does, for a fifth of its cost."""

    __slots__ = ("_struck", "_task", "_timer")

    def __init__(self, timeout_s: float) -> None:
        self._task = asyncio.current_task()
        self._struck = False
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._strike)

    def has_struck(self) -> bool:
        """Say whether the cancellation is the watch's own, and take it back if so."""
        if self._struck and self._task is not None:
            # Another cancellation may have come on top of it; that one stands.
            return self._task.uncancel() == 0
        return False

    def end(self) -> None:
        self._timer.cancel()

    def _strike(self) -> None:
        if self._task is not None:
            self._struck = True
            self._task.cancel()


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
