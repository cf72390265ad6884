"""Calls to other HTTP servers: a plain client for the operator's own URLs, a guarded one for a dispatch's.

Neither follows redirects, keeps cookies, unpacks bodies, or reads proxies and passwords from the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dialling import Dialler
from .guarded import GuardedClient
from .names import LookUp, Names
from .outcome import HttpAnswer, HttpFailed, HttpHead

if TYPE_CHECKING:
    from .plain import PlainClient, url_problem

__all__ = [
    "Dialler",
    "GuardedClient",
    "HttpAnswer",
    "HttpFailed",
    "HttpHead",
    "LookUp",
    "Names",
    "PlainClient",
    "url_problem",
]


def __getattr__(name: str) -> object:
    # The plain client's library takes four megabytes, which callbacks alone do not need.
    if name in ("PlainClient", "url_problem"):
        from . import plain

        return getattr(plain, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
