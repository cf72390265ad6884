"""`finch-gateway contract-test`: Finch's connection test, played against each listing of a configuration."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import click

from ..config import Config, ListingSettings, load
from ..emulator.checks import Bench, CheckResult, checks_for, run_check
from ..emulator.line import SocketLine
from ..emulator.platform import NoAnswer, Platform
from ..emulator.receiver import Receiver
from . import config_option
from .evidence import Evidence, ListingEvidence, as_json, hash_of, write_private
from .finch_side import SideUnusable, endpoint_of, receiver_address, receiver_for
from .gateway_process import GatewayNotStarted, run_orderly, running_gateway
from .screen import heed_no_color, mark, ticking


class CannotRun(click.ClickException):
    """The test could not be made at all."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"finch-gateway: {self.message}", err=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    config_file: Path | None
    base_url: str
    receiver_url: str
    receiver_listen: str
    listing: str
    deadline_s: float
    is_quiet: bool


@click.command("contract-test")
@config_option
@click.option("--base-url", default="", help="A gateway that runs already, as Finch reaches it; else one is started.")
@click.option(
    "--receiver-url",
    default="",
    metavar="URL",
    help="What callback URLs begin with: how the gateway reaches this tester, paths unchanged.",
)
@click.option(
    "--receiver-listen",
    default="",
    metavar="HOST:PORT",
    help="Where the tester listens for what --receiver-url leads to; a URL of 127.0.0.1 names it already.",
)
@click.option("--listing", default="", metavar="NAME", help="Test this listing only.")
@click.option(
    "--deadline",
    "deadline_s",
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(1, 3600),
    help="How long the agent may take for a turn or a task.",
)
@click.option("--json", "is_json", is_flag=True, help="Print the evidence as JSON.")
@click.option("--evidence", "evidence_file", type=click.Path(path_type=Path), help="Write the evidence to this file.")
@click.pass_context
def command(
    ctx: click.Context,
    config_file: Path | None,
    base_url: str,
    receiver_url: str,
    receiver_listen: str,
    listing: str,
    deadline_s: float,
    is_json: bool,
    evidence_file: Path | None,
) -> None:
    """Play Finch's connection test against each listing of the configuration.

    First the path Finch walks: signed health, then one contract-test turn. Then everything the listing must
    refuse, and the attempts of one turn that must get one answer. The agent runs for two turns.

    Where the listing takes tasks: one is followed to its end by signed callbacks, others are canceled and left to
    expire. The agent runs for up to three. Callbacks need a way here: --receiver-url, or an [outbound] table that
    lets the gateway call 127.0.0.1; without one, polling stands in and the summary says where.

    The evidence holds no secret, signature or text, and is bound to the configuration's SHA-256.

    Exits with 0 when every check passed, 1 when one failed, 2 when the test could not run.
    """
    heed_no_color(ctx)
    evidence = run_orderly(
        _test(Wanted(config_file, base_url, receiver_url, receiver_listen, listing, deadline_s, is_json))
    )
    if is_json:
        click.echo(as_json(evidence))
    else:
        _print_summary(evidence)
    if evidence_file is not None:
        _keep(evidence, evidence_file, is_quiet=is_json)
    ctx.exit(0 if evidence.ok else 1)


async def _test(wanted: Wanted) -> Evidence:
    environ = dict(os.environ)
    config = load(wanted.config_file, environ)
    listings = _chosen(config, wanted.listing)
    started_at, sha256 = datetime.now(UTC), hash_of(config.file)
    _check_base_url(wanted.base_url)
    async with _receiving(config, listings, wanted) as receiver, _target(config, wanted, environ) as (base_url, path):
        # The neighbour of a listing is any other: a task must not be seen from there (wire 1.12).
        platforms = {listing.name: _platform(config, listing, base_url, path) for listing in config.listings}
        tested = [
            await _test_listing(listing, _bench(config, listing, platforms, receiver, wanted), base_url, wanted)
            for listing in listings
        ]
    return Evidence(config.file, sha256, base_url + path, started_at, tuple(tested))


def _chosen(config: Config, name: str) -> tuple[ListingSettings, ...]:
    chosen = tuple(listing for listing in config.listings if name in ("", listing.name))
    if not chosen:
        known = ", ".join(listing.name for listing in config.listings)
        raise CannotRun(f"--listing: the configuration has no listing of that name; it has: {known}")
    return chosen


def _check_base_url(base_url: str) -> None:
    try:
        urlsplit(base_url)
    except ValueError as error:
        raise CannotRun("--base-url: is malformed") from error


