"""Below a group, the configuration is named before or behind the command, and read when something really runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

CALLS = [
    ("tasks", "list"),
    ("tasks", "show", "x"),
    ("tasks", "cancel", "x", "--yes"),
    ("callbacks", "list"),
    ("callbacks", "show", "x", "1"),
    ("callbacks", "resend", "x"),
    ("credentials", "forget", "x", "--yes"),
]
UNKNOWN = "-unknown-task-id-h-"


@pytest.fixture
def elsewhere(run_command: Run, tmp_path: Path) -> str:
    """A good configuration in another folder than the one where commands run."""
    assert run_command("init", "elsewhere").returncode == 0
    return str(tmp_path / "elsewhere" / "finch.toml")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(call[:2]))
def test_the_configuration_is_named_before_or_behind_the_command(
    run_command: Run, elsewhere: str, call: tuple[str, ...]
) -> None:
    group, *rest = call
    before = run_command(group, "--config", elsewhere, *rest)
    behind = run_command(group, *rest, "--config", elsewhere)
    assert "does not exist" not in before.stderr
    assert (before.returncode, before.stdout, before.stderr) == (behind.returncode, behind.stdout, behind.stderr)
    neither = run_command(*call)
    assert neither.returncode == 2
    assert neither.stderr.startswith("finch-gateway: finch.toml: does not exist")


def test_behind_the_command_counts_where_both_are_named(run_command: Run, elsewhere: str) -> None:
    assert run_command("tasks", "--config", "none.toml", "list", "--config", elsewhere).returncode == 0
    assert run_command("tasks", "--config", elsewhere, "list", "--config", "none.toml").returncode == 2


@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(call[:2]))
def test_help_needs_no_configuration(run_command: Run, call: tuple[str, ...]) -> None:
    done = run_command(*call[:2], "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: finch-gateway {' '.join(call[:2])} ")
    assert "--config" in done.stdout
    assert ("begins with a dash stands behind two dashes" in done.stdout) is ("TASK_ID" in done.stdout)


def test_a_task_id_that_begins_with_a_dash_is_taken_behind_two_dashes(run_command: Run, elsewhere: str) -> None:
    done = run_command("tasks", "show", "--config", elsewhere, "--", UNKNOWN)
    assert (done.returncode, done.stderr) == (1, f"finch-gateway: The store does not know task {UNKNOWN}.\n")
    done = run_command("callbacks", "resend", "--config", elsewhere, "--", UNKNOWN, "3")
    assert done.returncode == 1
    assert UNKNOWN in done.stderr


def test_a_listing_there_is_not_is_refused_with_those_there_are(run_command: Run, elsewhere: str) -> None:
    done = run_command("tasks", "list", "--config", elsewhere, "--listing", "nope")
    assert done.returncode == 2
    assert done.stderr == "finch-gateway: --listing: the configuration has no listing of that name; it has: my-agent\n"


def test_resending_where_nothing_is_dead_says_so(run_command: Run, elsewhere: str) -> None:
    done = run_command("callbacks", "resend", "--all-dead", "--config", elsewhere)
    assert (done.returncode, done.stdout) == (0, "No dead callbacks.\n")
    done = run_command("callbacks", "resend", "x", "--config", elsewhere)
    assert (done.returncode, done.stderr) == (1, "finch-gateway: Task x has no callbacks to deliver.\n")


def test_what_is_not_confirmed_ends_in_one_line(run_command: Run, elsewhere: str) -> None:
    done = run_command("tasks", "cancel", "x", "--config", elsewhere, stdin="n\n")
    assert done.returncode == 1
    assert done.stderr.endswith("finch-gateway: aborted\n")
