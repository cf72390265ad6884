"""Reading a document's tables setting by setting, so that every problem is found and each value's origin is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import TypeVar

from ..errors import Problem
from .document import Document, Place
from .environment import PREFIX, SEPARATOR, Environment, is_reference, shown_reference
from .rules import Rule, Wrong
from .settings import Shown, nearest_line

T = TypeVar("T")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def setting_name(place: Place) -> str:
    """Return a place in a document as it is written to people: `listings[0].credentials[0].key_id`."""
    name = ""
    for step in place:
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            name += ("." if name else "") + (step if _BARE_KEY.fullmatch(step) else json.dumps(step[:64]))
    return name


def show_value(value: object) -> str:
    """Return a setting's value as it would stand in the file."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(show_value(element) for element in value) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


class Ledger:
    """Collects what one reading finds: problems, warnings and the settings with their origins."""

    def __init__(self, document: Document, environment: Environment) -> None:
        self.environment = environment
        self.overrides = environment.overrides()
        self.known_overrides: list[str] = []
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.shown: list[Shown] = []
        self.lines = {setting_name(place): line for place, line in document.lines.items()}
        self._file_name = document.file.name

    def problem(self, place: Place, message: str) -> None:
        """Note what must be changed at a place."""
        self.problems.append(self._at(place, message))

    def warn(self, place: Place, message: str) -> None:
        """Note what is odd at a place and stops nothing."""
        self.warnings.append(str(self._at(place, message)))

    def show(self, place: Place, text: str, origin: str = "") -> None:
        """Keep a setting's printable text; without `origin` it is the place's line in the file."""
        name = setting_name(place)
        line = nearest_line(self.lines, name)
        self.shown.append(Shown(name, text, origin or f"{self._file_name} line {line}"))

    def _at(self, place: Place, message: str) -> Problem:
        name = setting_name(place)
        return Problem(name, message, nearest_line(self.lines, name))


class Table:
    """One table of the document. What is taken from it is known; `refuse_unknown` reports everything else."""

    def __init__(
        self, ledger: Ledger, place: Place, values: Mapping[str, object], *, overridable: bool = False
    ) -> None:
        self.ledger = ledger
        self.place = place
        self._values = values
        self._overridable = overridable
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def at(self, name: str) -> Place:
        """Return the place of one of this table's settings."""
        return (*self.place, name)

    def get(self, name: str) -> object:
        """Return the raw value of a setting, None where there is none; it is known from then on."""
        self._known.append(name)
        return self._values.get(name)

    def is_overridden(self, name: str) -> bool:
        """Say whether a variable stands in for this setting."""
        return self._override_name(name) in self.ledger.overrides

    def take(self, name: str, rule: Rule[T], default: T, show: Callable[[T], str] = show_value) -> T:
        """Return a setting's value: the override's, the file's or the default; the default too when it is wrong."""
        raw = self.get(name)
        variable = self._override_name(name)
        if variable:
            self.ledger.known_overrides.append(variable)
        if self.is_overridden(name):
            return self._take_override(variable, name, rule, default, show)
        if name not in self._values:
            self.ledger.show(self.at(name), show(default), "default")
            return default
        try:
            value = rule.read(raw)
        except Wrong as error:
            self.ledger.problem(self.at(name), str(error))
            return default
        self.ledger.show(self.at(name), show(value))
        return value

    def check(self, name: str, rule: Callable[[str], object], value: str) -> None:
        """Note what a rule says against a value that is not taken."""
        try:
            rule(value)
        except Wrong as error:
            self.ledger.problem(self.at(name), str(error))

    def require(self, name: str, rule: Rule[str]) -> str:
        """Return a setting that must be there; empty when it is missing or wrong, which is then noted."""
        if name in self._values:
            return self.take(name, rule, "")
        self._known.append(name)
        self.ledger.problem(self.at(name), "is missing; add it")
        return ""

    def table(self, name: str, *, overridable: bool = False) -> Table:
        """Return a table inside this one; an empty one when it is missing or none."""
        raw = self.get(name)
        if not isinstance(raw, dict):
            if name in self._values:
                self.ledger.problem(self.at(name), "must be a table")
            raw = {}
        return Table(self.ledger, self.at(name), raw, overridable=overridable)

    def tables(self, name: str) -> Iterator[Table]:
        """Yield the tables of a list of tables, which must hold one at least."""
        raw = self.get(name)
        header = ".".join([*(step for step in self.place if isinstance(step, str)), name])
        if not isinstance(raw, list) or not raw:
            self.ledger.problem(self.at(name), f"must hold at least one table; write it under [[{header}]]")
            return
        for index, element in enumerate(raw):
            if isinstance(element, dict):
                yield Table(self.ledger, (*self.at(name), index), element)
            else:
                self.ledger.problem((*self.at(name), index), f"must be a table; write it under [[{header}]]")

    def refuse_unknown(self) -> None:
        """Report every setting that nothing asked for, with the nearest known name."""
        for name in self._values:
            if name not in self._known:
                self.ledger.problem(self.at(name), unknown(name, self._known))

    def _override_name(self, name: str) -> str:
        return f"{PREFIX}{self.place[-1]}{SEPARATOR}{name}".upper() if self._overridable else ""

    def _take_override(self, variable: str, name: str, rule: Rule[T], default: T, show: Callable[[T], str]) -> T:
        try:
            value = rule.read(rule.from_text(self.ledger.overrides[variable]))
        except Wrong as error:
            self.ledger.problems.append(Problem(variable, str(error)))
            return default
        self.ledger.show(self.at(name), show(value), f"env {variable}")
        return value


def unknown(name: str, known: Collection[str]) -> str:
    """Return the sentence for a name that is no setting, with the nearest one that is."""
    nearest = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"is not a setting; did you mean {nearest[0]}?" if nearest else "is not a setting; remove it"


def secret_reference(ledger: Ledger, place: Place, raw: object) -> str:
    """Return what a secret's reference refers to; empty when it cannot be had, which is then noted."""
    if not isinstance(raw, str) or not is_reference(raw):
        ledger.problem(place, "must be a reference, env:NAME or file:PATH, never the secret itself")
        return ""
    try:
        value = ledger.environment.resolve(raw)
    except Wrong as error:
        ledger.problem(place, str(error))
        return ""
    ledger.show(place, shown_reference(raw))
    return value
