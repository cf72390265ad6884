"""`finch-gateway callbacks`: what Finch has not been told yet, and telling it again."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from ..listing import Loaded
from ..store import EventRow, Store
from . import config_option
from .operating import DASHED, ask_store, configured, moment, print_table

MOST = 10_000
_HEADER = ("TASK", "SEQUENCE", "STATUS", "LISTING", "HOST", "ATTEMPTS", "WRITTEN", "DUE", "STATE")


@click.group()
@config_option
def command(config_file: Path | None) -> None:
    """List, show and resend callbacks that were not delivered.

    A delivered callback is gone from this list. A dead one is tried no more by itself: its schedule is over,
    or the receiver refused it for good.
    """


@command.command("list")
@click.option("--task", "task_id", help="Only this task's.")
@click.option("--dead/--waiting", "is_dead", default=None, help="Only dead ones, or only those still to be delivered.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, MOST), help="At most so many.")
@configured
def list_(loaded: Loaded, task_id: str | None, is_dead: bool | None, limit: int) -> None:
    """List callbacks, oldest first: the task's status that each tells, and what becomes of the callback itself."""
    none: Sequence[EventRow] = ()
    rows = ask_store(loaded.config.store, lambda store: store.list_events(task_id, is_dead, limit), without=none)
    print_table([_HEADER, *(_row(row) for row in rows)])


@command.command(epilog=DASHED)
@click.argument("task_id")
@click.argument("sequence", type=click.IntRange(1))
@configured
def show(loaded: Loaded, task_id: str, sequence: int) -> None:
    """Show one callback as it is sent, byte for byte."""
    none: Sequence[EventRow] = ()
    rows = ask_store(loaded.config.store, lambda store: store.list_events(task_id, None, MOST), without=none)
    row = next((row for row in rows if row.sequence == sequence), None)
    if row is None:
        raise click.ClickException(f"Callback {sequence} of task {task_id} is not there; it may be delivered.")
    click.echo(f"{_status(row)}, {_state(row)}, attempts: {row.attempts}", err=True)
    click.echo(row.body)


@command.command(epilog=DASHED)
@click.argument("task_id", required=False)
@click.argument("sequence", type=click.IntRange(1), required=False)
@click.option("--all-dead", is_flag=True, help="Every dead one.")
@configured
def resend(loaded: Loaded, task_id: str | None, sequence: int | None, all_dead: bool) -> None:
    """Make a callback due at once, with a fresh schedule; a running gateway delivers it.

    TASK_ID alone stands for all of its dead ones.
    """
    if all_dead == (task_id is not None):
        raise click.UsageError("Name a task, or use --all-dead.")
    settings = loaded.config.store
    sent = ask_store(settings, lambda store: _resend(store, task_id, sequence), without=0)
    if sent:
        click.echo(f"Due again: {sent}.")
    elif task_id is None:
        click.echo("No dead callbacks.")
    elif sequence is not None:
        raise click.ClickException(f"Callback {sequence} of task {task_id} is not there; it may be delivered.")
    else:
        none: Sequence[EventRow] = ()
        waiting = ask_store(settings, lambda store: store.list_events(task_id, False, MOST), without=none)
        raise click.ClickException(_none_dead(task_id, [row.sequence for row in waiting]))


async def _resend(store: Store, task_id: str | None, sequence: int | None) -> int:
    if task_id is not None and sequence is not None:
        return int(await store.resend_event(task_id, sequence, time.time()))
    dead = await store.list_events(task_id, True, MOST)
    return sum([await store.resend_event(row.task_id, row.sequence, time.time()) for row in dead])


def _none_dead(task_id: str, waiting: Sequence[int]) -> str:
    if not waiting:
        return f"Task {task_id} has no callbacks to deliver."
    named = ", ".join(map(str, waiting))
    return f"Task {task_id} has no dead callbacks; to hurry one that waits, name its SEQUENCE: {named}."


def _row(row: EventRow) -> tuple[str, ...]:
    return (
        row.task_id,
        str(row.sequence),
        _status(row),
        row.listing,
        row.host,
        str(row.attempts),
        moment(row.created_at),
        "-" if row.is_dead else moment(row.due_at),
        _state(row),
    )


def _status(row: EventRow) -> str:
    """Return the task's status that a callback tells."""
    return str(json.loads(row.body)["status"])


def _state(row: EventRow) -> str:
    return f"dead: {row.reason}" if row.is_dead else "waiting for delivery"
