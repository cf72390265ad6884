"""Finds the agent that a `target = "module:attribute"` names, or says in one line why there is none."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from traceback import walk_tb
from typing import Any

from ..backend import BackendEnv
from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """One callable of the agent's, and whether calling it makes a coroutine."""

    function: Callable[..., object]
    is_async: bool


@dataclass(frozen=True, slots=True)
class Agent:
    """What the target offers: `run`, and `health` where it has one."""

    run: Entry
    health: Entry | None = None


class _Unusable(Exception):
    """Why the target cannot be used, with the remedy."""


def check_target(env: BackendEnv) -> None:
    """Raise `ConfigError` when the target does not have the form of one; nothing is imported."""
    try:
        _split(env.options.get("target"))
    except _Unusable as error:
        raise ConfigError.one(f"{env.setting}.target", str(error)) from None


def load_agent(env: BackendEnv) -> Agent:
    """Import the target and return its agent; raise `ConfigError` naming the setting and the remedy."""
    try:
        module, path = _split(env.options.get("target"))
        return _agent(_find(module, path, env.folder), env.folder)
    except _Unusable as error:
        raise ConfigError.one(f"{env.setting}.target", str(error)) from None


def _split(target: object) -> tuple[str, str]:
    module, _, path = target.partition(":") if isinstance(target, str) else ("", "", "")
    names = [*module.split("."), *path.split(".")]
    if not all(name.isidentifier() for name in names):
        raise _Unusable('must be "module:attribute", for example "my_agent:run"')
    return module, path


def _find(name: str, path: str, folder: Path) -> Any:
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise _Unusable(f"there is no module {name!r} in {folder}, nor is it installed; create it") from None
        raise _Unusable(f"{name} needs the module {error.name!r}, which is not installed; install it") from None
    except (Exception, SystemExit) as error:
        raise _Unusable(_raised(f"importing {name}", error, folder)) from None
    try:
        return reduce(getattr, path.split("."), module)
    except Exception:
        raise _Unusable(f"the module {name!r} has no {path!r}; define it there or correct the name") from None


def _agent(found: Any, folder: Path) -> Agent:
    if inspect.isclass(found):
        if not hasattr(found, "run"):
            raise _Unusable(f"the class {found.__name__} has no method run; give it one")
        found = _instance(found, folder)
    if inspect.isroutine(found) or not hasattr(found, "run"):
        return Agent(_entry(found, "it", 1))
    health = getattr(found, "health", None)
    return Agent(_entry(found.run, "its run", 1), None if health is None else _entry(health, "its health", 0))


def _instance(found: type[Any], folder: Path) -> Any:
    try:
        return found()
    except (Exception, SystemExit) as error:
        doing = f"making a {found.__name__} without arguments"
        raise _Unusable(_raised(doing, error, folder)) from None


def _entry(function: Any, who: str, arguments: int) -> Entry:
    if not callable(function):
        raise _Unusable(f"{who} is a {type(function).__name__}; it must be a function or an object with run(job)")
    forms = (function, getattr(function, "__call__", function))  # noqa: B004 - an object's own coroutine method
    if any(inspect.isgeneratorfunction(form) or inspect.isasyncgenfunction(form) for form in forms):
        raise _Unusable(f"{who} is a generator; return the whole reply instead of yielding parts of it")
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        wanted = "exactly one argument, the job" if arguments else "no argument"
        raise _Unusable(f"{who} must be callable with {wanted}") from None
    except ValueError:
        pass  # a builtin without a signature to look at: its first call will tell
    return Entry(function, any(inspect.iscoroutinefunction(form) for form in forms))


def _raised(doing: str, error: BaseException, folder: Path) -> str:
    return f"{doing} raised {type(error).__name__}{_place(error, folder)}; run it with {sys.executable} to see more"


def _place(error: BaseException, folder: Path) -> str:
    """Name the agent's own line that an error came through, else the innermost one; never the error's text."""
    lines = [(Path(frame.f_code.co_filename), number) for frame, number in walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append((Path(error.filename), error.lineno or 0))
    outside = [line for line in lines if not str(line[0]).startswith("<") and line[0] != Path(__file__)]
    own = [line for line in outside if line[0].is_relative_to(folder)] or outside
    return f" ({own[-1][0].name}:{own[-1][1]})" if own else ""
