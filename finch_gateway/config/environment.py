"""The variables a configuration reads: the process's own, those of its `env_file`, and references to secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError, Problem
from .document import Unreadable, read_file
from .rules import Wrong

PREFIX = "FINCH_GATEWAY_"
SEPARATOR = "__"
MAX_SECRET_BYTES = 64 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Names of this form are printed; anything else could be a secret that was pasted after `env:`.
_PLAIN_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,63}", re.ASCII)
_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(?P<value>.*)", re.ASCII)
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t]*(?:#.*)?')
_SINGLE_QUOTED = re.compile(r"'([^']*)'[ \t]*(?:#.*)?")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$", "`": "`"}
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*$")


@dataclass(frozen=True, slots=True)
class Environment:
    """The process's variables, and `added`: those that only the `env_file` has."""

    process: Mapping[str, str] = field(repr=False)
    folder: Path
    added: Mapping[str, str] = field(default_factory=dict, repr=False)

    def get(self, name: str) -> str | None:
        """Return a variable's value; the process's own wins."""
        return self.process.get(name, self.added.get(name))

    def overrides(self) -> dict[str, str]:
        """Return the names of all variables of the form `FINCH_GATEWAY_<SECTION>__<KEY>` with their values."""
        names = {name for name in (*self.process, *self.added) if name.startswith(PREFIX) and SEPARATOR in name}
        return {name: self.get(name) or "" for name in sorted(names)}

    def resolve(self, reference: str) -> str:
        """Return what `env:NAME` or `file:PATH` refers to; raise `Wrong`, which never quotes it."""
        kind, _, target = reference.partition(":")
        return self._variable(target) if kind == "env" else self._content(target)

    def _variable(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise Wrong('must name a variable after "env:": letters, digits and underscores')
        value = self.get(name)
        shown = f"the variable {name}" if _PLAIN_NAME.fullmatch(name) else 'the variable named after "env:"'
        if value is None:
            raise Wrong(f"{shown} is not set; set it, in env_file for example")
        if not value:
            raise Wrong(f"{shown} is empty; give it a value")
        return value

    def _content(self, path: str) -> str:
        if not path:
            raise Wrong('must name a file after "file:"')
        try:
            content = read_file(self.folder / path, MAX_SECRET_BYTES).decode("utf-8")
        except Unreadable as error:
            raise Wrong(f'the file named after "file:" {error}; check its name and permissions') from error
        except UnicodeDecodeError as error:
            raise Wrong('the file named after "file:" is not UTF-8 text') from error
        # Exactly one: editors add one, and a second would be the secret's own.
        content = content.removesuffix("\n").removesuffix("\r") if content.endswith("\n") else content
        if not content:
            raise Wrong('the file named after "file:" is empty; write the value into it')
        return content


def is_reference(value: object) -> bool:
    """Say whether a value refers to a secret instead of being it."""
    return isinstance(value, str) and value.startswith(("env:", "file:"))


def shown_reference(reference: str) -> str:
    """Return a reference in a form that is safe to print even when a secret was pasted behind the colon."""
    kind, _, target = reference.partition(":")
    return reference if kind == "file" or _PLAIN_NAME.fullmatch(target) else f"{kind}:…"


def read_env_file(file: Path) -> dict[str, str]:
    """Return the variables of a file of `KEY=VALUE` lines; raise `ConfigError` naming the line, never its content.

    Taken: blank lines, `#` comments, `export`, single quotes (literal) and double quotes (with escapes).
    Nothing is expanded, and a value ends with its line.
    """
    try:
        lines = read_file(file, MAX_SECRET_BYTES).decode("utf-8-sig").split("\n")
    except Unreadable as error:
        raise ConfigError.one(str(file), f"{error}; check its name and permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError.one(str(file), "is not UTF-8; save it as UTF-8") from error
    variables: dict[str, str] = {}
    problems = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        assignment = _ASSIGNMENT.fullmatch(line.strip())
        value = _read_value(assignment["value"]) if assignment else None
        if assignment is None:
            problems.append(Problem(str(file), "is not of the form KEY=VALUE", number))
        elif value is None or "\0" in value:
            problems.append(Problem(str(file), "has a quote that is not closed, or text after the closing one", number))
        else:
            variables[assignment["name"]] = value
    if problems:
        raise ConfigError(problems)
    return variables


def _read_value(written: str) -> str | None:
    if written.startswith('"'):
        quoted = _DOUBLE_QUOTED.fullmatch(written)
        return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), quoted[1]) if quoted else None
    if written.startswith("'"):
        quoted = _SINGLE_QUOTED.fullmatch(written)
        return quoted[1] if quoted else None
    return _COMMENT.sub("", written).strip()
