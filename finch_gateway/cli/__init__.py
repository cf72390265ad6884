"""The command line: one file per command, loaded only when it is asked for.

Exit codes: 0 done, 1 the command did not succeed, 2 something the operator wrote is wrong.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
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
    "say": "Send your agent a sentence as Finch would, and read its answer.",
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


class CannotRun(click.ClickException):
    """A command that could not do its work at all: something named is wrong, or what it needs is not there."""

    exit_code = 2


class Commands(click.Group):
    """Knows its commands by name and imports one when it runs; turns failures into one line and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run as click does, but say every error in one line that names the program."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            _show(error)
            status = error.exit_code
        except click.Abort:
            click.echo("finch-gateway: aborted", err=True)
            status = 1
        sys.exit(status if isinstance(status, int) else 0)

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


def _show(error: click.ClickException) -> None:
    if type(error).show not in (click.ClickException.show, click.UsageError.show):
        return error.show()  # a group that was called without a command shows its help instead
    context = error.ctx if isinstance(error, click.UsageError) else None
    more = f" Try {context.command_path} --help." if context else ""
    click.echo(f"finch-gateway: {error.format_message()}{more}", err=True)
    return None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="finch-gateway")
def main() -> None:
    """Turns any existing agent into a listing on Finch."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # A sign that cannot be shown, or read, becomes another one, never a traceback.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
