"""From one event loop to another in a different thread, waking each as seldom as can be."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable


class Mailbox:
    """Hands callbacks to an event loop from any thread, waking it once for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[Callable[[], object]] = deque()
        self._is_awake = False

    def post(self, callback: Callable[[], object]) -> None:
        """Hand over one callback and wake the loop."""
        self._posted.append(callback)
        self.wake()

    def leave(self, callback: Callable[[], object]) -> None:
        """Hand over one callback; whoever leaves one wakes the loop later."""
        self._posted.append(callback)

    def wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            # A closed loop has nobody left who waits for this.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Before the queue is emptied, so that a later callback wakes the loop again.
        self._is_awake = False
        while self._posted:
            self._loop.call_soon(self._posted.popleft())


class Sender:
    """Posts from one event loop to another's mailbox, waking it once per turn of the sending loop.

    Each wake lets the other thread take over in the middle of a turn, which costs more than the work itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, mailbox: Mailbox) -> None:
        self._loop = loop
        self._mailbox = mailbox
        self._will_wake = False

    def post(self, callback: Callable[[], object]) -> None:
        self._mailbox.leave(callback)
        if not self._will_wake:
            self._will_wake = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._will_wake = False
        self._mailbox.wake()
