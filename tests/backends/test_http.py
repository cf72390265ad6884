"""The http backend: what a service receives, what is accepted back, what is sent again, what is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.jobs import make_job

from finch_gateway.backend import BackendEnv
from finch_gateway.backends.http import AgentServiceFailed, HttpBackend
from finch_gateway.backends.job_document import AnswerInvalid
from finch_gateway.errors import ConfigError
from finch_gateway.job import JobFailed, NeedInput, Question, Reply

ROOT = Path(__file__).parents[2]
SETTING = "listings.writer.backend"
SCHEMA = json.loads((ROOT / "docs" / "http-backend.schema.json").read_text())


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"})


@dataclass(frozen=True, slots=True)
class Received:
    """One request as the service read it."""

    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Service:
    """An agent service of the test's own; `answer` is written for each request, None drops the connection."""

    url: str = ""
    answer: Callable[[Received], bytes | None] = lambda _: ok({"text": "done"})
    received: list[Received] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.received.append(Received(head[0].split(" ")[1], headers, body))
            writer.write(self.answer(self.received[-1]) or b"")
            await writer.drain()
        writer.close()


def ok(document: object, status: str = "200 OK", kind: str = "application/json") -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/run?key=1"
    yield made
    server.close()


def env_for(options: Mapping[str, Any], max_output_bytes: int = 1_000_000) -> BackendEnv:
    return BackendEnv("writer", SETTING, options, ROOT, 8, max_output_bytes)


@asynccontextmanager
async def backend_on(url: str, *, max_output_bytes: int = 1_000_000, **options: Any) -> AsyncIterator[HttpBackend]:
    backend = HttpBackend()
    await backend.start(env_for({"url": url, **options}, max_output_bytes))
    try:
        yield backend
    finally:
        await backend.close()


async def test_the_service_receives_the_documented_body_and_headers(service: Service) -> None:
    job = make_job(
        "héllo",
        parameters={"page": 9007199254740993},
        conversation=({"role": "user"},),
        answers={"q": "a"},
        resume={"step": 2},
        task_id="task-1",
        locale="de",
        contract_test=True,
    )
    async with backend_on(service.url, headers={"Authorization": "Bearer hunter2"}) as backend:
        await backend.run(job)
    (received,) = service.received
    assert received.target == "/run?key=1"
    assert received.headers["authorization"] == "Bearer hunter2"
    assert received.headers["connection"] == "close"
    assert 29_000 < int(received.headers["finch-timeout-ms"]) <= 30_000
    deadline = datetime.fromisoformat(received.headers["finch-deadline"])
    assert abs((deadline - job.deadline).total_seconds()) < 0.001
    document = json.loads(received.body)
    validator("job").validate(document)
    assert document == {
        "listing": "writer",
        "mode": "conversation_turn",
        "invocation_id": job.invocation_id,
        "task_id": "task-1",
        "conversation_id": "conversation-1",
        "turn_id": "turn-1",
        "text": "héllo",
        "content": [{"type": "text", "text": "héllo"}],
        "parameters": {"page": 9007199254740993},
        "conversation": [{"role": "user"}],
        "quantity": "1",
        "locale": "de",
        "attempt": 1,
        "deadline": received.headers["finch-deadline"],
        "contract_test": True,
        "output": {},
        "answers": {"q": "a"},
        "state": {"step": 2},
    }


async def test_what_there_is_none_of_is_left_out(service: Service) -> None:
    async with backend_on(service.url) as backend:
        await backend.run(make_job())
    document = json.loads(service.received[0].body)
    validator("job").validate(document)
    assert not {"task_id", "state"} & set(document)


async def test_the_idempotency_key_is_stable_for_a_turn_and_new_after_an_answer(service: Service) -> None:
    jobs = [
        make_job(),
        make_job("other text", attempt=2),
        make_job(answers={"q": "a"}),
        make_job(answers={"q": "a", "r": "b"}),
        make_job(turn_id="turn-2"),
        make_job(listing="other"),
        make_job(turn_id="Zug-\u00fc\n"),
    ]
    async with backend_on(service.url) as backend:
        for job in jobs:
            await backend.run(job)
    keys = [received.headers["idempotency-key"] for received in service.received]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(jobs) - 1


