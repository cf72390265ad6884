"""Waiting for a store that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import StoreUnavailable

T = TypeVar("T")

STORE_RETRY_S = 0.5


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """Return what `step` returns, tried again while the store is away; it must recognise itself when repeated."""
    while True:
        try:
            return await step()
        except StoreUnavailable:
            await asyncio.sleep(STORE_RETRY_S)
