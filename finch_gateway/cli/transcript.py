"""What an agent said, as a person wants to read it, and what the person answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ..emulator.envelopes import JsonObject
from ..emulator.exchange import Exchange
from ..emulator.replies import NotJson, failure_of, read_json
from ..emulator.tasks import State
from . import CannotRun
from .screen import above_the_clock, plain

_COLOURS = {"completed": "green", "failed": "red", "canceled": "yellow", "expired": "yellow"}


def document_of(exchange: Exchange, status: int, origin: str) -> JsonObject:
    """Return the document that an answer is; raise `CannotRun` where it is not the listing's own, or a refusal."""
    if exchange.distrust:
        raise CannotRun(
            f"{origin}: what answers there does not sign as this listing does ({exchange.distrust}); "
            "it runs with another secret, or is another program"
        )
    try:
        document = read_json(exchange.answer.body)
    except NotJson as error:
        raise CannotRun(f"{origin}: {error}") from error
    if not isinstance(document, dict):
        raise CannotRun(f"{origin}: the answer is not an object")
    if exchange.answer.status != status:
        told = f"{exchange.answer.status} {document.get('code', '')}: {document.get('message', '')}"
        hint = " A base URL ends before the mount." if exchange.answer.status == 404 else ""
        raise CannotRun(plain(f"{origin}: refused with {told}{hint}"))
    return document


def sound(faults: Sequence[str], origin: str) -> None:
    """Raise `CannotRun` where an answer is not as Finch would read it."""
    if faults:
        raise CannotRun(f"{origin}: the answer is not as Finch reads it: {faults[0]}; see finch-gateway contract-test")


def print_end(document: Mapping[str, Any]) -> bool:
    """Print a result, or why there is none; say whether there is one."""
    status = document["status"]
    if status == "completed":
        for part in document["message"]["content"]:
            click.echo(plain(part["text"] if part["type"] == "text" else _json(part["json"])))
        return True
    reason = ": ".join(filter(None, failure_of(document))) if status == "failed" else ""
    click.echo(click.style(status, fg=_COLOURS.get(status)) + (f": {plain(reason)}" if reason else ""))
    return False


def print_state(state: State, elapsed_s: float) -> None:
    """Print one state of a task with the seconds since it was sent."""
    progress = state.document.get("progress", {})
    percent, stage = progress.get("percent"), progress.get("stage", "")
    status = click.style(state.status, fg=_COLOURS.get(state.status, "cyan"))
    known = "" if percent is None else f"{' ' * (15 - len(state.status))}{percent:>3} % {plain(stage)}"
    above_the_clock(f"{elapsed_s:6.1f} s  {status}{known}")


def answer_to(questions: Sequence[str]) -> str:
    """Show what the agent asks, and return the answer from the terminal or the next line of the standard input."""
    for question in questions:
        click.echo(f"? {plain(question)}", err=True)
    if sys.stdin.isatty():
        return _prompted()
    for line in sys.stdin:
        if line.strip():
            click.echo(f"> {plain(line.strip())}", err=True)
            return line.strip()
    raise CannotRun("the agent asks, and the standard input holds no answer")


def _prompted() -> str:
    try:
        return str(click.prompt(">", prompt_suffix=" ", err=True))
    except click.Abort:
        click.echo(err=True)  # the terminal is still on the line of the prompt
        raise


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
