"""An exchange in a form a person enjoys reading: what left, what was signed, what came back."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from typing import Any

import click

from ...emulator.envelopes import JsonObject
from ...emulator.exchange import Exchange, Request, redacted
from ...emulator.signer import PLATFORM_HEADERS
from ..screen import WIDTH, cut, paragraph

MARGIN = "     "
_MAX_BODY_LINES = 18
_LINE_CHARS = WIDTH - len(MARGIN)
_TOLD_FIELDS = (
    "invocation_id",
    "dispatch_id",
    "interaction_mode",
    "agent",
    "conversation",
    "input",
    "limits",
    "reason",
)
_UUID = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MEANINGS = (
    "the method",
    "the target, byte for byte as it is on the wire",
    "seconds since 1970, at most 300 away from the other clock",
    "a nonce, good for one request, ever",
    "SHA-256 of the body",
)


def say(words: str) -> None:
    """Print a remark between exchanges."""
    click.echo(paragraph(words, len(MARGIN)))


def show_exchange(exchange: Exchange, *, short: bool = False) -> None:
    """Print a request and its answer; `short` leaves out the bodies."""
    show_request(exchange.request, short=short)
    show_answer(exchange, short=short)


def show_request(request: Request, *, short: bool = False) -> None:
    """Print a request line, the four headers, and the part of an envelope that tells the story."""
    click.echo(f"  {click.style('→', fg='cyan')} " + click.style(f"{request.method} {request.target}", bold=True))
    four = dict(redacted(request.headers))
    key_id, timestamp, nonce, signature = (f"{name}: {cut(four[name], 26)}" for name in PLATFORM_HEADERS)
    click.secho(f"{MARGIN}{key_id:<48}{timestamp}\n{MARGIN}{nonce:<48}{signature}", dim=True)
    if request.body and not short:
        _show_body(*_told(request.body))


def show_answer(exchange: Exchange, *, short: bool = False) -> None:
    """Print an answer's status and body, and whether its signature holds."""
    answer = exchange.answer
    # The answer's own signature: a refusal of a bad request is well signed too.
    proof = click.style("answer's signature verified", fg="green") if exchange.proven else _distrusted(exchange)
    status = click.style(str(answer.status), fg="green" if answer.status < 300 else "yellow", bold=True)
    click.echo(f"  {click.style('←', fg='cyan')} {status}  {proof}, {answer.elapsed_s * 1000:.0f} ms")
    if answer.body and not short:
        _show_body(_decoded(answer.body))


def show_canonical(canonical: str) -> None:
    """Lay out the five lines that are hashed into a signature, each with its meaning."""
    say("The signature is an HMAC-SHA256 over these five lines and nothing else:")
    for line, meaning in zip(canonical.split("\n"), _MEANINGS, strict=True):
        shown = click.style(f"{cut(line, 34):<36}", fg="magenta")
        click.echo(f"{MARGIN}  {shown}{click.style(meaning, dim=True)}")


def digest_of(body: bytes) -> str:
    """Return the beginning of a body's SHA-256, enough to compare two by eye."""
    return hashlib.sha256(body).hexdigest()[:16] + "…"


def _distrusted(exchange: Exchange) -> str:
    return click.style(f"NOT PROVEN: {exchange.distrust}", fg="red", bold=True)


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return f"{len(body)} bytes that are no JSON"


def _told(body: bytes) -> tuple[Any, int]:
    """Return the fields of an envelope that a reader follows, and how many it has beside them."""
    envelope = _decoded(body)
    if not isinstance(envelope, dict):
        return envelope, 0
    told: JsonObject = {name: _trimmed(name, envelope[name]) for name in _TOLD_FIELDS if name in envelope}
    return told, len(envelope) - len(told)


def _trimmed(name: str, value: Any) -> Any:
    if name == "conversation":
        return {key: value[key] for key in ("conversation_id", "turn_id")}
    if name == "agent":
        return {"interaction_mode": value["interaction_mode"]}
    return value["content"] if name == "input" else value


def _show_body(value: Any, left_out: int = 0) -> None:
    lines = _lines(value)
    for line in lines[:_MAX_BODY_LINES]:
        click.echo(MARGIN + line)
    if len(lines) > _MAX_BODY_LINES:
        click.secho(f"{MARGIN}… {len(lines) - _MAX_BODY_LINES} more lines", dim=True)
    if left_out:
        click.secho(f"{MARGIN}… and {left_out} more field{'s' if left_out > 1 else ''}", dim=True)


def _lines(value: Any) -> list[str]:
    """Write one entry per root field, long ones wrapped, ids shortened to what the eye compares."""
    text = _written(value)
    if not isinstance(value, dict) or len(text) <= _LINE_CHARS:
        return [text]
    width = max(len(name) for name in value) + 2
    lines: list[str] = []
    for name, child in value.items():
        lines += textwrap.wrap(
            _written(child), _LINE_CHARS, initial_indent=f"{name:<{width}}", subsequent_indent=" " * width
        )
    return lines


def _written(value: Any) -> str:
    return _UUID.sub(r"\1…", json.dumps(value, ensure_ascii=False))
