"""What the talking commands share: colours a terminal may refuse, and a clock while something takes time."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

_SHOWN_AFTER_S = 0.3
_FRAME_S = 0.1
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def heed_no_color(ctx: click.Context) -> None:
    """Write without colours where `NO_COLOR` is set (click itself leaves them out where there is no terminal)."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def mark(ok: bool) -> str:
    """Return the sign of something that held or did not."""
    return click.style("✓", fg="green", bold=True) if ok else click.style("✗", fg="red", bold=True)


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
        click.echo("\r\x1b[2K", err=True, nl=False)
