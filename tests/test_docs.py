"""What the README and docs/ say is what the code does: tables, commands, links, examples, cited rules."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from support.gateway import Provider
from support.receiver import Receiver

from finch_gateway import Job
from finch_gateway.backends import http as http_backend
from finch_gateway.cli import COMMANDS, main
from finch_gateway.cli.demo.scenes import SCENES
from finch_gateway.config import load
from finch_gateway.config.settings import (
    CredentialSettings,
    ListingSettings,
    OutboundSettings,
    PathSettings,
    ServerSettings,
    StoreSettings,
)
from finch_gateway.emulator.checks import CHECKS, TASK_CHECKS
from finch_gateway.errors import REFUSALS
from finch_gateway.outbound.callbacks import CallbackSettings
from finch_gateway.outbound.lane import CLAIM_MARGIN_S
from finch_gateway.outbound.schedule import Pace, Schedule

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted((ROOT / "finch_gateway").rglob("*.py"))

Row = list[str]


def rows(page: Path, header: str) -> list[Row]:
    """Return the cells of the first table whose first line begins with `header`."""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if line.startswith(header):
            break
    else:
        raise AssertionError(f"{page.name} has no table {header}")
    next(lines)
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        # A bar inside code would be written \| and is used nowhere.
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def section(title: str, page: Path = README) -> str:
    """Return a section's text, from its title to the next of the same rank."""
    return page.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(source: Path | str, language: str) -> list[str]:
    """Return the fenced blocks of one language in a page or a text; none is named by an empty text."""
    text = source if isinstance(source, str) else source.read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


# Settings


MINIMAL = """
[[listings]]
name = "example"
mount = "/example"
[listings.backend]
type = "python"
[[listings.credentials]]
key_id = "finch.agenton.00000000-0000-4000-8000-000000000000"
request_secret = "env:FINCH_REQUEST_SECRET"
"""


def settings() -> set[str]:
    """Return the name of every setting; fields that hold tables, and a setting's own place, are none."""
    tables = {
        "server": (ServerSettings, ()),
        "store": (StoreSettings, ()),
        "outbound": (OutboundSettings, ()),
        "listings": (ListingSettings, ("backend", "credentials", "paths", "setting")),
        "listings.paths": (PathSettings, ()),
        "listings.credentials": (CredentialSettings, ()),
    }
    return {
        f"{table}.{field.name}"
        for table, (kind, left_out) in tables.items()
        for field in dataclasses.fields(kind)
        if field.name not in left_out
    }


def test_the_settings_table_holds_every_setting_with_its_default(tmp_path: Path) -> None:
    written = {names(row[0])[0]: row[1] for row in rows(README, "| setting | default |")}
    options = {"type", "target", *http_backend._OPTIONS}
    assert set(written) == settings() | {"env_file"} | {f"listings.backend.{option}" for option in options}
    (tmp_path / "finch.toml").write_text(MINIMAL)
    shown = load(tmp_path / "finch.toml", {"FINCH_REQUEST_SECRET": "A" * 43}).shown
    loaded = {re.sub(r"\[0\]", "", value.setting): value for value in shown}
    wrong = {
        name: loaded[name].text
        for name in settings() & set(loaded)
        if written[name] != ("required" if loaded[name].origin != "default" else f"`{loaded[name].text}`")
    }
    # Its length is shown instead of its text.
    assert wrong == {"listings.capabilities": "(0 characters)"}
    assert {name for name in settings() - set(loaded) if written[name] != "none"} == set()


# Commands


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with the words that call it."""
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", below) for inner, below in command.commands.items())


def options(command: click.Command) -> set[str]:
    shown = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    return {name for option in shown for name in (*option.opts, *option.secondary_opts) if name.startswith("--")}


def called(words: str) -> str:
    """Return a call's command, without arguments, which are written in capitals."""
    return " ".join(word for word in words.split() if word.islower())


