"""`finch-gateway check`: what the gateway would run with, and everything that would stop it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..app import backend_problems
from ..config import Config
from ..errors import ConfigError, Problem
from ..listing import Loaded, read_all
from . import config_option


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@config_option
@click.pass_context
def command(ctx: click.Context, files: tuple[Path, ...], config_file: Path | None) -> None:
    """Show the effective configuration and everything wrong with it, offline.

    FILES are configuration files; without any it is the one that the other commands would take. Secrets are
    shown as their references. Nothing is started, connected to or imported: whether the agent itself can be
    loaded and the store answers is what `serve` says before it listens.

    Exits with 0 when the gateway could start from every file, else with 2.
    """
    verdicts = [_check_file(file) for file in (files or (config_file,))]
    ctx.exit(0 if all(verdicts) else 2)


def _check_file(file: Path | None) -> bool:
    try:
        loaded = read_all(file, os.environ)
    except ConfigError as error:
        _print_problems(error.problems)
        return False
    problems = (*loaded.problems, *backend_problems(loaded.config, loaded.listings))
    _print_settings(loaded.config)
    for warning in loaded.config.warnings:
        click.echo(f"warning: {warning}")
    _print_problems(problems)
    _print_verdict(loaded, len(problems))
    return not problems


def _print_settings(config: Config) -> None:
    click.echo(f"{click.format_filename(config.file)} comes to:\n")
    name_width = max(len(shown.setting) for shown in config.shown)
    text_width = min(48, max(len(shown.text) for shown in config.shown))
    for shown in config.shown:
        click.echo(f"  {shown.setting:<{name_width}}  {shown.text:<{text_width}}  {shown.origin}")
    click.echo()


def _print_problems(problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        click.echo(f"finch-gateway: {problem}", err=True)


def _print_verdict(loaded: Loaded, problems: int) -> None:
    name = click.format_filename(loaded.config.file)
    if problems:
        click.echo(f"{name}: {problems} to correct.", err=True)
        return
    for listing in loaded.listings:
        click.echo(f"{name}: {listing.name} at {listing.mount}, signed under {listing.current.key_id}.")
