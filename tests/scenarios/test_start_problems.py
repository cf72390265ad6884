"""What an operator can get wrong is one line that names the setting and the remedy, and exit status 2."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Valkey, free_port, start_valkey, stop_valkey
from support.gateway import Provider

AGENT = "async def run(job):\n    return 'x'\n"


def start(provider: Provider, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `serve`, which must end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "finch_gateway.cli", "serve", "--config", "finch.toml", *arguments],
        cwd=provider.folder,
        env=provider.environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_one_line(result: subprocess.CompletedProcess[str], provider: Provider, *words: str) -> None:
    """Check that standard error says it in one line, with these words, and nothing that must stay private."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("finch-gateway: ")]
    assert result.returncode == 2, result.stderr
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert provider.displayed_secret not in result.stdout + result.stderr
    for word in words:
        assert word in lines[0]


def wrong_secret(provider: Provider) -> None:
    provider.variables["REQUEST_SECRET"] = provider.displayed_secret[:-2]


def missing_secret(provider: Provider) -> None:
    provider.variables["REQUEST_SECRET"] = ""


def unknown_setting(provider: Provider) -> None:
    provider.server = {"prot": 8080}


def bad_type(provider: Provider) -> None:
    provider.server = {"max_body_bytes": "large"}


def missing_module(provider: Provider) -> None:
    provider.backend = {"type": "python", "target": "nowhere:run"}


def missing_attribute(provider: Provider) -> None:
    provider.backend = {"type": "python", "target": "agent:walk"}


def unknown_backend(provider: Provider) -> None:
    provider.backend = {"type": "pyhton", "target": "agent:run"}


def unknown_option(provider: Provider) -> None:
    provider.backend = {"type": "python", "target": "agent:run", "tarjet": "x"}


def strange_host(provider: Provider) -> None:
    provider.server = {"host": "192.0.2.1"}


def unwritable_store(provider: Provider) -> None:
    (provider.folder / "not-a-folder").write_text("")
    provider.store_url = "sqlite:///not-a-folder/finch.db"


def no_database(provider: Provider) -> None:
    (provider.folder / "finch.db").write_text("this is no database, it is a text of some length\n" * 100)


def unreachable_redis(provider: Provider) -> None:
    provider.store_url = f"redis://user:store-password@127.0.0.1:{free_port()}/0"


PROBLEMS: list[tuple[Callable[[Provider], None], tuple[str, ...]]] = [
    (wrong_secret, ("listings[0].credentials[0].request_secret", "copy the value again")),
    (missing_secret, ("listings[0].credentials[0].request_secret", "REQUEST_SECRET")),
    (unknown_setting, ("server.prot", "port?")),
    (bad_type, ("server.max_body_bytes",)),
    (missing_module, ("listings[0].backend.target", "nowhere")),
    (missing_attribute, ("listings[0].backend.target", "walk")),
    (unknown_backend, ("listings[0].backend.type", "python")),
    (unknown_option, ("listings[0].backend.tarjet",)),
    (strange_host, ("server.host", "192.0.2.1")),
    (unwritable_store, ("store.url",)),
    (no_database, ("store.url",)),
    (unreachable_redis, ("store.url",)),
]


@pytest.mark.parametrize(("spoil", "words"), PROBLEMS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_setting_is_one_line_and_exit_2(
    tmp_path: Path, spoil: Callable[[Provider], None], words: tuple[str, ...]
) -> None:
    provider = Provider(tmp_path)
    spoil(provider)
    provider.write(AGENT)
    result = start(provider)
    assert_one_line(result, provider, *words)
    assert "store-password" not in result.stderr


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        provider = Provider(tmp_path, server={"port": taken.getsockname()[1]})
        provider.write(AGENT)
        assert_one_line(start(provider), provider, "server.port", "in use")


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_known_key_id_under_another_secret_is_named_with_its_remedy(tmp_path: Path, workers: str) -> None:
    provider = Provider(tmp_path)
    provider.write(AGENT)
    with provider.running():
        pass
    provider.secret = os.urandom(32)
    result = start(provider, "--workers", workers)
    assert_one_line(result, provider, "listings[0].credentials", provider.key_id, "credentials forget")
    forget = [sys.executable, "-m", "finch_gateway.cli", "credentials", "forget", provider.key_id, "--yes"]
    subprocess.run(forget, cwd=provider.folder, env=provider.environ(), check=True, capture_output=True, timeout=60)
    with provider.running():
        pass


def test_an_evicting_redis_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = start_valkey(folder, free_port(), "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    try:
        provider = Provider(tmp_path, store_url=server.url)
        provider.write(AGENT)
        assert_one_line(start(provider), provider, "store.url", "noeviction")
    finally:
        stop_valkey(server)


def test_a_redis_with_another_password_is_refused_without_showing_ours(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = start_valkey(folder, free_port())
    try:
        url = server.url.replace("redis://", "redis://:our-password@")
        provider = Provider(tmp_path, store_url=url)
        provider.write(AGENT)
        result = start(provider)
        assert_one_line(result, provider, "store.url")
        assert "our-password" not in result.stderr
    finally:
        stop_valkey(server)


def test_two_listings_cannot_share_a_store_key_id(tmp_path: Path, valkey: Valkey) -> None:
    namespace = uuid.uuid4().hex
    provider = Provider(tmp_path, store_url=valkey.url, store={"namespace": namespace})
    provider.write(AGENT)
    with provider.running():
        pass
    provider.listing = {"name": "another"}
    provider.write()
    assert_one_line(start(provider), provider, provider.key_id, "'agent'")
