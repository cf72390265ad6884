"""How replies are read: by hiredis from the stream itself where it is installed, else as the library does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from redis.asyncio.connection import Connection

from ...errors import StoreUnavailable
from .failures import REPLY_ERRORS, refused, refused_with

try:
    from hiredis import Reader
except ImportError:
    Reader = None  # type: ignore[assignment,misc]  # an extra brings it

Reply: TypeAlias = "int | bytes | list[Reply] | None"

_MORE = object()
_READ_BYTES = 65536


class Replies(Protocol):
    """Reads what a connection brings, in order; an error reply is a value."""

    async def arrived(self) -> Sequence[Reply | StoreUnavailable]:
        """Wait for at least one reply and return all that are complete; raise what breaks the connection."""


def replies_of(connection: Connection) -> Replies:
    """Return the quickest reader there is for a connection whose replies were all read so far."""
    # The library goes through three coroutines for each reply. Its stream, which it keeps private, gives at once all
    # that one read brought, which saves a sixth of a call's cost. A library that keeps it elsewhere is used as it is.
    stream = getattr(connection, "_reader", None)
    if Reader is None or not isinstance(stream, asyncio.StreamReader):
        return _AsTheLibraryReads(connection)
    return _FromTheStream(stream)


class _FromTheStream:
    __slots__ = ("_parser", "_stream")

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._parser = Reader(replyError=refused_with, notEnoughData=_MORE)

    async def arrived(self) -> Sequence[Reply | StoreUnavailable]:
        complete: list[Reply | StoreUnavailable] = []
        while not complete:
            data = await self._stream.read(_READ_BYTES)
            if not data:
                raise ConnectionResetError
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not _MORE:
                complete.append(reply)
        return complete


class _AsTheLibraryReads:
    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def arrived(self) -> Sequence[Reply | StoreUnavailable]:
        try:
            return [await self._connection.read_response(disconnect_on_error=False)]
        except REPLY_ERRORS as error:
            return [refused(error)]
