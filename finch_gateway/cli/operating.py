"""What the operator's commands share: the store of a configuration, and a table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import click

from ..config import StoreSettings
from ..store import Store

T = TypeVar("T")


def ask_store(settings: StoreSettings, work: Callable[[Store], Awaitable[T]], *, without: T) -> T:
    """Run `work` on the opened store; `without` is the answer where a SQLite file is not there yet."""
    if settings.sqlite_path and not settings.sqlite_path.exists():
        return without  # asking must not create the database
    from ..app import open_store

    async def ask() -> T:
        store = open_store(settings)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(ask())


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows, the header first, in columns as wide as they need to be."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def moment(at: float | None) -> str:
    """Return seconds since the epoch for a person's eye, in UTC; a dash for None."""
    return "-" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"
