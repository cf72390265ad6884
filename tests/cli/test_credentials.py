"""The file's revisions beside what the store knows, and how a mistyped first secret is corrected."""

from __future__ import annotations

import asyncio
import base64
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finch_gateway.app import open_store
from finch_gateway.config import load
from finch_gateway.listing import load_all
from finch_gateway.store import Held, KnownRevision, Nonce, Store, TurnClaim, TurnKey

Run = Callable[..., Any]


def new_secret() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


@pytest.fixture(params=["sqlite", "redis"])
def variables(request: pytest.FixtureRequest) -> dict[str, str]:
    """What makes the commands use the store under test."""
    if request.param == "sqlite":
        return {}
    server = request.getfixturevalue("valkey")
    return {"FINCH_GATEWAY_STORE__URL": server.url, "FINCH_GATEWAY_STORE__NAMESPACE": f"t{uuid.uuid4().hex}"}


@pytest.fixture
def config(run_command: Run, tmp_path: Path) -> Path:
    """A good configuration, as `init` writes it."""
    assert run_command("init").returncode == 0
    return tmp_path / "finch.toml"


def rows(done: Any) -> dict[str, list[str]]:
    """Return the printed table's rows by key id."""
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["KEY", "ID", "LISTING", "STATE", "FINGERPRINT", "FIRST", "SEEN", "TURNS", "TASKS"]
    return {line.split()[0]: line.split()[1:] for line in lines}


def in_store(config: Path, variables: dict[str, str], work: Callable[[Store], Any]) -> Any:
    """Run `work` on the open store of a configuration."""

    async def run() -> Any:
        store = open_store(load(config, variables).store)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def test_before_the_first_start_every_revision_was_never_seen(run_command: Run, config: Path) -> None:
    [revision] = load_all(config, {}).listings[0].revisions.values()
    done = run_command("credentials")
    assert rows(done) == {revision.key_id: ["my-agent", "current", revision.fingerprint, "never", "0", "0"]}
    assert not (config.parent / "finch.db").exists()


def test_a_mistyped_first_secret_is_corrected_by_forgetting_it(
    run_command: Run, serving: Run, config: Path, variables: dict[str, str]
) -> None:
    key_id = load(config, variables).listings[0].credentials[0].key_id
    with serving(config.parent, **variables, FINCH_REQUEST_SECRET=new_secret()):
        pass
    shown = rows(run_command("credentials", **variables))[key_id]
    assert shown[3].startswith("20")
    assert " ".join(shown[7:]) == "the store has another secret"

    refused = run_command("serve", **variables)
    assert refused.returncode == 2
    assert f"credentials forget {key_id}" in refused.stderr

    forgotten = run_command("credentials", "forget", key_id, "--yes", **variables)
    assert (forgotten.returncode, forgotten.stderr) == (0, "")
    assert rows(run_command("credentials", **variables))[key_id][3] == "never"
    with serving(config.parent, **variables):
        pass
    shown = rows(run_command("credentials", **variables))[key_id]
    assert shown[3].startswith("20")
    assert len(shown) == 7


def test_nothing_is_forgotten_without_a_yes(run_command: Run, config: Path, variables: dict[str, str]) -> None:
    known = KnownRevision("old-key", "my-agent", "f", time.time())
    in_store(config, variables, lambda store: store.register_revisions([known]))
    for answer in ("", "n\n"):
        done = run_command("credentials", "forget", "old-key", stdin=answer, **variables)
        assert done.returncode == 1
        assert "old-key" in rows(run_command("credentials", **variables))
    done = run_command("credentials", "forget", "old-key", stdin="y\n", **variables)
    assert done.returncode == 0
    assert "old-key" not in rows(run_command("credentials", **variables))


def test_a_key_id_that_the_store_does_not_know_cannot_be_forgotten(
    run_command: Run, config: Path, variables: dict[str, str]
) -> None:
    done = run_command("credentials", "forget", "nobody", "--yes", **variables)
    assert done.returncode == 1
    assert "does not know nobody" in done.stderr


def test_what_only_the_store_knows_is_listed_with_what_still_uses_it(
    run_command: Run, config: Path, variables: dict[str, str]
) -> None:
    now = time.time()
    claim = TurnClaim(
        key=TurnKey("my-agent", str(uuid.uuid4()), "t"),
        nonce=Nonce("old-key", "n1", now + 300, "op"),
        input_digest="d",
        key_id="old-key",
        conversation_id="",
        op="op",
        lease_s=600,
        keep_until=now + 3600,
        may_start=True,
        facts=b"{}",
    )

    async def work(store: Store) -> object:
        await store.register_revisions([KnownRevision("old-key", "my-agent", "f" * 16, 1_700_000_000)])
        return await store.claim_turn(claim, now)

    assert isinstance(in_store(config, variables, work), Held)
    shown = rows(run_command("credentials", **variables))["old-key"]
    assert " ".join(shown) == f"my-agent - {'f' * 16} 2023-11-14 22:13:20Z 1 0 not in the configuration"
    done = run_command("credentials", "forget", "old-key", stdin="n\n", **variables)
    assert "warning: 1 turns and tasks are open under old-key" in done.stderr


def test_a_key_id_under_another_listing_is_said(run_command: Run, config: Path, variables: dict[str, str]) -> None:
    [revision] = load_all(config, variables).listings[0].revisions.values()
    known = KnownRevision(revision.key_id, "other", revision.fingerprint, 1_700_000_000)
    in_store(config, variables, lambda store: store.register_revisions([known]))
    shown = rows(run_command("credentials", **variables))[revision.key_id]
    assert " ".join(shown[7:]) == "the store has it under listing other"


def test_no_secret_is_listed(run_command: Run, config: Path) -> None:
    [credential] = load(config, {}).listings[0].credentials
    done = run_command("credentials")
    assert credential.request_secret not in done.stdout + done.stderr
    assert str(credential.callback_secret) not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [["credentials"], ["credentials", "forget", "x", "--yes"]])
def test_a_store_that_is_away_is_one_line_without_its_password(
    arguments: list[str], run_command: Run, config: Path
) -> None:
    done = run_command(*arguments, FINCH_GATEWAY_STORE__URL="redis://:plantedsecret@127.0.0.1:1/0")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "store.url" in done.stderr
    assert "plantedsecret" not in done.stdout + done.stderr
