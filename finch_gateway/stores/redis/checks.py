"""What is looked at before a server is trusted with nonces and answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ...errors import ConfigError, StoreUnavailable
from .address import SETTING, Address
from .connection import SharedConnection
from .failures import NotConnected, Refused
from .reading import Reply
from .scripts import pack

_OLDEST = (6, 2)
_CLOCKS_APART_S = 2.0


def unreachable(address: Address, error: NotConnected) -> ConfigError:
    """Return the one line that says why the server cannot be reached, without what the URL hides."""
    if error.is_password:
        remedy = "put the right user and password into the URL, which may be a reference such as env:STORE_URL"
    else:
        remedy = "start the server, or correct host, port and scheme (rediss:// where it speaks TLS)"
    return ConfigError.one(SETTING, f"cannot use {address}: {error}; {remedy}")


async def check_server(connection: SharedConnection, address: Address, clock: Callable[[], float]) -> tuple[str, ...]:
    """Return what an operator should know; raise `ConfigError` for a server that cannot keep its promises."""
    info, server_time, fsync = [
        await connection.call(pack(command)) for command in (("INFO",), ("TIME",), ("CONFIG", "GET", "appendfsync"))
    ]
    _refuse_unusable(address, info)
    facts = _facts(info)
    _refuse_unfit(address, facts)
    return (*_unread(facts), *_durability(facts, fsync), *_clock_warning(server_time, clock()))


def _refuse_unusable(address: Address, info: Reply | StoreUnavailable) -> None:
    match info:
        case Refused(code="NOAUTH"):
            raise unreachable(address, NotConnected("the server wants a password", is_password=True))
        case StoreUnavailable() if not isinstance(info, Refused):
            raise unreachable(address, NotConnected(str(info)))


def _refuse_unfit(address: Address, facts: Mapping[str, str]) -> None:
    def stop(message: str) -> ConfigError:
        return ConfigError.one(SETTING, f"{address} {message}")

    version = re.match(r"(\d+)\.(\d+)", facts.get("redis_version", ""))
    if version and (int(version[1]), int(version[2])) < _OLDEST:
        raise stop(f"is version {version[0]}; Redis 6.2 or newer, or Valkey, is needed")
    if facts.get("cluster_enabled") == "1":
        raise stop("runs in cluster mode; use a server, or a managed service, with cluster mode off")
    if facts.get("role") == "slave":
        raise stop("is a replica, which takes no writes; name the primary")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise stop(f"may evict what must be kept (maxmemory-policy {policy}); set maxmemory-policy noeviction")


def _facts(info: Reply | StoreUnavailable) -> dict[str, str]:
    if not isinstance(info, bytes):
        return {}
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, separator, value in lines if separator}


def _unread(facts: Mapping[str, str]) -> tuple[str, ...]:
    if {"redis_version", "role", "maxmemory_policy"} <= facts.keys():
        return ()
    return ("INFO does not tell version, role and maxmemory-policy: 6.2, primary and noeviction are needed",)


def _durability(facts: Mapping[str, str], fsync: Reply | StoreUnavailable) -> tuple[str, ...]:
    if facts.get("aof_enabled") == "0":
        return ("appendonly is off: a crash of the server may forget nonces and answers; set appendonly yes",)
    match fsync:
        case [_, b"always"]:
            return ()
        case [_, bytes() as setting]:
            return (
                f"appendfsync is {setting.decode()}: a crash of the server may lose a second; set appendfsync always",
            )
    return ("the server does not allow CONFIG: appendfsync (always) could not be checked",)


def _clock_warning(server_time: Reply | StoreUnavailable, now: float) -> tuple[str, ...]:
    match server_time:
        case [bytes() as seconds, bytes()] if abs(int(seconds) - now) > _CLOCKS_APART_S:
            return (f"the server's clock differs from this machine's by {abs(int(seconds) - now):.0f} s",)
    return ()