ACCEPTED: dict[str, tuple[object, Reply | NeedInput]] = {
    "text alone": ({"text": "hi"}, Reply(({"type": "text", "text": "hi"},))),
    "text with a status": ({"status": "completed", "text": ""}, Reply(({"type": "text", "text": ""},))),
    "parts": (
        {
            "status": "completed",
            "content": [{"type": "text", "text": "é"}, {"type": "json", "json": [1, None, 2**53 + 1]}],
        },
        Reply(({"type": "text", "text": "é"}, {"type": "json", "json": [1, None, 2**53 + 1]})),
    ),
    "questions": (
        {"status": "input_required", "questions": [{"id": "a", "question": "A?"}, {"id": "b", "question": "B?"}]},
        NeedInput((Question("a", "A?"), Question("b", "B?"))),
    ),
    "questions with state": (
        {"status": "input_required", "questions": [{"id": "a", "question": "A?"}], "state": {"n": [1]}},
        NeedInput((Question("a", "A?"),), {"n": [1]}),
    ),
}


@pytest.mark.parametrize(("document", "expected"), ACCEPTED.values(), ids=ACCEPTED)
async def test_documented_answers_are_accepted(service: Service, document: object, expected: object) -> None:
    validator("answer").validate(document)
    service.answer = lambda _: ok(document, kind="text/html")
    async with backend_on(service.url) as backend:
        assert await backend.run(make_job()) == expected


REFUSED: dict[str, object] = {
    "nothing": {},
    "text and content": {"text": "a", "content": [{"type": "text", "text": "a"}]},
    "no content": {"status": "completed", "content": []},
    "null": {"text": None},
    "number": {"text": 5},
    "another status": {"status": "hunter2"},
    "a status that is no text": {"status": ["hunter2"]},
    "progress": {"status": "working", "progress": {"percent": 5}},
    "another field": {"text": "a", "hunter2": 1},
    "another part": {"content": [{"type": "hunter2"}]},
    "a part with more": {"content": [{"type": "text", "text": "a", "hunter2": 1}]},
    "a part that is text": {"content": ["hunter2"]},
    "no questions": {"status": "input_required", "questions": []},
    "a question without id": {"status": "input_required", "questions": [{"question": "A?"}]},
    "an empty question": {"status": "input_required", "questions": [{"id": "a", "question": ""}]},
    "questions and text": {"status": "input_required", "questions": [{"id": "a", "question": "A?"}], "text": "a"},
    "a failure without error": {"status": "failed"},
    "a code with blanks": {"status": "failed", "error": {"code": "hunter2 hunter2"}},
    "a code with a line end": {"status": "failed", "error": {"code": "hunter2\n"}},
    "a long message": {"status": "failed", "error": {"code": "a", "message": "x" * 2001}},
    "a list": [],
}


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED)
async def test_other_answers_are_refused_by_schema_and_backend_without_repeating_them(
    service: Service, document: object
) -> None:
    service.answer = lambda _: ok(document)
    async with backend_on(service.url) as backend:
        with pytest.raises(AnswerInvalid) as caught:
            await backend.run(make_job())
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"
    # `$` in JSON Schema is the end of the text; Python's also matches before a last line end.
    if document != REFUSED["a code with a line end"]:
        assert not validator("answer").is_valid(document)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hunter2",
        b'{"text": NaN}',
        b'{"content": [{"type": "json", "json": Infinity}]}',
        b'{"text": "a", "text": "hunter2"}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b'\xef\xbb\xbf{"text": "a"}',
        b'{"text": "a"} {}',
        b'{"content": [{"type": "json", "json": ' + b"[" * 70 + b"]" * 70 + b"}]}",
        b'{"status":"input_required","questions":[{"id":"a","question":"A?"},{"id":"a","question":"B?"}]}',
    ],
)
async def test_what_is_no_strict_json_object_is_refused(service: Service, body: bytes) -> None:
    service.answer = lambda _: ok(body)
    async with backend_on(service.url) as backend:
        with pytest.raises(AnswerInvalid) as caught:
            await backend.run(make_job())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("status", ["201 Created", "204 No Content", "302 Found", "400 Bad", "429 Slow", "500 Oops"])
