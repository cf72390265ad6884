"""Looking host names up, apart from everybody else's threads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import TypeAlias

from ..wire.destinations import Address

LookUp: TypeAlias = Callable[[str], Awaitable[Sequence[Address]]]
"""Returns every address of a host, best first; raises `OSError` when there is none to be had."""

MAX_LOOKUPS = 32


class Names:
    """Asks the system for a host's addresses, on a thread per lookup; callers of one host share a lookup.

    The event loop's own lookups share a few threads with other work, and a name server that does not answer
    holds one for half a minute: a handful of such hosts would stop every other call. Nothing is remembered.
    """

    def __init__(self, max_lookups: int = MAX_LOOKUPS) -> None:
        self._most = max_lookups
        self._running: dict[str, asyncio.Future[Sequence[Address]]] = {}

    async def __call__(self, host: str) -> Sequence[Address]:
        """Return every address of `host`, best first; raise `OSError`."""
        lookup = self._running.get(host)
        if lookup is None:
            if len(self._running) >= self._most:
                raise OSError("too many lookups are waiting for an answer")
            lookup = self._begin(host)
        return await asyncio.shield(lookup)

    def _begin(self, host: str) -> asyncio.Future[Sequence[Address]]:
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[Sequence[Address]] = loop.create_future()
        # Its callers may all have gone by then; a failure that nobody waits for is no fault.
        lookup.add_done_callback(lambda done: done.cancelled() or done.exception())

        def end(found: Sequence[Address] | OSError) -> None:
            del self._running[host]
            if isinstance(found, OSError):
                lookup.set_exception(found)
            else:
                lookup.set_result(found)

        def run() -> None:
            found = _look_up(host)
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(end, found)

        try:
            threading.Thread(target=run, name=f"lookup of {host}", daemon=True).start()
        except RuntimeError as error:
            raise OSError("no thread could be started") from error
        self._running[host] = lookup
        return lookup


def _look_up(host: str) -> Sequence[Address] | OSError:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))
    except OSError as error:
        return error
    except ValueError as error:  # a name that cannot be asked for, an address that cannot be read
        return OSError(str(error))
