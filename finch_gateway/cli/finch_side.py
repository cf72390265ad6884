"""Finch's side of a configuration's listings: where each is, what proves it, and where its callbacks can arrive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..config import Config, CredentialSettings, ListingSettings
from ..emulator.line import SocketLine
from ..emulator.platform import Endpoint, Platform
from ..emulator.receiver import CallbackKey, Receiver
from ..emulator.signer import Credential, SecretUnusable, secret_bytes
from . import CannotRun

_HERE = ("127.0.0.1", "localhost")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - told apart, not bound


@dataclass(frozen=True, slots=True)
class ReceiverAddress:
    """Where callbacks are listened for, and the URL under which they come, empty where that is the same."""

    host: str
    port: int
    base_url: str = ""


def origin_and_path(base_url: str) -> tuple[str, str]:
    """Return a base URL without its path, and the path; raise `CannotRun` for what is no URL."""
    try:
        parts = urlsplit(base_url)
    except ValueError as error:
        raise CannotRun("--base-url: is malformed") from error
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def local_url(config: Config) -> str:
    """Return where a gateway of this configuration listens, as seen from this machine."""
    if not config.server.port:
        raise CannotRun("server.port is 0, a free port at each start: name the running gateway with --base-url")
    host = _EVERYWHERE.get(config.server.host, config.server.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{config.server.port}"


def platform_for(config: Config, listing: ListingSettings, origin: str, path: str) -> Platform:
    """Return Finch's side of a listing that is reached at a base URL; raise `CannotRun`."""
    try:
        return Platform(endpoint_of(config, listing, path), SocketLine(origin))
    except ValueError as error:
        raise CannotRun(f"--base-url: {error}") from error


def endpoint_of(config: Config, listing: ListingSettings, base_path: str) -> Endpoint:
    """Return a listing as Finch knows it; raise `CannotRun` for a secret that cannot be used."""
    current = _current(listing)
    return Endpoint(
        name=listing.name,
        wire_protocol=listing.wire_protocol,
        credential=_credential(listing, current.request_secret),
        mount=base_path + listing.mount,
        health_path=listing.paths.health,
        invoke_path=listing.paths.invoke,
        task_path=listing.paths.task,
        messages_path=listing.paths.messages,
        cancel_path=listing.paths.cancel,
        # A base URL with a path is the public one: what is signed is then what is sent (wire 1.2).
        public_prefix="" if base_path else config.server.public_prefix,
        service_version_id=current.service_version_id,
    )


def receiver_for(listings: Iterable[ListingSettings], address: ReceiverAddress) -> Receiver:
    """Return a receiver that knows the callback secrets of these listings; raise `CannotRun`."""
    keys = [_callback_key(listing) for listing in listings]
    return Receiver(keys, host=address.host, port=address.port, base_url=address.base_url)


def receiver_address(config: Config, base_url: str, receiver_url: str, listen: str) -> ReceiverAddress | None:
    """Return where callbacks can reach this machine; None where the configuration lets none come here.

    Without a `receiver_url` that is so where the gateway is on this machine and may call it (wire 9.1).
    """
    if receiver_url:
        return _named_address(receiver_url, listen)
    outbound = config.outbound
    is_local = not base_url or urlsplit(base_url).hostname in _HERE
    if is_local and outbound.allow_private and "127.0.0.1" in outbound.allow_hosts:
        return ReceiverAddress("127.0.0.1", 0)
    return None


def _named_address(receiver_url: str, listen: str) -> ReceiverAddress:
    try:
        parts = urlsplit(receiver_url)
        url_port = parts.port
    except ValueError as error:
        raise CannotRun("--receiver-url: is malformed") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise CannotRun("--receiver-url: is http:// or https://, a host, and neither user nor query")
    if not listen:
        if parts.hostname not in _HERE or url_port is None:
            raise CannotRun("--receiver-listen: name the HOST:PORT on this machine that --receiver-url leads to")
        return ReceiverAddress("127.0.0.1", url_port, receiver_url)
    host, _, port = listen.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise CannotRun("--receiver-listen: is HOST:PORT")
    return ReceiverAddress(host.strip("[]") or "127.0.0.1", int(port), receiver_url)


def _callback_key(listing: ListingSettings) -> CallbackKey:
    current = _current(listing)
    request = _credential(listing, current.request_secret)
    if current.callback_secret is None:
        return CallbackKey(request)
    return CallbackKey(_credential(listing, current.callback_secret), request)


def _current(listing: ListingSettings) -> CredentialSettings:
    return next(credential for credential in listing.credentials if credential.state == "current")


def _credential(listing: ListingSettings, displayed: str) -> Credential:
    try:
        return Credential(_current(listing).key_id, secret_bytes(displayed, listing.wire_protocol))
    except SecretUnusable as error:
        raise CannotRun(f"listings.{listing.name}.credentials: {error}") from error