def test_the_command_table_holds_every_command_with_its_options() -> None:
    written = {called(names(row[0])[0]): set(names(row[1])) for row in rows(README, "| command | options |")}
    assert written == {name: options(command) for name, command in commands()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_shown_exists_with_the_options_shown(page: Path) -> None:
    known = dict(commands())
    for call in re.findall(r"finch-gateway ((?:[a-z][a-z-]*)(?: [^`\n]*)?)", in_code(page)):
        words = call.split()
        nested = " ".join(words[:2])
        name = nested if nested in known else words[0]
        assert name in known, call
        assert {word for word in words if word.startswith("--")} <= options(known[name]), call


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_shown_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", in_code(page))) <= targets


def in_code(page: Path) -> str:
    """Return what stands in fences and backticks."""
    text = page.read_text()
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", text)])


# Errors, reasons and events


def test_the_error_table_holds_every_code_with_its_status() -> None:
    written = [(names(row[0])[0], int(row[1])) for row in rows(README, "| code | status |")]
    assert written == [(code, rule.status) for code, rule in REFUSALS.items()]


def calls(*functions: str, besides: str = "") -> Iterator[ast.Call]:
    """Yield every call in the package of a function or method of one of these names, `besides` a folder."""
    for source in SOURCES:
        if besides and ROOT / "finch_gateway" / besides in source.parents:
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in functions:
                    yield node


def texts(node: ast.expr | None) -> list[str]:
    """Return the texts that an argument may be: one, or either side of a condition."""
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def test_the_failure_table_holds_every_code_the_gateway_itself_ends_a_turn_with() -> None:
    ends = calls("Failed", "JobFailed", besides="cli")
    built = {text for call in ends if call.args for text in texts(call.args[0])}
    assert {names(row[0])[0] for row in rows(README, "| code | when |")} == built


def test_the_reason_tables_hold_every_reason_a_refusal_is_logged_with() -> None:
    reasons = {text for call in calls("Unverified") for text in texts(call.args[0])}
    for call in calls("Refusal"):
        given = keyword(call, "reason")
        reasons.update(texts(call.args[0]) if given is None else texts(given))
    # Built only to be answered: the events that go with them are `request.failed`, and `store_away` before.
    reasons -= {"internal_error", "unavailable"}
    by_reason = {name for row in rows(README, "| reason | what happened |") for name in names(row[0])}
    by_code = {name for row in rows(README, "| reason | code |") for name in names(row[0])}
    assert by_reason | by_code == reasons
    assert not by_reason & by_code


EVENT = re.compile(r"[a-z]+(\.[a-z_]+)+")


def named_in(*folders: str) -> Iterator[str]:
    """Yield every text in these folders of the package that has the form of an event's name."""
    for source in SOURCES:
        if source.parent.name in folders:
            for node in ast.walk(ast.parse(source.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and EVENT.fullmatch(node.value):
                    yield node.value


def test_the_event_table_holds_every_event_with_its_level() -> None:
    levels = ("debug", "info", "warning", "error")
    # The one event whose name does not stand in its call.
    events = {"library.message": {"warning", "error"}}
    for call in calls(*levels):
        if call.args and isinstance(call.func, ast.Attribute):
            for text in texts(call.args[0]):
                if EVENT.fullmatch(text):
                    events.setdefault(text, set()).add(call.func.attr)
    # What a run and the task engine tell goes through a method that logs it as information.
    for text in named_in("engine", "outbound"):
        events.setdefault(text, {"info"})
    written = {names(row[0])[0]: row[1] for row in rows(ROOT / "docs" / "operations.md", "| event | level |")}
    assert set(written) == set(events)
    assert {name: level for name, level in written.items() if level not in events[name]} == {}


def test_the_numbers_of_the_callback_tables_are_those_of_the_code() -> None:
    schedule, limits, told = Schedule(), CallbackSettings(), section("Tasks")
    assert (schedule.first_s, schedule.cap_s, schedule.whole_s) == (
        0.25,
        15 * 60,
        OutboundSettings().callback_schedule_s,
    )
    assert "within a quarter of a second" in told
    assert "up to 15 minutes apart" in told
    assert (len(schedule.refused_gaps_s) + 1, sum(schedule.refused_gaps_s)) == (3, 35)
    assert "three attempts, the last within 35 s" in told
    bounds = {row[0]: row[1] for row in rows(ROOT / "docs" / "operations.md", "| what | bound |")}
    assert bounds["a callback"].startswith(f"{limits.attempt_s:g} s per attempt; {limits.max_answer_bytes // 1024} KB")
    assert bounds["callbacks to one host"].startswith(
        f"{limits.per_host} attempts at once per process, to {limits.max_hosts}"
    )
    claim_s = limits.attempt_s + CLAIM_MARGIN_S
    assert f"for {claim_s:g} s" in section("Leases and claims", ROOT / "docs" / "architecture.md")


@pytest.mark.parametrize(("backlog", "told_s"), [(1000, 75), (10_000, 180)])
def test_a_backlog_leaves_in_the_time_that_operations_tells(backlog: int, told_s: float) -> None:
    pace, now, through = Pace(0.0), 0.0, 0
    while through < backlog:
        now += 0.01
        may_go = pace.allowed(now)
        pace.let_through(may_go)
        through += may_go
    assert now < told_s
    assert "1,000 events in about a minute, 10,000 in under three" in (ROOT / "docs" / "operations.md").read_text()


# The wire's rules


CITATION = re.compile(r"\bwire (\d+(?:\.\d+)?(?:(?:, | and | to )\d+(?:\.\d+)?)*)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def wire_rules() -> list[str]:
    """Return the numbers of docs/wire.md in its order, sections and rules."""
    text = (ROOT / "docs" / "wire.md").read_text()
    return [section or rule for section, rule in re.findall(r"^## (\d+) |^- \*\*(\d+\.\d+)\*\* ", text, re.MULTILINE)]


def test_every_rule_of_the_wire_that_is_cited_stands_in_the_docs() -> None:
    known = set(wire_rules())
    cited = {rule for check in (*CHECKS, *TASK_CHECKS) for rule in check.rules}
    for folder in ("finch_gateway", "docs", "tests", "benchmarks", "examples"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".lua", ".md", ".toml", ".json"}:
                for numbers in CITATION.findall(file.read_text()):
                    cited.update(NUMBER.findall(numbers))
    assert cited - known == set()


def test_the_rules_of_the_wire_are_numbered_without_gaps() -> None:
    numbered = [tuple(map(int, rule.split("."))) for rule in wire_rules()]
    assert numbered[0] == (1,)
    for before, after in pairwise(numbered):
        assert after in ((before[0] + 1,), (before[0], before[1] + 1 if len(before) == 2 else 1)), after


# Links


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


# Examples


def whole(block: str) -> str:
    """Return a configuration of which a block shows a part."""
    head = '[[listings]]\nname = "example"\nmount = "/example"\n'
    if "[[listings]]" not in block:
        block = head + block if block.startswith(("[[listings.", "[listings.")) else block + head
    if "[listings.backend]" not in block:
        block += '[listings.backend]\ntype = "python"\ntarget = "agent:run"\n'
    if "[[listings.credentials]]" not in block:
        block += '[[listings.credentials]]\nkey_id = "k"\nrequest_secret = "env:FINCH_REQUEST_SECRET"\n'
    return block


EXAMPLES = [(page.name, at, block) for page in PAGES for at, block in enumerate(blocks(page, "toml"))]


@pytest.mark.parametrize(("page", "at", "block"), EXAMPLES, ids=[f"{page}-{at}" for page, at, _ in EXAMPLES])
def test_every_example_configuration_loads(page: str, at: int, block: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("")
    (tmp_path / "finch.toml").write_text(whole(block))
    variables = dict.fromkeys(re.findall(r'"env:(\w+)"', whole(block)), "A" * 43)
    assert load(tmp_path / "finch.toml", variables).listings


def test_the_offer_schema_is_the_composer_that_takes_the_probe() -> None:
    [block] = blocks(ROOT / "docs" / "finch.md", "json")
    schema = json.loads(block)
    assert schema["type"] == "object"
    assert list(schema["properties"]) == schema["required"] == ["content"]
    [text] = schema["properties"]["content"]["items"]["oneOf"]
    assert text["properties"]["type"] == {"const": "text"}
    assert text["properties"]["text"] == {"type": "string", "minLength": 1, "maxLength": 10000}


async def converse(folder: Path, agent: str, target: str, *turns: str) -> list[dict[str, Any]]:
    """Run an agent behind a real gateway and return the replies to the turns of one conversation."""
    provider = Provider(folder, backend={"type": "python", "target": target})
    provider.write(agent)
    with provider.running() as gateway:
        finch = provider.finch(gateway)
        answers = [await finch.turn(turn, conversation_id="conversation-1") for turn in turns]
    assert [answer.status for answer in answers] == [200] * len(turns)
    return [answer.json for answer in answers]


async def test_the_readme_agent_refuses_asks_and_answers(tmp_path: Path) -> None:
    [agent] = blocks(section("What an agent looks like"), "python")
    turns = ["How is the weather?", "A report, please", "last month"]
    failed, asked, answered = await converse(tmp_path / "agent", agent, "agent:run", *turns)
    assert failed["error"]["code"] == "not_my_trade"
    assert asked["questions"] == [{"id": "period", "question": "Which period should the report cover?"}]
    assert answered["message"]["content"] == [{"type": "text", "text": "Here is your report for last month."}]


PACED = """
import asyncio
from pathlib import Path
import agent

HERE = Path(__file__).parent
write_at_once = agent.write

async def write(chapter, market):
    with (HERE / "begun.txt").open("a") as begun:
        begun.write(f"{chapter} ")
    if chapter == "rivals" and not (HERE / "killed").exists():
        await asyncio.sleep(600)
    return await write_at_once(chapter, market)

agent.write = write
run = agent.run
"""
"""The README's agent, whose second chapter takes so long that its process can be killed meanwhile."""


async def test_the_readme_task_asks_survives_a_kill_and_writes_no_chapter_twice(tmp_path: Path) -> None:
    [agent] = blocks(section("Tasks"), "python")
    provider = Provider(tmp_path / "agent", store={"lease_s": 3}, backend={"type": "python", "target": "paced:run"})
    provider.write(agent)
    (provider.folder / "paced.py").write_text(PACED)
    begun = provider.folder / "begun.txt"
    async with Receiver(provider.secret).listening() as receiver:
        with provider.running() as gateway:
            finch = provider.finch(gateway)
            task_id = await finch.task("A study, please", callback=receiver.url())
            asked = await finch.until(task_id, "input_required")
            assert asked["questions"] == [{"id": "market", "question": "Which market should the study cover?"}]
            await finch.message(task_id, "Norway")
            await until(lambda: begun.exists() and begun.read_text() == "demand rivals ")
            (provider.folder / "killed").touch()
            gateway.kill()
        with provider.running() as gateway:
            ended = await provider.finch(gateway).until(task_id, "completed")
            await until(lambda: receiver.terminal(task_id) is not None)
    study = {chapter: f"The {chapter} of Norway." for chapter in ("demand", "rivals", "outlook")}
    assert ended["message"]["content"] == [{"type": "json", "json": study}]
    assert begun.read_text().split() == ["demand", "rivals", "rivals", "outlook"]
    assert receiver.terminal(task_id) == "completed"
    assert receiver.violations == []


async def until(condition: Any, limit_s: float = 45) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.02)


async def test_the_agent_object_of_the_docs_asks_from_its_thread_and_answers(tmp_path: Path) -> None:
    [agent] = blocks(ROOT / "docs" / "agents.md", "python")
    asked, answered = await converse(tmp_path / "agent", agent, "agent:Agent", "one two three", "Alice")
    assert asked["questions"] == [{"id": "name", "question": "Who is it for?"}]
    assert answered["message"]["content"] == [{"type": "json", "json": {"for": "Alice", "words": 3}}]


def test_the_job_table_holds_everything_an_agent_may_use() -> None:
    # `port` and the private fields are the engine's.
    fields = {field.name for field in dataclasses.fields(Job) if not field.name.startswith("_")} - {"port"}
    written = [name for row in rows(README, "| on `job` |") for name in names(row[0])]
    assert sorted(re.sub(r"^await |\(.*$", "", name) for name in written) == sorted(
        [*fields, "ask", "save", "progress", "folder", "dispatch"]
    )


def test_the_numbers_of_checks_that_the_readme_promises_are_right() -> None:
    told = section("Your agent as a listing, in ten minutes")
    assert f"`{len(CHECKS)} passed`" in told
    assert f"`{len(CHECKS) + len(TASK_CHECKS)} passed`" in told
    assert len(SCENES) == 12
    assert "twelve scenes" in section("Commands")


def test_what_init_writes_passes_with_tasks_and_callbacks_once_they_are_let_in(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "finch_gateway.cli", *words]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("FINCH_")}
        environ |= {"PYTHONPATH": str(ROOT), "FINCH_GATEWAY_SERVER__PORT": "0"}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("init")
    written = (tmp_path / "finch.toml").read_text()
    outbound = "".join(f"# {line}\n" for line in blocks(section("Tasks"), "toml")[1].splitlines())
    assert outbound in written
    written = written.replace(outbound, outbound.replace("# ", ""))
    assert '["conversation_turn"]' in written
    (tmp_path / "finch.toml").write_text(written.replace('["conversation_turn"]', '["conversation_turn", "task"]'))
    told = run("contract-test")
    checks = len(CHECKS) + len(TASK_CHECKS)
    # The agent is done at once: what needs a question or a running task may be not tried, but nothing fails.
    passed, not_tried = map(int, re.search(r"(\d+) passed, (\d+) not tried", told).groups())  # type: ignore[union-attr]
    assert (passed + not_tried, not_tried <= 3) == (checks, True)
    assert "by polling" not in told
