"""`check` shows what the gateway would run with, everything wrong with it, and no secret."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., object]
PLANTED = "plantedsecret"
COMMANDS = ["init", "serve", "check", "demo", "say", "contract-test", "tasks", "callbacks", "credentials"]


@pytest.fixture
def config(run_command: Run, tmp_path: Path) -> Path:
    """A good configuration, as `init` writes it."""
    assert run_command("init").returncode == 0
    return tmp_path / "finch.toml"


def test_a_good_configuration_is_shown_with_every_origin(run_command: Run, config: Path) -> None:
    done = run_command("check", FINCH_GATEWAY_SERVER__GRACE_S="3")
    assert (done.returncode, done.stderr) == (0, "")
    shown = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert shown["server.port"] == ["8080", "finch.toml", "line", "6"]
    assert shown["server.grace_s"] == ["3", "env", "FINCH_GATEWAY_SERVER__GRACE_S"]
    assert shown["store.lease_s"] == ["20", "default"]
    assert shown["listings[0].credentials[0].request_secret"][0] == "env:FINCH_REQUEST_SECRET"
    assert "my-agent at /finch/v2" in done.stdout


def test_every_problem_is_a_line_with_its_setting_and_remedy(run_command: Run, config: Path) -> None:
    text = config.read_text().replace("8080", '"x"').replace("/finch/v2", "/finch/v2/").replace('"python"', '"pyton"')
    config.write_text(text + "\n[outbond]\n")
    (config.parent / ".env").write_text(f"FINCH_REQUEST_SECRET={PLANTED}\nFINCH_CALLBACK_SECRET=\n")
    done = run_command("check")
    assert done.returncode == 2
    problems = [line for line in done.stderr.splitlines() if line.startswith("finch-gateway: ")]
    settings = [problem.removeprefix("finch-gateway: ").split(" ")[0] for problem in problems]
    assert settings == [
        "server.port",
        "listings[0].mount",
        "listings[0].credentials[0].request_secret",
        "listings[0].credentials[0].callback_secret",
        "outbond",
        "listings[0].backend.type",
    ]
    assert all("(line " in problem for problem in problems)
    assert PLANTED not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("tooshortsecret", "decodes to 10 bytes"),
        (" AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", ""),
        ("0" * 64, "is 64 hex digits"),
        ("plantedsecret!", "holds characters outside Base64URL"),
    ],
)
def test_a_secret_that_cannot_be_used_is_named_by_its_setting(
    secret: str, said: str, run_command: Run, config: Path
) -> None:
    done = run_command("check", FINCH_REQUEST_SECRET=secret)
    assert done.returncode == (2 if said else 0)
    assert said in done.stderr
    assert ("warning: listings[0].credentials[0].request_secret" in done.stdout) is (not said)
    assert secret.strip() not in done.stdout + done.stderr


def test_without_a_file_there_is_one_line_that_says_what_to_do(run_command: Run, tmp_path: Path) -> None:
    for arguments in (
        ["check"],
        ["check", "none.toml"],
        ["check", "--config", "none.toml"],
        ["credentials"],
        ["serve"],
    ):
        done = run_command(*arguments)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "does not exist" in done.stderr
        assert "finch-gateway init" in done.stderr


def test_several_files_are_checked_and_one_bad_one_decides(run_command: Run, config: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[server\n")
    done = run_command("check", "finch.toml", "bad.toml")
    assert done.returncode == 2
    assert "my-agent at /finch/v2" in done.stdout
    assert "bad.toml (line 1): is not valid TOML" in done.stderr
    assert run_command("check", "finch.toml", "finch.toml").returncode == 0


def test_check_starts_connects_to_and_creates_nothing(run_command: Run, config: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("raise SystemExit(9)\n")
    before = sorted(os.listdir(tmp_path))
    done = run_command("check", FINCH_GATEWAY_STORE__URL=f"redis://:{PLANTED}@127.0.0.1:1/0")
    assert done.returncode == 0
    assert "redis://127.0.0.1:1/0" in done.stdout
    assert PLANTED not in done.stdout + done.stderr
    assert sorted(os.listdir(tmp_path)) == before


def test_no_output_of_any_command_holds_a_secret(run_command: Run, config: Path, tmp_path: Path) -> None:
    config.write_text(
        config.read_text()
        .replace("sqlite:///finch.db", f"redis://u:{PLANTED}@127.0.0.1:1/0")
        .replace('"env:FINCH_REQUEST_SECRET"', f'"{PLANTED}"')
        .replace('target = "agent:run"', f'target = "agent:run"\napi_key = "{PLANTED}"\nheaders = ["{PLANTED}"]')
    )
    (tmp_path / ".env").write_text(f"FINCH_CALLBACK_SECRET='{PLANTED}\n")
    variables = {
        "FINCH_REQUEST_SECRET": PLANTED,
        "FINCH_GATEWAY_STORE__LEASE_S": PLANTED,
        "FINCH_GATEWAY_SERVER__HOST": f"http://u:{PLANTED}@h",
    }
    for arguments in (
        ["--help"],
        ["--version"],
        *([command, "--help"] for command in COMMANDS),
        ["check"],
        ["credentials"],
        ["credentials", "forget", "x", "--yes"],
        ["serve"],
    ):
        done = run_command(*arguments, **variables)
        assert PLANTED not in done.stdout + done.stderr, arguments
        assert done.returncode == (0 if arguments[-1] in ("--help", "--version") else 2), arguments


def test_an_output_that_cannot_show_a_sign_shows_another(run_command: Run, config: Path) -> None:
    config.rename(config.with_name("größe.toml"))
    done = run_command("check", "größe.toml", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "e.toml comes to:" in done.stdout


def test_help_lists_every_command_and_loads_none(run_command: Run) -> None:
    begun = time.monotonic()
    done = run_command("--help", PYTHONPROFILEIMPORTTIME="1")
    assert time.monotonic() - begun < 30
    assert done.returncode == 0
    listed = [line.split()[0] for line in done.stdout.split("Commands:")[1].splitlines() if line[2:3].strip()]
    assert listed == COMMANDS
    assert "finch_gateway.cli" in done.stderr
    for heavy in ("finch_gateway.cli.check", "finch_gateway.app", "uvicorn", "redis", "starlette"):
        assert f" {heavy}\n" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said", "where"),
    [
        (["chekc"], "No such command 'chekc'.", ""),
        (["--quiet"], "No such option '--quiet'.", ""),
        (["tasks", "show"], "Missing argument 'TASK_ID'.", "tasks show "),
        (["init", "--backend", "cobol"], "Invalid value for '--backend': 'cobol' is not one of 'python',", "init "),
    ],
)
def test_a_call_that_is_written_wrong_is_one_line_that_names_the_program(
    run_command: Run, arguments: list[str], said: str, where: str
) -> None:
    done = run_command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"finch-gateway: {said}")
    assert done.stderr.endswith(f" Try finch-gateway {where}--help.\n")
    assert done.stderr.count("\n") == 1


def test_a_group_alone_says_which_commands_it_has(run_command: Run) -> None:
    done = run_command("tasks")
    assert done.returncode == 2
    assert all(name in done.stderr for name in ("list", "show", "cancel"))


def test_a_command_that_is_not_installed_is_one_line(run_command: Run, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['finch_gateway.cli.demo'] = None\n")
    done = run_command("demo", PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}")
    assert done.returncode == 2
    assert "does not have the command 'demo'" in done.stderr
