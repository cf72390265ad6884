"""`finch-gateway demo`: a real gateway, a small agent and Finch's side of the wire, walked through in seconds."""

from __future__ import annotations

import time

import click

from .. import CannotRun
from ..screen import heed_no_color


@click.command("demo")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Watch a gateway, an example agent and Finch's side of the wire work together on this machine.

    Needs no network, no account and no configuration: everything lives in a folder that is removed at the end.

    Exits with 0 when every step went as it must, 1 when one did not, 2 when the gateway did not start.
    """
    from ..gateway_process import GatewayNotStarted, run_orderly
    from .show import run_show

    heed_no_color(ctx)
    started = time.monotonic()
    try:
        ok = run_orderly(run_show(lambda: time.monotonic() - started))
    except GatewayNotStarted as error:
        raise CannotRun(str(error)) from error
    ctx.exit(0 if ok else 1)