@asynccontextmanager
async def _target(config: Config, wanted: Wanted, environ: dict[str, str]) -> AsyncIterator[tuple[str, str]]:
    """Yield the base URL without its path, and the path: those of a gateway that runs or is started here."""
    if wanted.base_url:
        parts = urlsplit(wanted.base_url)
        yield f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        return
    try:
        async with running_gateway(config.file, environ) as gateway:
            yield gateway.base_url, ""
    except GatewayNotStarted as error:
        raise CannotRun(str(error)) from error


@asynccontextmanager
async def _receiving(
    config: Config, listings: tuple[ListingSettings, ...], wanted: Wanted
) -> AsyncIterator[Receiver | None]:
    """Listen for callbacks while the block runs, where a listing takes tasks and its callbacks can arrive."""
    with_tasks = [listing for listing in listings if "task" in listing.modes]
    try:
        address = receiver_address(config, wanted.base_url, wanted.receiver_url, wanted.receiver_listen)
        receiver = receiver_for(with_tasks, address) if with_tasks and address else None
    except SideUnusable as error:
        raise CannotRun(str(error)) from error
    if receiver is None:
        yield None
        return
    try:
        await receiver.start()
    except OSError as error:
        raise CannotRun(f"--receiver-listen: cannot be listened on: {os.strerror(error.errno or 0)}") from error
    try:
        yield receiver
    finally:
        await receiver.stop()


def _platform(config: Config, listing: ListingSettings, base_url: str, base_path: str) -> Platform:
    try:
        return Platform(endpoint_of(config, listing, base_path), SocketLine(base_url))
    except SideUnusable as error:
        raise CannotRun(str(error)) from error
    except ValueError as error:
        raise CannotRun(f"--base-url: {error}") from error


def _bench(
    config: Config,
    listing: ListingSettings,
    platforms: dict[str, Platform],
    receiver: Receiver | None,
    wanted: Wanted,
) -> Bench:
    neighbour = next((platform for name, platform in platforms.items() if name != listing.name), None)
    return Bench(
        platforms[listing.name],
        wanted.deadline_s,
        config.server.max_body_bytes,
        listing.modes,
        receiver=receiver,
        neighbour=neighbour,
    )


async def _test_listing(listing: ListingSettings, bench: Bench, base_url: str, wanted: Wanted) -> ListingEvidence:
    endpoint = bench.platform.endpoint
    try:
        await bench.platform.health()
    except NoAnswer as error:
        raise CannotRun(f"{base_url}: {error}") from error
    if not wanted.is_quiet:
        click.echo(click.style(f"\n{listing.name}", bold=True) + f"  {listing.wire_protocol} at {endpoint.mount}")
    results = []
    for check in checks_for(listing.modes):
        async with ticking(check.name):
            result = await run_check(check, bench)
        results.append(result)
        if not wanted.is_quiet:
            _print_result(result)
    return ListingEvidence(
        listing.name, listing.wire_protocol, endpoint.mount, endpoint.credential.key_id, tuple(results)
    )


def _print_result(result: CheckResult) -> None:
    rules = click.style(f"wire {', '.join(result.rules)}", dim=True)
    click.echo(f"  {mark(result.ok)} {result.name:<30} {result.got:<50} {result.elapsed_ms:>6} ms  {rules}")
    if result.remark:
        click.echo(f"      {result.remark}")
    if result.ok:
        return
    click.echo(f"      expected: {result.expected}")
    for fault in result.faults:
        click.secho(f"      {fault}", fg="red")
    for exchange in result.exchanges[:3]:
        click.echo(click.style(f"      sent: {exchange.method} {exchange.target}, {exchange.request_body}", dim=True))


def _print_summary(evidence: Evidence) -> None:
    click.echo()
    for listing in evidence.listings:
        failed = [result.name for result in listing.results if not result.ok]
        passed = len(listing.results) - len(failed)
        words = "all checks passed" if listing.ok else f"failed: {', '.join(failed)}"
        click.echo(f"{mark(listing.ok)} {listing.name}: {passed} of {len(listing.results)}, {words}")
        if listing.fell_back:
            click.echo(f"  by polling, as nothing can reach this tester: {', '.join(listing.fell_back)}")
            click.echo("  --receiver-url URL names the way here, and lets callbacks be tested")


def _keep(evidence: Evidence, file: Path, *, is_quiet: bool) -> None:
    try:
        write_private(file, as_json(evidence))
    except OSError as error:
        raise CannotRun(f"--evidence: {click.format_filename(file)} cannot be written: {error.strerror}") from error
    if not is_quiet:
        click.echo(f"Evidence for the configuration {evidence.config_sha256[:12]}…: {click.format_filename(file)}")
