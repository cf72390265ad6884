"""The gateway as a process: its socket, its HTTP parser, its signals, its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

import uvicorn

from .app import Gateway
from .config import ServerSettings
from .errors import ConfigError
from .inbound.parsers import StrictH11Protocol, whole_target_httptools
from .observe import Log, adopt_libraries

Parser = Literal["auto", "h11", "httptools"]
BACKLOG = 2048
KEEP_ALIVE_S = 75
AFTER_GRACE_S = 5
"""How much longer than the drain uvicorn waits for answers to leave, in seconds."""


def bind(server: ServerSettings) -> socket.socket:
    """Return a bound socket; raise `ConfigError` naming the setting where that cannot be done."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError.one("server.host", f"{server.host!r} is not an address of this machine") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _not_bound(server, error) from error
    return listener


def _not_bound(server: ServerSettings, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError.one(
            "server.port", f"{server.port} is in use on {server.host}; stop that process or set another port"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError.one("server.port", f"{server.port} needs privileges; set a port above 1023")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError.one("server.host", f"{server.host!r} is not an address of this machine")
    return ConfigError.one("server.host", f"cannot listen on {server.host}: {os.strerror(error.errno or 0)}")


class _Server(uvicorn.Server):
    """uvicorn's server, with our drain in its shutdown and an exit status of its own choosing."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn raises the signal again at the end; an orderly stop is no death by signal.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Still listening: whoever comes during the drain gets a signed 503 and not a closed door.
        await self._gateway.drain()
        await super().shutdown(sockets)


def _parser(name: Parser) -> type[asyncio.Protocol]:
    if name == "h11":
        return StrictH11Protocol
    try:
        return whole_target_httptools()
    except ImportError:
        if name == "auto":
            return StrictH11Protocol
        raise ConfigError.one("--http", "httptools is not installed: pip install 'finch-gateway[fast]'") from None


async def serve(
    gateway: Gateway,
    listener: socket.socket,
    server: ServerSettings,
    log: Log,
    *,
    parser: Parser = "auto",
    on_ready: Callable[[], None],
    life: int | None = None,
) -> None:
    """Start the gateway, answer on `listener` until a signal or the end of `life`, drain, stop.

    `life` is the read end of a pipe whose other end the parent process holds: when it ends, so does this
    process. Raises `ConfigError` when the gateway cannot start.
    """
    adopt_libraries(log)
    asyncio.get_running_loop().set_exception_handler(_loop_trouble(log))
    protocol = _parser(parser)
    await gateway.start()
    try:
        config = uvicorn.Config(
            gateway,
            http=protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(server.grace_s) + AFTER_GRACE_S,
            backlog=BACKLOG,
        )
        uvicorn_server = _Server(config, gateway)
        if life is not None:
            asyncio.get_running_loop().add_reader(life, uvicorn_server.handle_exit, signal.SIGTERM, None)
        listener.listen(BACKLOG)
        # What is there by now stays until the end: no collection needs to look at it again.
        gc.collect()
        gc.freeze()
        on_ready()
        await uvicorn_server.serve([listener])
    finally:
        if life is not None:
            asyncio.get_running_loop().remove_reader(life)
        await gateway.stop()
        log.flush()


def _loop_trouble(log: Log) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return an exception handler that names what went wrong without its text."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error("loop.trouble", error_type=type(error).__name__ if error else "none")

    return handle


def run(main: Callable[[], Any]) -> Any:
    """Run a coroutine function to its end on the fastest event loop that is installed."""
    factory = None
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            import uvloop

            factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())
