"""`finch-gateway credentials`: the file's revisions beside what the store knows of them (wire 1.12)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from ..config import StoreSettings
from ..listing import Listing, load_all
from ..store import KnownRevision
from . import config_option


@dataclass(frozen=True, slots=True)
class _Known:
    """What the store knows: revisions by key id, and the turns that run under each."""

    revisions: Mapping[str, KnownRevision]
    running: Mapping[str, int]


@click.group(invoke_without_command=True)
@config_option
@click.pass_context
def command(ctx: click.Context, config_file: Path | None) -> None:
    """List credential revisions and what still uses them.

    Shows every revision of the configuration and every one that the store has seen, never a secret: a
    fingerprint tells two secrets apart.
    """
    loaded = load_all(config_file, os.environ)
    ctx.obj = loaded
    if ctx.invoked_subcommand is None:
        known = asyncio.run(_read_store(loaded.config.store))
        _print_table([_HEADER, *_rows(loaded.listings, known)])


@command.command()
@click.argument("key_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def forget(ctx: click.Context, key_id: str, yes: bool) -> None:
    """Drop what the store knows of KEY_ID, so that a mistyped first secret can be corrected.

    The next start records the key id with the secret that the configuration then has.
    """
    settings: StoreSettings = ctx.obj.config.store
    known = asyncio.run(_read_store(settings))
    if key_id not in known.revisions:
        raise click.ClickException(f"The store does not know {key_id}.")
    running = known.running.get(key_id, 0)
    if running:
        click.echo(f"warning: {running} running under {key_id} right now", err=True)
    if not yes:
        click.confirm(f"Forget {key_id} of {known.revisions[key_id].listing}?", abort=True, err=True)
    if not asyncio.run(_forget(settings, key_id)):
        raise click.ClickException(f"The store does not know {key_id} any more.")
    click.echo(f"Forgotten: {key_id}. The next start records it anew.")


async def _read_store(settings: StoreSettings) -> _Known:
    from ..app import open_store

    if settings.sqlite_path and not settings.sqlite_path.exists():
        return _Known({}, {})  # asking must not create the database
    store = open_store(settings)
    await store.open()
    try:
        revisions = await store.known_revisions()
        return _Known({known.key_id: known for known in revisions}, await store.running_turns(time.time()))
    finally:
        await store.close()


async def _forget(settings: StoreSettings, key_id: str) -> bool:
    from ..app import open_store

    store = open_store(settings)
    await store.open()
    try:
        return await store.forget_revision(key_id)
    finally:
        await store.close()


_HEADER = ("KEY ID", "LISTING", "STATE", "FINGERPRINT", "FIRST SEEN", "RUNNING", "")


def _rows(listings: tuple[Listing, ...], known: _Known) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for listing in listings:
        for revision in listing.revisions.values():
            row = _row(revision.key_id, listing.name, revision.state, revision.fingerprint, known)
            seen = known.revisions.get(revision.key_id)
            rows.append((*row, _difference(listing.name, revision.fingerprint, seen)))
    configured = {key_id for listing in listings for key_id in listing.revisions}
    for key_id, seen in known.revisions.items():
        if key_id not in configured:
            rows.append((*_row(key_id, seen.listing, "-", seen.fingerprint, known), "not in the configuration"))
    return rows


def _row(key_id: str, listing: str, state: str, fingerprint: str, known: _Known) -> tuple[str, ...]:
    seen = known.revisions.get(key_id)
    first_seen = f"{datetime.fromtimestamp(seen.first_seen, UTC):%Y-%m-%d %H:%M:%SZ}" if seen else "never"
    return key_id, listing, state, fingerprint, first_seen, str(known.running.get(key_id, 0))


def _difference(listing: str, fingerprint: str, seen: KnownRevision | None) -> str:
    if seen is None:
        return ""
    if seen.listing != listing:
        return f"the store has it under listing {seen.listing}"
    return "" if seen.fingerprint == fingerprint else "the store has another secret"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
