"""Whether a listing can take work: its agent and the store, each probed under a time limit (wire 3.1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..observe import Log, blame

PROBE_TIMEOUT_S = 3.0
CACHED_S = 3.0


@dataclass(slots=True)
class Part:
    """One thing health depends on; `probe` returns an empty text when all is well, else what is wrong."""

    name: str
    probe: Callable[[], Awaitable[str]]
    trouble: str = "not probed yet"
    probed_at: float = float("-inf")
    probing: asyncio.Task[None] | None = field(default=None, repr=False)


class HealthBoard:
    """Knows each part's last state and refreshes it when it is asked and the state is seconds old.

    A probe that does not come back counts as trouble after `PROBE_TIMEOUT_S` and holds up nobody else's.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._parts: dict[str, Part] = {}
        self._needs: dict[str, tuple[str, ...]] = {}
        self.draining = False

    def add(self, part: Part) -> None:
        self._parts[part.name] = part

    def need(self, listing: str, *parts: str) -> None:
        """Say what a listing's health depends on."""
        self._needs[listing] = parts

    async def is_ready(self, listing: str) -> bool:
        """Say whether the listing can take work."""
        if self.draining:
            return False
        parts = [self._parts[name] for name in self._needs[listing]]
        await asyncio.gather(*(self._refresh(part) for part in parts))
        return not any(part.trouble for part in parts)

    async def _refresh(self, part: Part) -> None:
        if time.monotonic() - part.probed_at < CACHED_S:
            return
        if part.probing is None or part.probing.done():
            part.probing = asyncio.get_running_loop().create_task(self._probe(part))
        # Shielded: the caller that began a probe may leave while others wait for it.
        await asyncio.shield(part.probing)

    async def _probe(self, part: Part) -> None:
        probe = asyncio.ensure_future(part.probe())
        done, _ = await asyncio.wait({probe}, timeout=PROBE_TIMEOUT_S)
        if not done:
            probe.add_done_callback(lambda late: late.cancelled() or late.exception())
            probe.cancel()
            trouble = f"no answer within {PROBE_TIMEOUT_S:g} s"
        elif probe.cancelled() or (error := probe.exception()) is None:
            trouble = "probe was cancelled" if probe.cancelled() else probe.result()
        else:
            fields = blame(error)
            trouble = f"{fields['error_type']} at {fields.get('error_at', 'an unknown place')}"
        if trouble != part.trouble:
            self._log.info("health.changed", part=part.name, trouble=trouble or "none")
        part.trouble = trouble
        part.probed_at = time.monotonic()
