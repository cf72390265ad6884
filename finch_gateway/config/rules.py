"""What each kind of value may be. A rule's sentence says what would be right and never repeats what was there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

T = TypeVar("T")

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


class Wrong(Exception):
    """A value breaks its rule; the message reads on from the setting's name."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """Turns a raw value into a typed one or raises `Wrong`; `from_text` reads an override's text first."""

    read: Callable[[object], T]
    from_text: Callable[[str], object] = str


def whole(low: int, high: int) -> Rule[int]:
    """A whole number; `true` is none."""

    def read(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Wrong(f"must be a whole number from {low} to {high}")
        return value

    return Rule(read, lambda text: int(text) if _WHOLE.fullmatch(text) else text)


def number(low: float, high: float) -> Rule[float]:
    """A number, whole or not; `true`, `nan` and `inf` are none."""

    def read(value: object) -> float:
        if type(value) not in (int, float) or not low <= cast("float", value) <= high:
            raise Wrong(f"must be a number from {low:g} to {high:.10g}")
        return float(cast("float", value))

    return Rule(read, lambda text: float(text) if _NUMBER.fullmatch(text) else text)


def flag() -> Rule[bool]:
    """True or false, and nothing that only counts as one."""

    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise Wrong("must be true or false")
        return value

    return Rule(read, lambda text: {"true": True, "false": False}.get(text, text))


def text(form: re.Pattern[str], what: str) -> Rule[str]:
    """A text of a form, described by `what`."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise Wrong(f"must be {what}")
        return value

    return Rule(read)


def choice(*names: T) -> Rule[T]:
    """One of a few names."""

    def read(value: object) -> T:
        if isinstance(value, str) and value in names:
            return value
        raise Wrong("must be " + " or ".join(f'"{name}"' for name in names))

    return Rule(read)
