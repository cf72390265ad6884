"""`finch-gateway contract-test`: Finch's connection test, played against each listing of a configuration."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from ..config import Config, ListingSettings, load
from ..config.settings import SQLITE
from ..emulator.checks import Bench, checks_for, run_check
from ..emulator.platform import NoAnswer, Platform
from ..emulator.receiver import Receiver
from . import CannotRun, config_option
from .contract_report import Report, print_summary
from .evidence import Evidence, ListingEvidence, as_json, hash_of, write_private
from .finch_side import origin_and_path, platform_for, receiver_address, receiver_for
from .gateway_process import GatewayNotStarted, run_orderly, running_gateway
from .operating import listing_named
from .screen import heed_no_color, ticking

_OWN_STORE = "an SQLite store that is thrown away afterwards"
_UNKNOWN_STORE = "that of the running gateway"


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

    Without --base-url a gateway is started for the test, with a store of its own that is thrown away: the configured
    one is left alone.

    The evidence holds no secret, signature or text, and is bound to the configuration's SHA-256.

    Exits with 0 when no check failed, 1 when one did, 2 when the test could not run.
    """
    heed_no_color(ctx)
    if evidence_file is not None and not evidence_file.absolute().parent.is_dir():
        raise CannotRun(f"--evidence: {click.format_filename(evidence_file.absolute().parent)} is no folder")
    evidence = run_orderly(
        _test(Wanted(config_file, base_url, receiver_url, receiver_listen, listing, deadline_s, is_json))
    )
    if is_json:
        click.echo(as_json(evidence))
    else:
        print_summary(evidence)
    if evidence_file is not None:
        _keep(evidence, evidence_file, is_quiet=is_json)
    ctx.exit(0 if evidence.ok else 1)


async def _test(wanted: Wanted) -> Evidence:
    environ = dict(os.environ)
    config = load(wanted.config_file, environ)
    listings = (listing_named(config, wanted.listing),) if wanted.listing else config.listings
    started_at, sha256 = datetime.now(UTC), hash_of(config.file)
    named = origin_and_path(wanted.base_url) if wanted.base_url else None
    async with _receiving(config, listings, wanted) as receiver, _target(config, named, environ, wanted) as target:
        # The neighbour of a listing is any other: a task must not be seen from there (wire 1.12).
        platforms = {listing.name: platform_for(config, listing, *target) for listing in config.listings}
        tested = [
            await _test_listing(listing, _bench(config, listing, platforms, receiver, wanted), target[0], wanted)
            for listing in listings
        ]
    store = _UNKNOWN_STORE if named else _OWN_STORE
    called_at = receiver.base_url if receiver else ""
    return Evidence(config.file, sha256, "".join(target), store, called_at, started_at, tuple(tested))


@asynccontextmanager
async def _target(
    config: Config, named: tuple[str, str] | None, environ: dict[str, str], wanted: Wanted
) -> AsyncIterator[tuple[str, str]]:
    """Yield the base URL without its path, and the path: those of a gateway that runs or is started here.

    The one that is started has a store of its own: in the configured one it would take up the real tasks that wait
    there, and leave the test's behind.
    """
    if named:
        yield named
        return
    if not wanted.is_quiet:
        click.echo(f"A gateway is started for this test, with {_OWN_STORE};")
        click.echo("--base-url tests one that runs, with the store it has.")
    with TemporaryDirectory(prefix="finch-contract-test-") as folder:
        own = {**environ, "FINCH_GATEWAY_STORE__URL": f"{SQLITE}{folder}/finch.db"}
        try:
            async with running_gateway(config.file, own) as gateway:
                yield gateway.base_url, ""
        except GatewayNotStarted as error:
            raise CannotRun(str(error)) from error


@asynccontextmanager
async def _receiving(
    config: Config, listings: tuple[ListingSettings, ...], wanted: Wanted
) -> AsyncIterator[Receiver | None]:
    """Listen for callbacks while the block runs, where a listing takes tasks and its callbacks can arrive."""
    with_tasks = [listing for listing in listings if "task" in listing.modes]
    address = receiver_address(config, wanted.base_url, wanted.receiver_url, wanted.receiver_listen)
    if not with_tasks or address is None:
        yield None
        return
    receiver = receiver_for(with_tasks, address)
    try:
        await receiver.start()
    except OSError as error:
        raise CannotRun(f"--receiver-listen: cannot be listened on: {os.strerror(error.errno or 0)}") from error
    try:
        yield receiver
    finally:
        await receiver.stop()


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
    report = None if wanted.is_quiet else Report(listing.name, listing.wire_protocol, endpoint.mount)
    results = []
    for check in checks_for(listing.modes):
        async with ticking(check.name):
            result = await run_check(check, bench)
        results.append(result)
        if report:
            report.add(result)
    evidence = ListingEvidence(
        listing.name, listing.wire_protocol, endpoint.mount, endpoint.credential.key_id, tuple(results)
    )
    if report:
        report.end(evidence)
    return evidence


def _keep(evidence: Evidence, file: Path, *, is_quiet: bool) -> None:
    try:
        write_private(file, as_json(evidence))
    except OSError as error:
        raise CannotRun(f"--evidence: {click.format_filename(file)} cannot be written: {error.strerror}") from error
    if not is_quiet:
        click.echo(f"Evidence for the configuration {evidence.config_sha256[:12]}…: {click.format_filename(file)}")
