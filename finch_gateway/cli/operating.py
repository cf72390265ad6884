"""What the operator's commands share: a configuration read when it is needed, its store, and a table."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TypeVar

import click

from ..config import Config, ListingSettings, StoreSettings
from ..listing import load_all
from ..store import Store
from . import CannotRun, config_option

T = TypeVar("T")

DASHED = "A TASK_ID that begins with a dash stands behind two dashes."
"""What the help of a command with a TASK_ID ends with."""


def configured(work: Callable[..., None]) -> Callable[..., None]:
    """Give a command below a group the whole configuration as its first argument, read when it runs.

    `--config` may stand before or behind the command's own name; behind counts where it is in both places.
    """

    @config_option
    @wraps(work)
    def run(config_file: Path | None, **values: object) -> None:
        group = click.get_current_context().parent
        above = group.params.get("config_file") if group else None
        work(load_all(config_file or above, os.environ), **values)

    return run


def listing_named(config: Config, name: str) -> ListingSettings:
    """Return the listing that `--listing` names; raise `CannotRun` saying which there are."""
    found = next((listing for listing in config.listings if listing.name == name), None)
    if found is None:
        known = ", ".join(listing.name for listing in config.listings)
        raise CannotRun(f"--listing: the configuration has no listing of that name; it has: {known}")
    return found


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
