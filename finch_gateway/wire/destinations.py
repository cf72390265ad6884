"""Where a URL that came in a dispatch may lead (wire 9.1), and the exact bytes it is asked for under (wire 7.5).

Two looks at every URL: `read_destination` at its text, when the dispatch arrives and before each call;
`OutboundRules.admits` at every address its name resolves to, before one of them is dialled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Origin: TypeAlias = tuple[str, str, int]

MAX_URL_CHARS = 8192
_PORTS = {"http": 80, "https": 443}

_VISIBLE = re.compile(r"[!-~]+")
_URL = re.compile(r"(https?)://([^/?]*)(.*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([1-9][0-9]{0,4}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A last label of this form makes resolvers read the whole host as an IPv4 number: 127.1, 0x7f000001, 0177.0.0.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
MAX_HOST_CHARS = 253

# What the registries of special addresses hold back, in one list: `ipaddress` judges by Python version.
_SPECIAL_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
_GLOBAL_V6: Final = IPv6Network("2000::/3")
"""Global unicast; mapped, NAT64, unique local, link-local, site-local and multicast addresses all lie outside."""
_SPECIAL_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, Teredo and ORCHID among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_LOCAL: Final = tuple(
    (IPv4Network if "." in text else IPv6Network)(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)
"""What `allow_private` admits. Link-local addresses are not among them: that is where most clouds keep credentials."""
_METADATA: Final = frozenset(
    ip_address(text)
    for text in (
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure, a public address
        "169.254.169.254",
        "192.0.0.192",  # Oracle Cloud, of old
        "fd00:ec2::23",
        "fd00:ec2::254",
        "fd20:ce::254",  # Google Cloud
    )
)


class DestinationRefused(Exception):
    """A URL must not, or cannot, be called; `reason` reads on from the URL's name and repeats nothing of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class OutboundRules:
    """What the operator lets dispatches reach; as it stands, any public host by https on port 443.

    `allow_hosts` narrows to exact names and `*.suffix` (any depth below the suffix). `allow_private` needs it, and
    admits http, any port and private addresses for those hosts. Metadata addresses are never admitted.
    """

    allow_hosts: tuple[str, ...] = ()
    allow_private: bool = False
    ports: tuple[int, ...] = (443,)

    def __post_init__(self) -> None:
        if self.allow_private and not self.allow_hosts:
            raise ValueError("allow_private needs allow_hosts")

    def names(self, host: str) -> bool:
        """Say whether `allow_hosts` leaves this host in."""
        if not self.allow_hosts:
            return True
        return any(
            host.endswith(entry[1:]) if entry.startswith("*.") else host == entry
            for entry in (entry.lower() for entry in self.allow_hosts)
        )

    def admits(self, address: Address) -> bool:
        """Say whether an address of an admitted host may be dialled."""
        if address in _METADATA or (isinstance(address, IPv6Address) and address.scope_id is not None):
            return False
        return is_public(address) or (self.allow_private and _is_local(address))


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL taken apart; `target` is the path and query exactly as they are sent and signed.

    `host` is in lower case and without brackets, `address` its value where it is an IP address.
    """

    scheme: str
    host: str
    port: int
    target: bytes = field(repr=False)
    url: str = field(repr=False)
    address: Address | None = None

    @property
    def origin(self) -> Origin:
        """What a connection must lead to for this URL."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> bytes:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}").encode("ascii")


def is_public(address: Address) -> bool:
    """Say whether an address is one host on the public internet and nothing else in disguise.

    Forms that carry another address (mapped, 6to4, NAT64, Teredo) are not, whatever they carry.
    """
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _SPECIAL_V4)
    return address.is_global and address in _GLOBAL_V6 and not any(address in network for network in _SPECIAL_V6)


def read_destination(url: str, rules: OutboundRules) -> Destination:
    """Take a URL apart if its text alone permits calling it (wire 9.1); raise `DestinationRefused`.

    The path and query keep every byte. What can't be sent as it stands is refused, not repaired.
    """
    if len(url) > MAX_URL_CHARS:
        raise DestinationRefused(f"is longer than {MAX_URL_CHARS} characters")
    if not _VISIBLE.fullmatch(url) or "\\" in url:
        raise DestinationRefused("holds characters that must be percent-encoded")
    if "#" in url:
        raise DestinationRefused("has a fragment")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise DestinationRefused("is not an absolute https URL")
    scheme, authority, rest = parts[1].lower(), parts[2], parts[3]
    host, port, address = _read_authority(scheme, authority)
    _check(scheme, host, port, address, rules)
    # An empty path goes over the wire as a slash, and is signed as what goes over the wire.
    target = rest if rest.startswith("/") else "/" + rest
    return Destination(scheme, host, port, target.encode("ascii"), url, address)


def _read_authority(scheme: str, authority: str) -> tuple[str, int, Address | None]:
    if "@" in authority:
        raise DestinationRefused("holds a user name or password")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise DestinationRefused("has a malformed host or port")
    port = int(parts[2]) if parts[2] else _PORTS[scheme]
    if port > 65_535:
        raise DestinationRefused("has a port out of range")
    host, address = _read_host(parts[1].lower())
    return host, port, address


def _read_host(text: str) -> tuple[str, Address | None]:
    if text.startswith("["):
        try:
            six = IPv6Address(text[1:-1])
        except ValueError:
            raise DestinationRefused("has a host in brackets that is not an IPv6 address") from None
        if six.scope_id is not None:
            raise DestinationRefused("has a host with a zone")
        return str(six), six
    labels = text.split(".")
    # The empty last label of `127.1.` must not hide the number.
    if _NUMBER.fullmatch(labels[-1]) or (labels[-1] == "" and len(labels) > 1 and _NUMBER.fullmatch(labels[-2])):
        try:
            four = IPv4Address(text)
        except ValueError:
            raise DestinationRefused("has a number for a host that is not written as an IPv4 address") from None
        return str(four), four
    if len(text) > MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise DestinationRefused("has a host that is not a name")
    return text, None


def _check(scheme: str, host: str, port: int, address: Address | None, rules: OutboundRules) -> None:
    if not rules.names(host):
        raise DestinationRefused("names a host that is not among the allowed ones")
    if address is not None and not rules.admits(address):
        raise DestinationRefused("names an address that is not public")
    if rules.allow_private:
        return
    if scheme != "https":
        raise DestinationRefused("is not https")
    if port not in rules.ports:
        raise DestinationRefused("names a port that is not allowed")
    if address is None and ("." not in host or host.endswith(".localhost")):
        raise DestinationRefused("names a host that is not public")


def _is_local(address: Address) -> bool:
    return any(address in network for network in _LOCAL)
