"""What the talking commands share: colours a terminal may refuse, and a clock while something takes time."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

WIDTH = 100
"""How many columns a line for the eye may take."""

_SHOWN_AFTER_S = 0.3
_FRAME_S = 0.1
# Controls but tab and newline, what turns the writing direction, and halves of a character.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CLEARED = "\r\x1b[2K"
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def heed_no_color(ctx: click.Context) -> None:
    """Write without colours where `NO_COLOR` is set (click itself leaves them out where there is no terminal)."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def mark(ok: bool, tried: bool = True) -> str:
    """Return the sign of something that held, or did not, or was not tried."""
    if ok and not tried:
        return click.style("–", fg="yellow", bold=True)
    return click.style("✓", fg="green", bold=True) if ok else click.style("✗", fg="red", bold=True)


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, the last an ellipsis where there was more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def paragraph(text: str, indent: int) -> str:
    """Return a text broken into lines of `WIDTH` columns, each after `indent` blanks; no word is broken."""
    margin = " " * indent
    return textwrap.fill(
        text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )


def plain(text: str) -> str:
    """Return a stranger's text with nothing in it that would steer a terminal."""
    return _STEERING.sub("�", text.replace("\r\n", "\n"))


def above_the_clock(line: str) -> None:
    """Print a line to standard error in the place where `ticking` shows its clock, which moves on below."""
    click.echo((_CLEARED if sys.stderr.isatty() else "") + line, err=True)


@asynccontextmanager
async def ticking(words: str) -> AsyncIterator[None]:
    """Show `words` and the seconds gone by on a terminal's standard error while the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    clock = asyncio.create_task(_tick(words))
    try:
        yield
    finally:
        clock.cancel()
        await asyncio.gather(clock, return_exceptions=True)


async def _tick(words: str) -> None:
    started = time.monotonic()
    await asyncio.sleep(_SHOWN_AFTER_S)
    frame = 0
    try:
        while True:
            sign = _FRAMES[frame % len(_FRAMES)]
            click.echo(f"\r  {sign} {words} {time.monotonic() - started:.1f} s", err=True, nl=False)
            frame += 1
            await asyncio.sleep(_FRAME_S)
    finally:
        click.echo(_CLEARED, err=True, nl=False)