async def test_another_status_than_200_is_an_error(service: Service, status: str) -> None:
    service.answer = lambda _: ok(b"" if status.startswith("204") else {"text": "hunter2"}, status)
    async with backend_on(service.url) as backend:
        with pytest.raises(AgentServiceFailed, match=f"answered HTTP {status[:3]}") as caught:
            await backend.run(make_job())
    assert "hunter2" not in str(caught.value)
    assert len(service.received) == 1


async def test_a_failure_for_the_buyer_passes(service: Service) -> None:
    document = {"status": "failed", "error": {"code": "sold_out", "message": "Gone."}}
    validator("answer").validate(document)
    service.answer = lambda _: ok(document)
    async with backend_on(service.url) as backend:
        with pytest.raises(JobFailed) as caught:
            await backend.run(make_job())
    assert (caught.value.code, caught.value.message) == ("sold_out", "Gone.")


async def test_an_answer_over_the_listings_bound_is_output_too_large(service: Service) -> None:
    service.answer = lambda _: ok({"text": "x" * 2_000})
    async with backend_on(service.url, max_output_bytes=1_999) as backend:
        with pytest.raises(JobFailed) as caught:
            await backend.run(make_job())
    assert caught.value.code == "output_too_large"


async def test_a_job_that_the_service_took_and_dropped_is_not_sent_again(service: Service) -> None:
    service.answer = lambda _: None
    async with backend_on(service.url) as backend:
        with pytest.raises(AgentServiceFailed, match="dropped"):
            await backend.run(make_job())
    assert len(service.received) == 1


async def test_an_idempotent_service_gets_a_dropped_job_again_under_the_same_key(service: Service) -> None:
    service.answer = lambda _: None if len(service.received) < 3 else ok({"text": "done"})
    async with backend_on(service.url, idempotent=True) as backend:
        assert await backend.run(make_job()) == Reply.of("done")
    assert len({received.headers["idempotency-key"] for received in service.received}) == 1
    assert len(service.received) == 3


