"""Where the server is: a store URL, read once, that never shows what it hides."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...errors import ConfigError

SETTING = "store.url"
_FORM = "the URL has the form redis://[user:password@]host[:port][/database], or rediss:// for TLS"
_TLS_OPTIONS = frozenset(
    {"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
)


class Address:
    """A server to connect to; `str()` names it without user, password and options."""

    __slots__ = ("_options", "_text", "_tls")

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            # The parser's own messages may quote the password: they stay inside.
            options: dict[str, Any] = dict(parse_url(url))
        except ValueError:
            raise ConfigError.one(SETTING, _FORM) from None
        if parts.scheme not in ("redis", "rediss"):
            raise ConfigError.one(SETTING, _FORM)
        self._tls = parts.scheme == "rediss"
        options.pop("connection_class", None)
        allowed = {"host", "port", "db", "username", "password"} | (_TLS_OPTIONS if self._tls else set())
        if unknown := sorted(options.keys() - allowed):
            takes = f"a {parts.scheme} URL takes only {', '.join(sorted(allowed & (_TLS_OPTIONS | {'db'})))}"
            raise ConfigError.one(SETTING, f"unknown option {unknown[0]!r}: {takes}")
        self._options = options
        self._text = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Address({self._text})"

    def connection(self, connect_limit_s: float) -> Connection:
        """Return a fresh connection, not yet made.

        The library repeats nothing by itself: only the caller knows which calls may be asked twice. Its read
        time limit is off, since one reader waits for all calls; each call has a limit of its own.
        """
        made_by = SSLConnection if self._tls else Connection
        try:
            return made_by(
                **self._options,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=None,
                socket_connect_timeout=connect_limit_s,
                socket_keepalive=True,
                health_check_interval=0,
            )
        except (RedisError, TypeError, ValueError):
            raise ConfigError.one(SETTING, _FORM) from None
