"""`finch-gateway tasks`: the tasks that the store knows, one of them closely, and ending one by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from ..config import Config
from ..engine.desk import Desk, TaskFile
from ..listing import Loaded
from ..store import EventRow, Store, TaskRow
from ..wire.task import cancel
from . import config_option
from .operating import DASHED, ask_store, configured, listing_named, moment, print_table

DAY_S = 86_400.0
RACES = 20
_HEADER = ("TASK", "LISTING", "INVOCATION", "STATUS", "SEQUENCE", "ATTEMPT", "HELD UNTIL", "DEADLINE")


@click.group()
@config_option
def command(config_file: Path | None) -> None:
    """List, show and cancel tasks."""


@command.command("list")
@click.option("--listing", metavar="NAME", help="Only this listing's.")
@click.option("--open/--ended", "is_open", default=None, help="Only open ones, or only ended ones.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@configured
def list_(loaded: Loaded, listing: str | None, is_open: bool | None, limit: int) -> None:
    """List tasks, newest first."""
    if listing is not None:
        listing_named(loaded.config, listing)
    none: Sequence[TaskRow] = ()
    rows = ask_store(loaded.config.store, lambda store: store.list_tasks(listing, is_open, limit), without=none)
    print_table([_HEADER, *(_row(row) for row in rows)])


@command.command(epilog=DASHED)
@click.argument("task_id")
@configured
def show(loaded: Loaded, task_id: str) -> None:
    """Show one task with its callbacks that are not delivered yet; nothing of what was asked or answered."""
    config = loaded.config

    async def look(store: Store) -> tuple[TaskRow | None, Sequence[EventRow]]:
        return await _find(store, config, task_id), await store.list_events(task_id, None, 1000)

    nothing: tuple[TaskRow | None, Sequence[EventRow]] = (None, ())
    row, events = ask_store(config.store, look, without=nothing)
    if row is None:
        raise click.ClickException(f"The store does not know task {task_id}.")
    task = TaskFile.of(row).task
    facts = {
        "listing": row.listing,
        "invocation": row.invocation_id,
        "mode": task.mode,
        "dispatched under": row.key_id,
        "status": task.state.value,
        "sequence": str(task.sequence),
        "accepted": moment(task.created_at),
        "deadline": moment(row.index.deadline),
        "attempt": str(row.attempt),
        "held until": moment(row.lease_until),
        "input rounds": str(task.rounds),
        "failure": task.error_code or "-",
        "callbacks to": task.receiver.host if task.receiver else "-",
    }
    for name, value in facts.items():
        click.echo(f"{name + ':':<18}{value}")
    for event in events:
        state = f"dead: {event.reason}" if event.is_dead else f"due {moment(event.due_at)}"
        click.echo(f"{'callback ' + str(event.sequence) + ':':<18}{event.attempts} attempts, {state}")


@command.command("cancel", epilog=DASHED)
@click.argument("task_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@configured
def cancel_(loaded: Loaded, task_id: str, yes: bool) -> None:
    """End an open task as canceled: its agent stops within a second, and Finch is told."""
    config = loaded.config
    if not yes:
        click.confirm(f"Cancel {task_id}?", abort=True, err=True)
    status = ask_store(config.store, lambda store: _cancel(store, config, task_id), without="")
    if not status:
        raise click.ClickException(f"The store does not know task {task_id}.")
    if status != "canceled":
        raise click.ClickException(f"Task {task_id} has ended before: {status}.")
    click.echo(f"Canceled: {task_id}.")


async def _cancel(store: Store, config: Config, task_id: str) -> str:
    """Return the status the task then has; empty where it is not known."""
    desk = Desk(store, time.time, config.store.retention_days * DAY_S, lambda: None)
    for _ in range(RACES):
        row = await _find(store, config, task_id)
        if row is None:
            return ""
        file = TaskFile.of(row)
        if file.task.is_final or await desk.commit(file, cancel(file.task), epoch=None, keeps_lease=False):
            return file.task.state.value
    raise click.ClickException(f"Task {task_id} changes all the time; try again.")


async def _find(store: Store, config: Config, task_id: str) -> TaskRow | None:
    for listing in config.listings:
        row = await store.read_task(task_id, listing.name, None, time.time())
        if isinstance(row, TaskRow):
            return row
    return None


def _row(row: TaskRow) -> tuple[str, ...]:
    task = TaskFile.of(row).task
    return (
        row.task_id,
        row.listing,
        row.invocation_id,
        task.state.value,
        str(task.sequence),
        str(row.attempt),
        moment(row.lease_until),
        moment(row.index.deadline),
    )
