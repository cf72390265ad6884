"""`finch-gateway init`: a small agent, its configuration and a development credential, ready to run."""

from __future__ import annotations

import base64
import os
import secrets
import shlex
import uuid
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from ..errors import ConfigError

BACKENDS = {
    "python": 'type = "python"\ntarget = "agent:run"          # the function run in agent.py',
    "http": (
        'type = "http"\n'
        'url = "http://127.0.0.1:8000/run"            # where agent.py takes turns\n'
        'health_url = "http://127.0.0.1:8000/health"  # and says that it is there'
    ),
}
"""What `[listings.backend]` holds for each type."""

GITIGNORE = ".env\nfinch.db*\ncaptures/\n__pycache__/\n"


@dataclass(frozen=True, slots=True)
class _File:
    """A file to write; `mode` is its permissions before the umask."""

    name: str
    content: str
    mode: int = 0o666


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option(
    "--backend",
    type=click.Choice(list(BACKENDS)),
    default="python",
    show_default=True,
    help="How the gateway reaches the agent: a Python function, or a service over HTTP.",
)
def command(folder: Path, backend: str) -> None:
    """Write a small agent, its configuration and a development credential into DIR.

    What is written runs as it is. Nothing that is already there is overwritten.
    """
    new = _new_files(backend)
    shown = click.format_filename(folder)
    present = [file.name for file in new if os.path.lexists(folder / file.name)]
    if present:
        raise ConfigError.one(shown, f"already holds {', '.join(present)}; nothing was changed, name another folder")
    try:
        _write(folder, new)
    except OSError as error:
        remedy = "nothing was written, name a folder that can be written to"
        raise ConfigError.one(shown, f"{os.strerror(error.errno or 0)}; {remedy}") from error
    click.echo(f"Written to {shown}: {', '.join(file.name for file in new)}")
    click.echo(_next_steps(folder, backend))


def _new_files(backend: str) -> list[_File]:
    templates = files(__package__) / "templates"
    key_id = f"finch.agenton.{uuid.uuid4()}"
    configuration = Template((templates / "finch.toml").read_text("utf-8"))
    return [
        _File("finch.toml", configuration.substitute(backend=BACKENDS[backend], key_id=key_id)),
        _File("agent.py", (templates / backend / "agent.py").read_text("utf-8")),
        _File(".env", f"FINCH_REQUEST_SECRET={_new_secret()}\nFINCH_CALLBACK_SECRET={_new_secret()}\n", 0o600),
        _File(".gitignore", GITIGNORE),
    ]


def _new_secret() -> str:
    """Return 32 random bytes as Finch shows them: unpadded Base64URL (wire 1.10)."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


def _write(folder: Path, new: list[_File]) -> None:
    """Write all files or none; a file that appeared meanwhile is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for file in new:
            path = folder / file.name
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
            written.append(path)
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                opened.write(file.content)
    except OSError:
        for path in written:
            path.unlink()
        raise


def _next_steps(folder: Path, backend: str) -> str:
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    steps = [f"  {enter}finch-gateway serve", f'  {enter}finch-gateway say "A report, please"']
    if backend == "http":
        steps.insert(0, f"  {enter}python agent.py")
    return "\n".join(["Next, each in a terminal of its own:", *steps, f"  {enter}finch-gateway contract-test"])