async def test_a_job_that_could_not_be_sent_waits_for_the_service_to_come_up(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with backend_on(f"http://127.0.0.1:{port}/") as backend:
        running = asyncio.create_task(backend.run(make_job()))
        await asyncio.sleep(0.15)
        server = await asyncio.start_server(service.serve, "127.0.0.1", port)
        assert await running == Reply.of("done")
        server.close()
    assert len(service.received) == 1


async def test_a_service_that_stays_away_is_an_error_within_the_jobs_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    began = asyncio.get_running_loop().time()
    async with backend_on(f"http://127.0.0.1:{port}/") as backend:
        with pytest.raises(AgentServiceFailed, match="connect"):
            await backend.run(make_job(deadline_s=0.2))
    assert asyncio.get_running_loop().time() - began < 0.5


async def test_timeout_s_bounds_a_job_and_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with backend_on(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", timeout_s=0.1) as backend:
        with pytest.raises(AgentServiceFailed, match="timeout"):
            await backend.run(make_job())
        await asyncio.wait_for(gone.wait(), 2)
    server.close()


async def test_health_probes_its_url_with_the_headers_on_the_services_own_origin_only(service: Service) -> None:
    own = service.url.replace("/run?key=1", "/health")
    other = own.replace("127.0.0.1", "localhost")
    for health_url in (own, other):
        async with backend_on(service.url, health_url=health_url, headers={"X-Key": "hunter2"}) as backend:
            assert (await backend.health()).ready
            service.answer = lambda _: ok({}, "503 Service Unavailable")
            health = await backend.health()
            assert not health.ready
            assert "503" in health.detail
            service.answer = lambda _: ok({})
    assert [received.headers.get("x-key") for received in service.received] == ["hunter2", "hunter2", None, None]
    assert {received.target for received in service.received} == {"/health"}


async def test_health_without_a_url_is_ready_and_a_dead_one_is_not() -> None:
    async with backend_on("http://127.0.0.1:1/") as backend:
        assert (await backend.health()).ready
    async with backend_on("http://127.0.0.1:1/", health_url="http://127.0.0.1:1/?hunter2") as backend:
        health = await backend.health()
    assert not health.ready
    assert "hunter2" not in health.detail


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({}, "url"),
        ({"url": 5}, "url"),
        ({"url": "ftp://hunter2/"}, "url"),
        ({"url": "http://u:hunter2@h/"}, "url"),
        ({"url": "http://h/é?hunter2"}, "url"),
        ({"health_url": "hunter2"}, "health_url"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"timeout_s": math.nan}, "timeout_s"),
        ({"timeout_s": "hunter2"}, "timeout_s"),
        ({"idempotent": "hunter2"}, "idempotent"),
        ({"headers": ["hunter2"]}, "headers"),
        ({"headers": {"X Key": "hunter2"}}, "headers"),
        ({"headers": {"X-Key": "hunter2\n"}}, "headers.X-Key"),
        ({"headers": {"X-Key": ""}}, "headers.X-Key"),
        ({"headers": {"X-Key": 5}}, "headers.X-Key"),
        ({"headers": {"Finch-Deadline": "hunter2"}}, "headers.Finch-Deadline"),
        ({"headers": {"HOST": "hunter2"}}, "headers.HOST"),
        ({"colour": 1}, "colour"),
    ],
)
async def test_a_wrong_option_is_one_line_that_names_it_without_its_value(
    options: dict[str, object], setting: str
) -> None:
    given = options if "url" in options or not options else {"url": "http://h/", **options}
    with pytest.raises(ConfigError) as caught:
        await HttpBackend().start(env_for(given))
    assert caught.value.problems[0].setting == f"{SETTING}.{setting}"
    assert "hunter2" not in str(caught.value)


async def test_a_mode_it_does_not_declare_is_refused_before_anything_is_sent(service: Service) -> None:
    async with backend_on(service.url) as backend:
        with pytest.raises(AgentServiceFailed, match="does not serve this mode"):
            await backend.run(make_job(mode="direct"))
    assert service.received == []


async def test_nothing_of_a_job_or_its_answer_is_logged(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"{service.url}&token=hunter2"
    async with backend_on(url, headers={"X-Key": "hunter2"}) as backend:
        service.answer = lambda _: ok({"text": "hunter2"})
        await backend.run(make_job("hunter2"))
        service.answer = lambda _: ok({"hunter2": "hunter2"}, "500 hunter2")
        with pytest.raises(AgentServiceFailed):
            await backend.run(make_job("hunter2"))
    assert "hunter2" not in caplog.text


async def test_the_example_service_answers_asks_and_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program = subprocess.Popen([sys.executable, ROOT / "examples" / "http_agent" / "service.py", str(port)])
    try:
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(20), backend_on(f"{url}/run", health_url=f"{url}/health") as backend:
            while not (await backend.health()).ready:
                await asyncio.sleep(0.05)
            assert await backend.run(make_job("hello")) == Reply.of("You said: hello")
            asked = await backend.run(make_job("a report"))
            assert isinstance(asked, NeedInput)
            answered = make_job("a report", answers={"period": "May"}, resume=asked.state)
            assert await backend.run(answered) == Reply.of("Here is your report for May.")
            with pytest.raises(JobFailed, match="no_such_report"):
                await backend.run(make_job("fail"))
    finally:
        program.terminate()
        program.wait(10)
