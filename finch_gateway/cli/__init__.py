"""The command line: one file per command, loaded only when it is asked for.

Exit codes: 0 done, 1 the command did not succeed, 2 something the operator wrote is wrong.
"""

from __future__ import annotations

import importlib
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..errors import ConfigError, StoreUnavailable

COMMANDS = {
    "init": "Write a small agent, its configuration and a development credential.",
    "serve": "Run the gateway.",
    "check": "Show the effective configuration and everything wrong with it, offline.",
    "demo": "Watch gateway, example agent and Finch emulator work together.",
    "contract-test": "Play Finch's connection test against a listing.",
    "tasks": "List, show and cancel tasks.",
    "callbacks": "List, show and resend callbacks that were not delivered.",
    "credentials": "List credential revisions and what still uses them.",
}
"""Every command in the order of `--help`; each is `command` in the module of its name."""

config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The configuration; else $FINCH_GATEWAY_CONFIG, else ./finch.toml.",
)


class Commands(click.Group):
    """Knows its commands by name and imports one when it runs; turns failures into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = f"{__name__}.{cmd_name.replace('-', '_')}"
        try:
            command: click.Command = importlib.import_module(module).command
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise click.UsageError(f"This installation does not have the command {cmd_name!r}.") from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            for problem in error.problems:
                click.echo(f"finch-gateway: {problem}", err=True)
            ctx.exit(2)
        except StoreUnavailable as error:
            click.echo("finch-gateway: store.url: the store does not answer; start it, or correct the URL", err=True)
            raise click.exceptions.Exit(1) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="finch-gateway")
def main() -> None:
    """Turns any existing agent into a listing on Finch."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets another one, never a traceback.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
