"""One connection for all callers: what they ask in one tick of the event loop goes out in one write.

The library's connection brings the handshake, TLS, authentication and the parser; its pool is what this
replaces. Replies come in the order of the calls, so a caller that went away keeps its place in the line.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from redis.asyncio.connection import Connection
from redis.exceptions import RedisError, ResponseError

from ...errors import StoreUnavailable
from .address import Address
from .failures import Refused, not_connected
from .reading import Reply, replies_of

Answer: TypeAlias = "asyncio.Future[Reply | StoreUnavailable]"

_CONNECT_LIMIT_S = 2.0
_STEADY_S = 1.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# After a fail-over the old primary says so to every write; the next connection may reach the new one.
_WRONG_PLACE = frozenset({"READONLY", "MASTERDOWN"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one call may take, and how many may be under way at once."""

    call_s: float = 2.0
    calls: int = 4096


@dataclass(slots=True)
class _Call:
    payload: bytes
    answer: Answer
    deadline: float
    is_repeat: bool = False

    def refuse(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_result(StoreUnavailable(reason))


class SharedConnection:
    """Carries every call of a store over one connection, and makes a new one when it breaks.

    A call whose answer was lost is asked once more on the next connection. While the server is known to be
    away, calls are refused at once. `writes` and `calls_written` count what went out, `reconnects` how often
    the connection was made again.
    """

    def __init__(self, address: Address, greeting: Sequence[bytes], limits: Limits) -> None:
        self._address = address
        self._greeting = greeting
        self._limits = limits
        self._waiting: deque[_Call] = deque()
        self._sent: deque[_Call] = deque()
        self._something_waits = asyncio.Event()
        self._is_away = False
        self._is_closing = False
        self._failures = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._workers: tuple[asyncio.Task[None], ...] = ()
        self._life: asyncio.Task[None] | None = None
        self.writes = 0
        self.calls_written = 0
        self.reconnects = 0

    async def open(self) -> None:
        """Connect; raise `NotConnected` when that fails."""
        self._loop = asyncio.get_running_loop()
        connection = await self._connect()
        self._life = self._loop.create_task(self._live(connection), name="redis-connection")

    async def close(self) -> None:
        """Wait for the calls under way, each within its own limit, and disconnect."""
        self._is_closing = True
        while pending := [call.answer for call in (*self._sent, *self._waiting) if not call.answer.done()]:
            await asyncio.wait(pending)
        if self._alarm:
            self._alarm.cancel()
        if self._life:
            self._life.cancel()
            await asyncio.wait([self._life])

    def call(self, payload: bytes) -> Answer:
        """Queue one packed command; the future brings its reply, or the error as a value.

        As a value, because nobody may be left to hear of an exception.
        """
        answer: Answer = self._loop.create_future()
        call = _Call(payload, answer, self._loop.time() + self._limits.call_s)
        if self._is_away or self._is_closing:
            call.refuse("the server is away")
        elif len(self._waiting) + len(self._sent) >= self._limits.calls:
            call.refuse("too many calls are waiting")
        else:
            self._waiting.append(call)
            self._something_waits.set()
            if self._alarm is None:
                self._alarm = self._loop.call_at(call.deadline, self._end_overdue)
        return answer

    # Connecting

    async def _live(self, connection: Connection) -> None:
        while True:
            since = self._loop.time()
            reason = await self._serve(connection)
            _log.warning("store.lost", extra={"reason": reason})
            # A connection that breaks at once is a failure too: nobody may spin over it.
            self._failures = 0 if self._loop.time() - since > _STEADY_S else self._failures + 1
            self._recall_sent()
            connection = await self._reconnect()
            self.reconnects += 1
            _log.info("store.back")

    async def _reconnect(self) -> Connection:
        while True:
            await asyncio.sleep(self._pause_s())
            # Whatever goes wrong in between, trying again is the only way back.
            with suppress(Exception):
                connection = await self._connect()
                self._is_away = False
                return connection
            self._failures += 1
            if self._failures > 1:
                self._is_away = True
                self._refuse_unsent()

    def _pause_s(self) -> float:
        if self._failures == 0:
            return 0.0
        # Capped before it is raised: an outage of days must not overflow.
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures, 10))
        return pause * random.uniform(0.5, 1)  # noqa: S311 - spreads instances, guards nothing

    async def _connect(self) -> Connection:
        connection = self._address.connection(_CONNECT_LIMIT_S)
        try:
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                await connection.connect()  # type: ignore[no-untyped-call]  # the library leaves it bare
                await self._greet(connection)
        except (RedisError, OSError) as error:
            await _drop(connection)
            raise not_connected(error) from error
        except BaseException:
            await _drop(connection)
            raise
        return connection

    async def _greet(self, connection: Connection) -> None:
        await connection.send_packed_command(self._greeting, check_health=False)
        for _ in self._greeting:
            # A server that forbids loading still takes scripts that come along with their call.
            with suppress(ResponseError):
                await connection.read_response()

    # Serving

    async def _serve(self, connection: Connection) -> str:
        """Write and read until the connection breaks; return why."""
        self._workers = (
            self._loop.create_task(self._write(connection), name="redis-writer"),
            self._loop.create_task(self._read(connection), name="redis-reader"),
        )
        try:
            done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._break()
            await asyncio.gather(*self._workers, return_exceptions=True)
            await _drop(connection)
        ended = done.pop()
        if ended.cancelled():
            return "no answer within the time limit"
        error = ended.exception()
        return type(error).__name__ if error else "the server takes no writes"

    def _break(self) -> None:
        for worker in self._workers:
            worker.cancel()

    async def _write(self, connection: Connection) -> None:
        while True:
            batch = [call for call in self._waiting if not call.answer.done()]
            self._waiting.clear()
            if batch:
                # In the line before the first byte goes out: from then on the outcome is unknown.
                self._sent.extend(batch)
                self.writes += 1
                self.calls_written += len(batch)
                payload = b"".join([call.payload for call in batch])
                await connection.send_packed_command([payload], check_health=False)
            self._something_waits.clear()
            if not self._waiting:
                await self._something_waits.wait()

    async def _read(self, connection: Connection) -> None:
        """Hand replies out in order; return when the server turns out to be the wrong one."""
        replies, is_wrong_place = replies_of(connection), False
        while not is_wrong_place:
            for reply in await replies.arrived():
                answer = self._sent.popleft().answer
                if not answer.done():
                    answer.set_result(reply)
                if isinstance(reply, Refused) and reply.code in _WRONG_PLACE:
                    is_wrong_place = True

    # Calls that got no answer

    def _recall_sent(self) -> None:
        """Put the calls whose answer was lost before all others; give up those lost before."""
        again: list[_Call] = []
        for call in self._sent:
            if call.is_repeat:
                call.refuse("the answer was lost twice")
            elif not call.answer.done():
                call.is_repeat = True
                again.append(call)
        self._sent.clear()
        self._waiting.extendleft(reversed(again))

    def _refuse_unsent(self) -> None:
        """Refuse what never went out; the rest is worth waiting for, since its outcome is unknown."""
        for call in self._waiting:
            if not call.is_repeat:
                call.refuse("the server is away")
        self._waiting = deque(call for call in self._waiting if not call.answer.done())

    def _end_overdue(self) -> None:
        """Refuse every call past its deadline; one alarm serves all, since the oldest come first."""
        now = self._loop.time()
        if self._sent and self._sent[0].deadline <= now:
            # Replies come in order, so nothing can arrive before this one: the connection is stuck.
            self._break()
        self._alarm = None
        for call in (*self._sent, *self._waiting):
            if call.deadline > now:
                self._alarm = self._loop.call_at(call.deadline, self._end_overdue)
                break
            call.refuse("no answer within the time limit")


async def _drop(connection: Connection) -> None:
    with suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)
