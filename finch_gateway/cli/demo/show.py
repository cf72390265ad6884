"""Sets the demo's stage in a folder of its own, plays every scene, and sums up."""

from __future__ import annotations

import base64
import os
import secrets
import tempfile
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from ...emulator.line import SocketLine
from ...emulator.platform import Endpoint, NoAnswer, Platform
from ...emulator.receiver import CallbackKey, Receiver
from ...emulator.signer import Credential, WireProtocol, secret_bytes
from ..screen import mark, ticking
from .scenes import SCENES
from .stage import Machine, Scene, Stage, Verdict

# The short lease lets the demo watch a take-over; the outbound rules let the gateway call this machine (wire 9.1).
_CONFIG = """\
[store]
url = "sqlite:///demo.db"
lease_s = 3

[outbound]
allow_private = true
allow_hosts = ["127.0.0.1"]
"""
_LISTING = """
[[listings]]
name = "{name}"
wire_protocol = "{wire_protocol}"
mount = "{mount}"
modes = ["conversation_turn", "task"]
poll_after_ms = 500

[listings.backend]
type = "python"
target = "finch_gateway.cli.demo.agent:agent"

[[listings.credentials]]
key_id = "{key_id}"
request_secret = "env:{variable}"
callback_secret = "env:{variable}_FOR_CALLBACKS"
"""


@dataclass(frozen=True, slots=True)
class _Listing:
    """One of the demo's listings, with the secrets as Finch would display them."""

    name: str
    wire_protocol: WireProtocol
    mount: str
    key_id: str
    variable: str
    displayed: str
    displayed_for_callbacks: str

    @property
    def table(self) -> str:
        fields = ("name", "wire_protocol", "mount", "key_id", "variable")
        return _LISTING.format(**{field: getattr(self, field) for field in fields})

    @property
    def variables(self) -> dict[str, str]:
        return {self.variable: self.displayed, f"{self.variable}_FOR_CALLBACKS": self.displayed_for_callbacks}

    @property
    def callback_key(self) -> CallbackKey:
        return CallbackKey(self._credential(self.displayed_for_callbacks), self._credential(self.displayed))

    def platform(self, base_url: str) -> Platform:
        endpoint = Endpoint(self.name, self.wire_protocol, self._credential(self.displayed), self.mount)
        return Platform(endpoint, SocketLine(base_url))

    def _credential(self, displayed: str) -> Credential:
        return Credential(self.key_id, secret_bytes(displayed, self.wire_protocol))


def _new_listings() -> tuple[_Listing, _Listing]:
    key_id, v0_key_id = f"finch.agenton.{uuid.uuid4()}", f"eav_{secrets.token_hex(8)}"
    v0_secrets = secrets.token_hex(24), secrets.token_hex(24)
    return (
        _Listing("demo", "finch_v2", "/finch/v2", key_id, "DEMO_SECRET", _new_secret(), _new_secret()),
        _Listing("demo-v0", "agenton_v0", "/finch/v0", v0_key_id, "DEMO_V0_SECRET", *v0_secrets),
    )


def _new_secret() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


async def run_show(elapsed: Callable[[], float]) -> bool:
    """Play the demo and say whether every scene went as it must; `elapsed` is in seconds."""
    click.secho("finch-gateway demo", bold=True)
    click.echo("A real gateway on SQLite, a small Python agent behind it, and Finch's side of the wire before it.\n")
    with tempfile.TemporaryDirectory(prefix="finch-demo-") as folder:
        verdicts = await _play_all(Path(folder), elapsed)
    _sum_up(verdicts, elapsed)
    return all(verdict.ok for verdict in verdicts)


async def _play_all(folder: Path, elapsed: Callable[[], float]) -> list[Verdict]:
    v2, v0 = _new_listings()
    config = folder / "finch.toml"
    config.write_text(_CONFIG + v2.table + v0.table, encoding="utf-8")
    machine = Machine(config, _environment({**v2.variables, **v0.variables}))
    started = elapsed()
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(Receiver([v2.callback_key, v0.callback_key]))
        stack.push_async_callback(machine.stop)
        async with ticking("Starting the gateway"):
            await machine.start()
        click.echo(f"{mark(True)} The gateway listens on {machine.base_url} after {elapsed() - started:.1f} s.")
        stage = Stage(v2.platform(machine.base_url), v0.platform(machine.base_url), receiver, machine)
        return [await _play(number, scene, stage) for number, scene in enumerate(SCENES, 1)]


def _environment(added: dict[str, str]) -> dict[str, str]:
    """Return this process's variables without settings that were meant for another gateway."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FINCH_GATEWAY_")}
    return {**own, **added}


async def _play(number: int, scene: Scene, stage: Stage) -> Verdict:
    click.echo(f"\n{click.style(f' {number:>2} ', reverse=True)} {click.style(scene.title, bold=True)}")
    click.echo(f"     {scene.story}")
    try:
        verdict = await scene.play(stage)
    except NoAnswer as error:
        verdict = Verdict(False, f"no answer: {error}")
    click.echo(f"  {mark(verdict.ok)} {verdict.said if verdict.ok else f'not as it must be: {verdict.said}'}")
    return verdict


def _sum_up(verdicts: list[Verdict], elapsed: Callable[[], float]) -> None:
    click.echo(f"\n{click.style('Summary', bold=True)}")
    width = max(len(scene.title) for scene in SCENES)
    for scene, verdict in zip(SCENES, verdicts, strict=True):
        click.echo(f"  {mark(verdict.ok)} {scene.title:<{width}}  {verdict.said}")
    passed = sum(verdict.ok for verdict in verdicts)
    click.echo(f"\n{passed} of {len(verdicts)} as they must be, in {elapsed():.1f} s. Nothing was left behind.")
    if passed == len(verdicts):
        click.echo("Next: finch-gateway init my-agent")
