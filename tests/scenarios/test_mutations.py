"""Ten thousand hostile requests on each HTTP parser, from a fixed seed: what is answered, and what runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.finch import Connection, Finch, HttpAnswer
from support.gateway import GatewayProcess, Provider
from support.judging import Seen, fingerprint, may_run, proves, read_request
from support.mutations import Mutant, Mutations, Target

REQUESTS = 10_000
CALLERS = 16
LIMIT_BYTES = 32 * 1024
VERSION = str(uuid.UUID(int=7))
SEED = 20_000
MODES = ["conversation_turn"]

EVERY_CODE = (
    "body_invalid",
    "auth_failed",
    "not_found",
    "method_not_allowed",
    "idempotency_conflict",
    "request_too_large",
    "encoding_unsupported",
    "envelope_invalid",
    "interaction_mode_unsupported",
    "protocol_version_unsupported",
    "service_version_mismatch",
    "overloaded",
)
"""Every code of wire 2.3 that a turn can meet while nothing is out of order."""

AGENT = """
import asyncio, hashlib, json
from pathlib import Path
from finch_gateway import Job

RUNS = (Path(__file__).parent / "runs.jsonl").open("a", buffering=1)

def record(job: Job) -> None:
    digest = hashlib.sha256(json.dumps(job.dispatch, sort_keys=True).encode()).hexdigest()
    RUNS.write(json.dumps([job.invocation_id, job.turn_id, digest]) + "\\n")

async def run(job: Job) -> str:
    record(job)
    return job.text

async def slow(job: Job) -> str:
    record(job)
    await asyncio.sleep(0.5)
    return job.text
