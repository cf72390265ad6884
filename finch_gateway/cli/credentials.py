"""`finch-gateway credentials`: the file's revisions beside what the store knows of them (wire 1.12)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from ..config import StoreSettings
from ..listing import Listing, Loaded, load_all
from ..store import KnownRevision, Store
from . import config_option
from .operating import ask_store, configured, moment, print_table


@dataclass(frozen=True, slots=True)
class _Known:
    """What the store knows: revisions by key id, the turns that run under each, and the tasks that are open."""

    revisions: Mapping[str, KnownRevision]
    running: Mapping[str, int]
    open_tasks: Mapping[str, int]


@click.group(invoke_without_command=True)
@config_option
@click.pass_context
def command(ctx: click.Context, config_file: Path | None) -> None:
    """List credential revisions and what still uses them.

    Shows every revision of the configuration and every one that the store has seen, never a secret: a
    fingerprint tells two secrets apart.
    """
    if ctx.invoked_subcommand is None:
        loaded = load_all(config_file, os.environ)
        print_table([_HEADER, *_rows(loaded.listings, _look(loaded.config.store))])


@command.command()
@click.argument("key_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@configured
def forget(loaded: Loaded, key_id: str, yes: bool) -> None:
    """Drop what the store knows of KEY_ID, so that a mistyped first secret can be corrected.

    The next start records the key id with the secret that the configuration then has.
    """
    settings = loaded.config.store
    known = _look(settings)
    if key_id not in known.revisions:
        raise click.ClickException(f"The store does not know {key_id}.")
    in_use = known.running.get(key_id, 0) + known.open_tasks.get(key_id, 0)
    if in_use:
        click.echo(f"warning: {in_use} turns and tasks are open under {key_id} right now", err=True)
    if not yes:
        click.confirm(f"Forget {key_id} of {known.revisions[key_id].listing}?", abort=True, err=True)
    if not ask_store(settings, lambda store: store.forget_revision(key_id), without=False):
        raise click.ClickException(f"The store does not know {key_id} any more.")
    click.echo(f"Forgotten: {key_id}. The next start records it anew.")


def _look(settings: StoreSettings) -> _Known:
    async def look(store: Store) -> _Known:
        revisions = await store.known_revisions()
        return _Known(
            {known.key_id: known for known in revisions},
            await store.running_turns(time.time()),
            await store.open_tasks(),
        )

    return ask_store(settings, look, without=_Known({}, {}, {}))


_HEADER = ("KEY ID", "LISTING", "STATE", "FINGERPRINT", "FIRST SEEN", "TURNS", "TASKS", "")


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
    first_seen = moment(seen.first_seen) if seen else "never"
    used = (str(known.running.get(key_id, 0)), str(known.open_tasks.get(key_id, 0)))
    return key_id, listing, state, fingerprint, first_seen, *used


def _difference(listing: str, fingerprint: str, seen: KnownRevision | None) -> str:
    if seen is None:
        return ""
    if seen.listing != listing:
        return f"the store has it under listing {seen.listing}"
    return "" if seen.fingerprint == fingerprint else "the store has another secret"
