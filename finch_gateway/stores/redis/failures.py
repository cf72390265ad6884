"""The library's exceptions, turned into ours at the one place where they enter."""

from __future__ import annotations

import re
import ssl

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...errors import StoreUnavailable

# The library cuts the first word off the replies it knows.
_CODES: dict[type[RedisError], str] = {
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
# Servers before 7.0 wrap the reply that stopped a script: "Error running script … -OOM command not allowed …".
_WORD = re.compile(r"(?:^|\s-)([A-Z]{2,})\b")

REPLY_ERRORS = (ResponseError, BusyLoadingError, AuthenticationError, AuthorizationError)
"""What the library raises for an error reply; the connection is sound after it."""


class Refused(StoreUnavailable):
    """The server answered a call with an error; `code` is its first word."""

    def __init__(self, code: str) -> None:
        super().__init__(f"the server refused the call: {code}")
        self.code = code


class NotConnected(Exception):
    """No connection could be made; says why, and whether it was for want of the right password."""

    def __init__(self, reason: str, *, is_password: bool = False) -> None:
        super().__init__(reason)
        self.is_password = is_password


def refused(error: RedisError) -> Refused:
    """Return what an error reply means: its code and nothing more of it, since the rest may quote a call."""
    word = _WORD.search(str(error))
    return Refused(_CODES.get(type(error)) or (word.group(1) if word else "ERR"))


def refused_with(reply: str) -> Refused:
    """Return what the text of an error reply means."""
    word = _WORD.search(reply.removeprefix("ERR "))
    return Refused(word.group(1) if word else "ERR")


def not_connected(error: RedisError | OSError) -> NotConnected:
    """Return why a connection failed, in words of ours: the library's may quote the URL."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return NotConnected("the server refused the user or the password", is_password=True)
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return NotConnected("no answer in time")
    if isinstance(error, BusyLoadingError):
        return NotConnected("the server is still loading its data")
    if isinstance(error, ResponseError):
        return NotConnected(f"the server answered {refused(error).code}")
    cause = error.__context__ or error
    if isinstance(cause, ssl.SSLError):
        return NotConnected(f"TLS failed ({cause.reason or 'unknown reason'})")
    if isinstance(cause, OSError) and cause.strerror:
        return NotConnected(cause.strerror.lower())
    return NotConnected("no connection could be made")
