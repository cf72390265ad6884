"""Opening connections to checked addresses only (wire 9.1)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from ..wire.destinations import Address, Destination, OutboundRules
from .line import Line
from .names import LookUp, Names
from .outcome import HttpFailed

CONNECT_S = 4.0
"""How long one address may take, so that a dead one leaves time for the next."""

MAX_ADDRESSES = 4


class Dialler:
    """Turns a destination into an open line; one serves any number of clients.

    A name is looked up once per connection, every address it has must be admitted, and the addresses that were
    checked are the ones dialled: a resolver that answers otherwise the next time changes nothing.
    """

    def __init__(
        self, rules: OutboundRules, *, look_up: LookUp | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._rules = rules
        self._look_up: LookUp = look_up or Names()
        self._tls = tls

    async def dial(self, destination: Destination) -> Line:
        """Return a new line; raise `HttpFailed`, `forbidden` when any of the host's addresses is."""
        why = "the name has no address"
        for address in _interleaved(await self._addresses(destination))[:MAX_ADDRESSES]:
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await self._connect(destination, address)
            except TimeoutError:
                why = "no connection within the time limit"
            except OSError as error:
                why = _reason(error)
        raise HttpFailed("connect", sent=False, detail=why)

    async def _addresses(self, destination: Destination) -> Sequence[Address]:
        if destination.address is not None:
            found: Sequence[Address] = (destination.address,)
        else:
            try:
                found = await self._look_up(destination.host)
            except OSError as error:
                raise HttpFailed("connect", sent=False, detail="the name cannot be resolved") from error
        if not all(self._rules.admits(address) for address in found):
            raise HttpFailed("forbidden", sent=False, detail="the host has an address that must not be called")
        return found

    async def _connect(self, destination: Destination, address: Address) -> Line:
        loop = asyncio.get_running_loop()
        is_secure = destination.scheme == "https"
        _, line = await loop.create_connection(
            lambda: Line(destination.origin),
            str(address),
            destination.port,
            ssl=self._context() if is_secure else None,
            server_hostname=destination.host if is_secure else None,
        )
        return line

    def _context(self) -> ssl.SSLContext:
        # Made when first needed: the system's certificates take two megabytes.
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _interleaved(addresses: Sequence[Address]) -> list[Address]:
    """Take turns between the two families, so that a network without one of them reaches the other in time."""
    families = [[address for address in addresses if address.version == version] for version in (4, 6)]
    if addresses and addresses[0].version == 6:
        families.reverse()
    ranked = [(rank, at, address) for at, family in enumerate(families) for rank, address in enumerate(family)]
    return [address for _, _, address in sorted(ranked, key=lambda entry: entry[:2])]


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate was not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no secure connection: {error.reason or 'the handshake failed'}"
    return error.strerror or type(error).__name__
