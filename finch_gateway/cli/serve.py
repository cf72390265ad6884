"""`finch-gateway serve`: runs the gateway."""

from __future__ import annotations

import os
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import click

from .. import __version__
from ..app import Gateway
from ..listing import Loaded, load_all
from ..observe import Log
from ..server import Parser, bind, run, serve
from ..workers import READY, Workers
from . import config_option


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a worker process gets from the process that started it: descriptors."""

    listener: int
    life: int
    ready: int


@click.command()
@config_option
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes on one socket.")
@click.option(
    "--capture",
    "captures",
    default=0,
    metavar="N",
    type=click.IntRange(0, 10_000),
    help="Keep the last N refused requests in ./captures beside the configuration, on this machine only.",
)
@click.option(
    "--http", "parser", default="auto", type=click.Choice(["auto", "h11", "httptools"]), help="The HTTP parser."
)
@click.option("--inherited", hidden=True, help="Descriptors from the parent process.")
def command(config_file: Path | None, workers: int, captures: int, parser: Parser, inherited: str | None) -> None:
    """Run the gateway until it is told to stop (SIGTERM or Ctrl-C); then it drains."""
    loaded = load_all(config_file, os.environ)
    log = Log(loaded.config.server.log_level)
    if inherited:
        _serve_as_worker(loaded, log, captures, parser, Inherited(*map(int, inherited.split(","))))
    elif workers > 1:
        sys.exit(_serve_with_workers(loaded, log, workers, captures, parser))
    else:
        _serve_alone(loaded, log, captures, parser)


def _serve_alone(loaded: Loaded, log: Log, captures: int, parser: Parser) -> None:
    listener = bind(loaded.config.server)

    def on_ready() -> None:
        _announce(loaded, log, listener)

    run(
        lambda: serve(
            Gateway(loaded.config, loaded.listings, log, captures=captures),
            listener,
            loaded.config.server,
            log,
            parser=parser,
            on_ready=on_ready,
        )
    )
    log.info("server.stopped")
    _leave_stuck_threads()


def _leave_stuck_threads() -> None:
    """End the process at once when a thread is left: the interpreter waits for an agent's pool, daemons or not."""
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _serve_with_workers(loaded: Loaded, log: Log, count: int, captures: int, parser: Parser) -> int:
    listener = bind(loaded.config.server)
    arguments = ["serve", "--config", str(loaded.config.file), "--capture", str(captures), "--http", parser]
    workers = Workers(arguments, count, listener, log, loaded.config.server.grace_s + 10)
    status = workers.run(lambda: _announce(loaded, log, listener))
    log.info("server.stopped")
    return status


def _serve_as_worker(loaded: Loaded, log: Log, captures: int, parser: Parser, inherited: Inherited) -> None:
    listener = socket.socket(fileno=inherited.listener)

    def on_ready() -> None:
        log.info("worker.started", pid=os.getpid())
        # Before the parent says that all serve.
        log.flush()
        os.write(inherited.ready, READY)
        os.close(inherited.ready)

    run(
        lambda: serve(
            Gateway(loaded.config, loaded.listings, log, captures=captures),
            listener,
            loaded.config.server,
            log,
            parser=parser,
            on_ready=on_ready,
            life=inherited.life,
        )
    )


def _announce(loaded: Loaded, log: Log, listener: socket.socket) -> None:
    """Say where the gateway listens, once for a program (standard error) and once for a person."""
    host, port = listener.getsockname()[:2]
    for warning in loaded.config.warnings:
        log.warning("config.warning", text=warning)
    log.info("server.started", host=host, port=port, pid=os.getpid(), version=__version__)
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"finch-gateway {__version__} on http://{shown}:{port}")
    for listing in loaded.listings:
        click.echo(f"  {listing.name}: {listing.wire_protocol} at {loaded.config.server.public_prefix}{listing.mount}")
    sys.stdout.flush()
