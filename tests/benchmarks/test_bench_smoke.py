"""The benchmark runs, and what it measures are right answers. How fast they are is never a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DUE = {
    "A": "200",
    "B-raw": "200",
    "D": "200",
    "redis": "200",
    "sqlite": "200",
    "redis-tasks": "202",
    "sqlite-tasks": "202",
}
TASKS = 40


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict:
    file = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(file), "--tasks", str(TASKS)]
    command += ["--servers", *DUE, "--scenarios", "c=32", "1000/s"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize("server", DUE)
def test_every_measured_answer_has_its_due_status_and_every_sampled_one_is_verified(
    measured: dict, server: str
) -> None:
    measures = [scenario[server] for one in measured["rounds"] for scenario in one.values() if server in scenario]
    assert measures
    for measure in measures:
        assert measure["statuses"] == {DUE[server]: measure["requests"]}
        assert measure["errors"] == 0
        assert measure["sampled"] >= 1
        assert measure["verified"] == measure["sampled"]


@pytest.mark.parametrize("store", ["redis", "sqlite"])
def test_every_task_of_a_batch_ends_completed_and_tells_it_once(measured: dict, store: str) -> None:
    (lives,) = measured["lives"]
    batch = lives["batches"][store]
    assert batch["tasks"] == batch["events"]["completed"] == TASKS
    assert batch["seconds"] > 0
    assert batch["cpu_s"] > 0


def test_the_goals_that_were_driven_have_a_verdict(measured: dict) -> None:
    verdicts = {goal["goal"]: goal["verdict"] for goal in measured["goals"]}
    for driven in (
        "Redis, c=32: rate over A",
        "Redis, c=32: tasks accepted over A",
        "SQLite, c=32: rate over A",
        "Callbacks per core over one shared httpx client",
    ):
        assert verdicts[driven] in {"stretch", "met", "BELOW"}
    assert verdicts["Redis, c=32: rate over C"] == "not measured"


def test_the_generator_was_not_the_limit(measured: dict) -> None:
    assert all(
        measure["generator_cpu"] < 0.9 for one in measured["rounds"] for by in one.values() for measure in by.values()
    )
