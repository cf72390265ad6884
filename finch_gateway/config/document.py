"""The file's text as values, and the line on which each of them begins."""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..errors import ConfigError, Problem

Place: TypeAlias = tuple[str | int, ...]

MAX_FILE_BYTES = 1024 * 1024

_AT_LINE = re.compile(r"\(at line ([0-9]+), column [0-9]+\)$")
# Only ever run over text that tomllib has accepted, so it need not find faults.
_TOKEN = re.compile(
    r'("""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*')"
    r"|[ \t]+|#[^\n]*"
    r"|([\n\[\]{},=.]|[^\s\[\]{},=.#\"']+)",
    re.DOTALL,
)
_VALUE_ENDS = frozenset({",", "]", "}", "\n", ""})


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration file taken apart; `lines` knows every table, key and list element in it."""

    file: Path
    values: Mapping[str, object]
    lines: Mapping[Place, int]


class Unreadable(Exception):
    """A file cannot be read; the message reads on from the file's name."""


def read_document(file: Path) -> Document:
    """Read a TOML file; raise `ConfigError` with one problem when there is none or it is not TOML."""
    try:
        text = _decode(file, read_file(file, MAX_FILE_BYTES))
        values = tomllib.loads(text)
        lines = locate(text)
    except Unreadable as error:
        remedy = "name another with --config, or write one with: finch-gateway init"
        raise ConfigError.one(str(file), f"{error}; {remedy}") from error
    except RecursionError as error:
        raise ConfigError.one(str(file), "is nested too deeply; flatten it") from error
    except ValueError as error:
        raise ConfigError([_syntax_problem(file, text, str(error))]) from error
    return Document(file, values, lines)


def read_file(file: Path, limit_bytes: int) -> bytes:
    """Return the bytes of a regular file; raise `Unreadable` saying why they cannot be had."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("is a folder" if stat.S_ISDIR(found.st_mode) else "is not a regular file")
        with file.open("rb") as opened:
            content = opened.read(limit_bytes + 1)
    except FileNotFoundError as error:
        raise Unreadable("does not exist") from error
    except PermissionError as error:
        raise Unreadable("may not be read by this user") from error
    except (OSError, ValueError) as error:
        raise Unreadable("cannot be read") from error
    if len(content) > limit_bytes:
        raise Unreadable(f"is larger than {limit_bytes} bytes")
    return content


def _decode(file: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(str(file), "is not UTF-8; save it as UTF-8", line)]) from error


def _syntax_problem(file: Path, text: str, said: str) -> Problem:
    at = _AT_LINE.search(said)
    line = int(at[1]) if at else max(1, len(text.rstrip().splitlines()))
    sentence = said.split(" (at ")[0]
    # tomllib may quote what it met, and what it met may be a secret.
    if any(mark in sentence for mark in "'\"(:"):
        twice = any(word in sentence for word in ("declare", "overwrite", "Duplicate", "twice", "mutate"))
        sentence = "a table or key is set twice" if twice else "a value, key or sign is malformed"
    return Problem(str(file), f"is not valid TOML: {sentence}", line)


def locate(text: str) -> dict[Place, int]:
    """Return the line on which each table, key and list element of a valid TOML text begins."""
    locator = _Locator(text.replace("\r\n", "\n"))
    locator.run()
    return locator.lines


class _Locator:
    """Walks the tokens of valid TOML once. tomllib keeps no positions, and this needs no more than they."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {}
        self._elements: dict[Place, int] = {}
        self._tokens: list[tuple[str, int]] = []
        self._at = 0
        line = 1
        for token in _TOKEN.finditer(text):
            if token[1] or token[2]:
                self._tokens.append((token[0], line))
            line += token[0].count("\n")

    def run(self) -> None:
        table: Place = ()
        while self._at < len(self._tokens):
            if self._accept("\n"):
                continue
            if self._next == "[":
                table = self._header()
            else:
                self._pair(table)

    @property
    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _accept(self, token: str) -> bool:
        if self._next != token:
            return False
        self._at += 1
        return True

    def _skip_breaks(self) -> None:
        while self._accept("\n"):
            pass

    def _note(self, place: Place, line: int) -> None:
        for length in range(1, len(place) + 1):
            self.lines.setdefault(place[:length], line)

    def _header(self) -> Place:
        line = self._tokens[self._at][1]
        self._accept("[")
        is_list = self._accept("[")
        table: Place = ()
        for name in self._key("]"):
            table = (*self._newest(table), name)
        if is_list:
            self._accept("]")
            self._elements[table] = self._elements.get(table, -1) + 1
        self._accept("]")
        table = self._newest(table)
        self._note(table, line)
        return table

    def _newest(self, table: Place) -> Place:
        return (*table, self._elements[table]) if table in self._elements else table

    def _key(self, end: str) -> list[str]:
        text = ""
        while self._next not in (end, ""):
            text += self._next
            self._at += 1
        names: list[str] = []
        value: object = tomllib.loads(f"{text}=0")
        while isinstance(value, dict):
            names.append(next(iter(value)))
            value = value[names[-1]]
        return names

    def _pair(self, table: Place) -> None:
        line = self._tokens[self._at][1]
        place = (*table, *self._key("="))
        self._accept("=")
        self._note(place, line)
        self._value(place)

    def _value(self, place: Place) -> None:
        if self._accept("["):
            self._list(place)
        elif self._accept("{"):
            self._inline_table(place)
        else:
            while self._next not in _VALUE_ENDS:
                self._at += 1

    def _list(self, place: Place) -> None:
        index = 0
        self._skip_breaks()
        while self._next not in ("]", ""):
            element = (*place, index)
            self._note(element, self._tokens[self._at][1])
            self._value(element)
            self._skip_breaks()
            self._accept(",")
            self._skip_breaks()
            index += 1
        self._accept("]")

    def _inline_table(self, place: Place) -> None:
        self._skip_breaks()
        while self._next not in ("}", ""):
            self._pair(place)
            self._skip_breaks()
            self._accept(",")
            self._skip_breaks()
        self._accept("}")