"""

MORE_LISTINGS = """
service_version_id = "{version}"
[[listings]]
name = "busy"
mount = "/finch/busy"
modes = ["conversation_turn"]
max_running_turns = 1
backend = {{ type = "python", target = "agent:slow" }}
credentials = [{{ key_id = "{busy}", request_secret = "env:REQUEST_SECRET" }}]
[[listings]]
name = "old"
mount = "/finch/old"
modes = ["conversation_turn"]
wire_protocol = "agenton_v0"
backend = {{ type = "python", target = "agent:run" }}
credentials = [{{ key_id = "{old}", request_secret = "env:OLD_SECRET" }}]
"""


@dataclass(slots=True)
class Tally:
    """What came of the requests of one process."""

    answers: Counter[str] = field(default_factory=Counter)
    by_parser: Counter[str] = field(default_factory=Counter)
    proven: set[tuple[str, str]] = field(default_factory=set)
    nonces: set[tuple[bytes, bytes]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Attack:
    """A gateway, its callers, and the judge of what it answers."""

    process: GatewayProcess
    folder: Path
    callers: dict[str, Finch]
    secrets: dict[bytes, bytes]
    tally: Tally

    def runs(self) -> list[tuple[str, str, str]]:
        lines = (self.folder / "runs.jsonl").read_text().splitlines()
        return [tuple(json.loads(line)) for line in lines]


@pytest.fixture(params=["h11", "httptools"])
def attack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attack]:
    old_secret = "an old secret ü"
    keys = {name: f"finch.agenton.{uuid.uuid4()}" for name in ("busy",)} | {"old": "eav_0123456789abcdef"}
    provider = Provider(
        tmp_path,
        server={"max_body_bytes": LIMIT_BYTES, "body_timeout_s": 0.5},
        listing={"max_running_turns": 100, "modes": MODES},
        more=MORE_LISTINGS.format(version=VERSION, **keys),
        variables={"OLD_SECRET": old_secret},
    )
    provider.write(AGENT)
    with provider.running("--http", request.param) as process:
        agent = provider.finch(process)
        callers = {
            "agent": agent,
            "busy": replace(agent, mount="/finch/busy", key_id=keys["busy"]),
            "old": replace(
                agent, mount="/finch/old", key_id=keys["old"], secret=old_secret.encode(), wire_protocol="agenton_v0"
            ),
        }
        secrets = {finch.key_id.encode(): finch.secret for finch in callers.values()}
        yield Attack(process, tmp_path, callers, secrets, Tally())


@pytest.mark.slow
async def test_hostile_requests_get_their_codes_and_nothing_runs_that_was_not_proven(
    attack: Attack, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    callers, tally = attack.callers, attack.tally
    targets = [
        Target(callers["agent"], 82, {"service_version_id": VERSION}),
        Target(callers["busy"], 10),
        Target(callers["old"], 8),
    ]
    mutations = Mutations(targets, SEED, limit_bytes=LIMIT_BYTES)
    for target in (targets[0], targets[2]) * 10:
        envelope = mutations.envelope(target)
        assert (await target.finch.invoke(envelope)).status == 200
        mutations.known.append((target.finch, envelope))
        tally.proven.add((envelope["invocation_id"], fingerprint(envelope)))

    began = time.monotonic()
    mutants = (mutations.make() for _ in range(REQUESTS))
    await asyncio.gather(*(_call(mutants, attack) for _ in range(CALLERS)))
    took_s = time.monotonic() - began

    histogram = dict(tally.answers.most_common())
    record_property("answers", histogram)
    record_property("refused_by_the_parser", dict(tally.by_parser))
    with capsys.disabled():
        print(f"\n{REQUESTS} requests in {took_s:.1f} s: {histogram}; before the door: {dict(tally.by_parser)}")

    assert tally.wrong == []
    assert {code: count for code in EVERY_CODE if (count := tally.answers[code]) < 50} == {}
    _check_runs(attack)
    await _check_health(attack)


async def _call(mutants: Iterator[Mutant], attack: Attack) -> None:
    """Be one caller: a kept-alive connection, and another for whatever must be alone on one."""
    async with contextlib.AsyncExitStack() as stack:
        kept: Connection | None = None
        for mutant in mutants:
            if mutant.alone:
                async with mutant.finch.connection() as connection:
                    answer = await _exchange(connection, mutant)
            else:
                if kept is None:
                    kept = await stack.enter_async_context(mutant.finch.connection())
                answer = await _exchange(kept, mutant)
                if answer is None or answer.header("connection") == "close":
                    await stack.aclose()
                    kept = None
            _judge(attack, mutant, answer)


async def _exchange(connection: Connection, mutant: Mutant) -> HttpAnswer | None:
    """Send a mutant as it is and return what is answered; None when the connection ends without a word."""
    method = mutant.raw.partition(b" ")[0].decode("latin-1")
    # A head that never ends is waited for: its time limit is the proxy's.
    limit_s = 1.5 if mutant.alone else 20
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(limit_s):
            connection.writer.write(mutant.raw)
            await connection.writer.drain()
            answer = await connection.read(method)
            return await connection.read(method) if answer.status == 100 else answer
    return None


def _judge(attack: Attack, mutant: Mutant, answer: HttpAnswer | None) -> None:
    """Count an answer; note what should not have been."""
    tally, seen = attack.tally, read_request(mutant.raw)
    proven = _prove(attack, seen)
    if proven and seen is not None and seen.target.partition(b"?")[0].endswith(b"/invoke"):
        envelope = may_run(seen.body, mutant.finch.wire_protocol)
        if envelope is not None:
            tally.proven.add((envelope["invocation_id"], fingerprint(envelope)))
    if answer is None:
        tally.by_parser["no answer"] += 1
        if proven:
            tally.wrong.append(f"{mutant.name}: a proven request got no answer: {mutant.raw[:200]!r}")
        return
    if answer.header("X-Agent-Signature"):
        tally.answers[answer.code if answer.body else f"empty {answer.status}"] += 1
        _judge_signed(attack, mutant, seen, answer, proven=proven)
    elif answer.header("content-type").startswith("text/plain"):
        tally.by_parser[f"{answer.status}"] += 1
    else:
        tally.answers["outside every mount"] += 1
        if answer.status != 404 or (seen is not None and _is_mounted(attack, seen.target)):
            tally.wrong.append(f"{mutant.name}: an unsigned {answer.status}: {mutant.raw[:200]!r}")


def _prove(attack: Attack, seen: Seen | None) -> bool:
    """Say whether a request is proven and its nonce is new; from then on it is not."""
    if seen is None or not proves(seen, attack.secrets, time.time()):
        return False
    nonce = (seen.values(b"x-platform-key-id")[0], seen.values(b"x-platform-nonce")[0])
    is_new = nonce not in attack.tally.nonces
    attack.tally.nonces.add(nonce)
    return is_new


def _judge_signed(attack: Attack, mutant: Mutant, seen: Seen | None, answer: HttpAnswer, *, proven: bool) -> None:
    method, _, rest = mutant.raw.partition(b" ")
    target = seen.target if seen else rest.partition(b"\r\n")[0].rpartition(b" ")[0]
    key_id = answer.header("X-Agent-Key-Id")
    signer = replace(mutant.finch, key_id=key_id, secret=attack.secrets[key_id.encode()])
    try:
        signer.verify(answer, method.decode(), target)
    except AssertionError:
        attack.tally.wrong.append(f"{mutant.name}: the answer does not verify: {mutant.raw[:200]!r}")
    if answer.status >= 500:
        attack.tally.wrong.append(f"{mutant.name}: {answer.status} {answer.body!r}: {mutant.raw!r}")
    if answer.status == 200 and not proven:
        attack.tally.wrong.append(f"{mutant.name}: accepted without proof: {mutant.raw!r}")


def _is_mounted(attack: Attack, target: bytes) -> bool:
    path = target.partition(b"?")[0]
    return any(f"{path.decode()}/".startswith(f"{finch.mount}/") for finch in attack.callers.values())


def _check_runs(attack: Attack) -> None:
    """Whatever ran was proven, fresh and well-formed, and ran once."""
    runs = attack.runs()
    assert len(runs) > 100
    assert {(invocation_id, digest) for invocation_id, _, digest in runs} <= attack.tally.proven
    assert [identity for identity, count in Counter(run[:2] for run in runs).items() if count > 1] == []


async def _check_health(attack: Attack) -> None:
    for finch in attack.callers.values():
        assert (await finch.health()).status == 200
    assert attack.process.process.poll() is None
    events = Counter(event["event"] for event in attack.process.events())
    assert not {"request.failed", "loop.trouble", "lease.renewal_failed"} & set(events)
    assert events["request.refused"] > 0
