"""The files in deploy/ do what their comments say, tried with the real programs where this machine has them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.gateway import GatewayProcess, Provider

from finch_gateway.config import ServerSettings, load

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
ECHO = "async def run(job):\n    return job.text\n"

needs_nginx = pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="nginx not installed")
needs_caddy = pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy not installed")


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def proxy(command: list[str], port: int, folder: Path, **variables: str) -> Iterator[str]:
    """Run a proxy until the block ends; yield its base URL once it listens."""
    with (
        (folder / "proxy.log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(port, process, folder)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError((folder / "proxy.log").read_text())


def nginx_configuration(folder: Path, port: int, upstream: int) -> Path:
    """Return the shipped site, on a free port and without TLS, inside the smallest whole configuration."""
    site = (DEPLOY / "nginx.conf").read_text()
    site = site.replace("listen 443 ssl http2;", f"listen 127.0.0.1:{port};")
    site = site.replace("server 127.0.0.1:8080;", f"server 127.0.0.1:{upstream};")
    site = "\n".join(line for line in site.splitlines() if "ssl_certificate" not in line)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = f"daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
    whole += f"http {{\naccess_log off;\n{temporary}{site}\n}}\n"
    path = folder / "nginx.conf"
    path.write_text(whole)
    return path


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    provider = Provider(tmp_path / "provider")
    provider.write(ECHO)
    return provider


@pytest.fixture
def gateway(provider: Provider) -> Iterator[GatewayProcess]:
    with provider.running() as process:
        yield process


def pass_the_contract_test(provider: Provider, base_url: str) -> None:
    """Play the connection test through a proxy: turns, tasks, and callbacks that arrive."""
    config = str(provider.folder / "finch.toml")
    command = [sys.executable, "-m", "finch_gateway.cli", "contract-test", "--config", config, "--base-url", base_url]
    done = subprocess.run(command, env=provider.environ(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "callbacks of the task" in done.stdout
    assert "by polling" not in done.stdout


@needs_nginx
def test_behind_the_nginx_site_every_check_of_the_contract_passes(
    provider: Provider, gateway: GatewayProcess, tmp_path: Path
) -> None:
    port = free_port()
    configuration = nginx_configuration(tmp_path, port, gateway.port)
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin") or "nginx"
    with proxy([nginx, "-p", str(tmp_path), "-e", "stderr", "-c", str(configuration)], port, tmp_path) as base_url:
        pass_the_contract_test(provider, base_url)


@needs_caddy
def test_behind_the_caddyfile_every_check_of_the_contract_passes(
    provider: Provider, gateway: GatewayProcess, tmp_path: Path
) -> None:
    port = free_port()
    command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(DEPLOY / "Caddyfile")]
    variables = {
        "FINCH_HOST": f"http://127.0.0.1:{port}",
        "FINCH_UPSTREAM": f"127.0.0.1:{gateway.port}",
        "CADDY_ADMIN": f"127.0.0.1:{free_port()}",
        "HOME": str(tmp_path),
    }
    with proxy(command, port, tmp_path, **variables) as base_url:
        pass_the_contract_test(provider, base_url)


def test_the_image_is_healthy_while_its_port_takes_connections(gateway: GatewayProcess) -> None:
    [code] = re.findall(r'"(import os, socket; .+)"\]', (ROOT / "Dockerfile").read_text())

    def ask(port: int) -> int:
        variables = {"FINCH_GATEWAY_SERVER__PORT": str(port)}
        return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, timeout=30).returncode

    assert ask(gateway.port) == 0
    assert ask(free_port()) == 1


def test_the_variables_of_image_and_composition_are_settings(provider: Provider) -> None:
    text = (ROOT / "Dockerfile").read_text() + (DEPLOY / "docker-compose.yml").read_text()
    variables = dict(re.findall(r"(FINCH_GATEWAY_[A-Z]+__[A-Z_]+)(?:=|: )(\S+)", text))
    assert set(variables) == {f"FINCH_GATEWAY_{name}" for name in ("SERVER__HOST", "SERVER__PORT", "STORE__URL")}
    config = load(provider.folder / "finch.toml", {**provider.environ(), **variables})
    assert (config.server.host, config.server.port, config.store.url) == ("0.0.0.0", 8080, "redis://valkey:6379/0")


@pytest.mark.parametrize("name", ["docker-compose.yml", "finch-gateway.service"])
def test_the_time_to_stop_is_longer_than_a_drain_can_take(name: str) -> None:
    words = (DEPLOY / name).read_text().replace(":", "=").replace(" ", "").splitlines()
    [stop] = [word.partition("=")[2] for word in words if word.startswith(("stop_grace_period=", "TimeoutStopSec="))]
    assert float(stop.rstrip("s")) > ServerSettings().grace_s + 10
