"""What every backend promises, whatever stands behind it; a new type adds one `Case` to `CASES`.

Each case brings a real agent that obeys the job's text:

    echo …       answers with the rest of the text        big N      answers with N letters
    ask          asks "colour" and keeps {"seen": "ask"}, then answers "<colour>, seen <seen>"
    sold out     fails as `sold_out`, "Gone."             crash      fails with a text nobody may see
    hang PATH    never answers; when it is cancelled, makes the file PATH + ".cancelled"
    strange      does what its type does not declare
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import uvicorn
from support.jobs import RecordingPort, make_job

from finch_gateway.backend import Backend, BackendEnv, Supports
from finch_gateway.backends.http import HttpBackend
from finch_gateway.backends.python import PythonBackend
from finch_gateway.job import JobFailed, NeedInput, Question, Reply

SECRET = "hunter2-text-of-the-agent"
ROOT = Path(__file__).parents[2]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One backend type: `agent` runs its agent in a folder and gives the options that reach it.

    The agent is unhealthy while the folder holds a file `unhealthy`.
    """

    name: str
    backend: type[Backend]
    supports: Supports
    agent: Callable[[Path], AbstractContextManager[Mapping[str, Any]]]


PYTHON_AGENT = f"""
    import asyncio
    from pathlib import Path
    from finch_gateway import JobFailed

    class Agent:
        async def run(self, job):
            word, _, rest = job.text.partition(" ")
            if word == "echo":
                await asyncio.sleep(len(rest) % 7 / 100)
                return rest
            if word == "big":
                return "x" * int(rest)
            if word == "ask":
                await job.save({{"seen": "ask"}})
                colour = await job.ask("colour", "Which colour?")
                return f"{{colour}}, seen {{(job.state or {{}}).get('seen')}}"
            if word == "sold":
                raise JobFailed("sold_out", "Gone.")
            if word == "hang":
                try:
                    await asyncio.sleep(60)
                finally:
                    Path(rest + ".cancelled").touch()
            raise RuntimeError("{SECRET}")

        def health(self):
            return not Path(__file__).with_name("unhealthy").exists()

    agent = Agent()
"""


@contextmanager
def python_agent(folder: Path) -> Iterator[Mapping[str, Any]]:
    name = f"agent_{uuid.uuid4().hex}"
    (folder / f"{name}.py").write_text(dedent(PYTHON_AGENT))
    sys.path.insert(0, str(folder))
    try:
        yield {"target": f"{name}:agent"}
    finally:
        sys.path.remove(str(folder))


@contextmanager
def http_agent(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Serve an agent on a free port, on a thread of its own."""

    async def service(scope: Message, receive: Callable[[], Any], send: Callable[[Message], Any]) -> None:
        if scope["path"] == "/health":
            await respond(send, 503 if (folder / "unhealthy").exists() else 200, b"")
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await respond(send, *await http_answer(json.loads(body), receive))

    server = uvicorn.Server(uvicorn.Config(service, port=0, lifespan="off", log_config=None, ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield {"url": f"{url}/run", "health_url": f"{url}/health"}
    finally:
        server.should_exit = True
        thread.join(10)


async def http_answer(job: Message, receive: Callable[[], Any]) -> tuple[int, bytes]:
    word, _, rest = job["text"].partition(" ")
    document: dict[str, Any] = {"status": "working", "progress": {"percent": 50}}
    if word == "echo":
        await asyncio.sleep(len(rest) % 7 / 100)
        document = {"text": rest}
    elif word == "big":
        document = {"text": "x" * int(rest)}
    elif word == "ask" and "colour" not in job["answers"]:
        questions = [{"id": "colour", "question": "Which colour?"}]
        document = {"status": "input_required", "questions": questions, "state": {"seen": "ask"}}
    elif word == "ask":
        document = {"text": f"{job['answers']['colour']}, seen {job['state']['seen']}"}
    elif word == "sold":
        document = {"status": "failed", "error": {"code": "sold_out", "message": "Gone."}}
    elif word == "crash":
        return 500, SECRET.encode()
    elif word == "hang":
        assert (await receive())["type"] == "http.disconnect"
        Path(rest + ".cancelled").touch()
    return 200, json.dumps(document).encode()


async def respond(send: Callable[[Message], Any], status: int, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


CASES = [
    Case(
        "python",
        PythonBackend,
        Supports(modes=frozenset({"conversation_turn", "task"}), questions=True, progress=True, cancel=True),
        python_agent,
    ),
    Case(
        "http",
        HttpBackend,
        Supports(modes=frozenset({"conversation_turn", "task"}), questions=True, cancel=True),
        http_agent,
    ),
]


@dataclass(frozen=True, slots=True)
class Running:
    """A started backend, with what another process needs to start it too."""

    backend: Backend
    options: Mapping[str, Any]
    folder: Path
    supports: Supports


@pytest.fixture(params=CASES, ids=lambda case: case.name)
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    case: Case = request.param
    with case.agent(tmp_path) as options:
        backend = case.backend()
        await backend.start(env_for(options, tmp_path))
        try:
            yield Running(backend, options, tmp_path, case.supports)
        finally:
            await backend.close()


def env_for(options: Mapping[str, Any], folder: Path) -> BackendEnv:
    return BackendEnv("writer", "listings.writer.backend", options, folder, 64, 4 * 1024 * 1024)


def text_of(reply: Reply | NeedInput) -> str:
    assert isinstance(reply, Reply)
    (part,) = reply.content
    return str(part["text"])


async def test_declares_what_it_can_do(running: Running) -> None:
    assert running.backend.supports == running.supports


async def test_completes_a_turn(running: Running) -> None:
    assert text_of(await running.backend.run(make_job("echo hello"))) == "hello"


async def test_carries_every_kind_of_text_unchanged(running: Running) -> None:
    text = 'é é 日本語 🏳️‍🌈 \u2028 \u202e \x00\x7f "\\/ \r\n\t </script> ${x} %s'
    assert text_of(await running.backend.run(make_job(f"echo {text}"))) == text


async def test_carries_an_answer_of_a_megabyte(running: Running) -> None:
    assert len(text_of(await running.backend.run(make_job(f"big {1024 * 1024}")))) == 1024 * 1024


async def test_asks_and_resumes_in_another_process_from_what_was_stored(running: Running) -> None:
    if not running.supports.questions:
        with pytest.raises(Exception):  # noqa: B017 - each type has its own error, and all mean `agent_error`
            await running.backend.run(make_job("ask"))
        return
    port = RecordingPort()
    need = await running.backend.run(make_job("ask", port=port))
    assert isinstance(need, NeedInput)
    assert need.questions == (Question("colour", "Which colour?"),)
    stored = {
        "backend": f"{type(running.backend).__module__}:{type(running.backend).__qualname__}",
        "options": running.options,
        "folder": str(running.folder),
        "text": "ask",
        "answers": {"colour": "bleu\u2028é"},
        "resume": need.state,
        "state": port.saved[-1] if port.saved else None,
    }
    (running.folder / "stored.json").write_text(json.dumps(stored))
    program = [sys.executable, __file__, str(running.folder / "stored.json")]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    finished = await asyncio.create_subprocess_exec(*program, stdout=subprocess.PIPE, env=environment)
    output, _ = await asyncio.wait_for(finished.communicate(), 30)
    assert json.loads(output) == "bleu\u2028é, seen ask"


async def test_a_failure_for_the_buyer_passes_through(running: Running) -> None:
    with pytest.raises(JobFailed) as caught:
        await running.backend.run(make_job("sold out"))
    assert (caught.value.code, caught.value.message) == ("sold_out", "Gone.")


async def test_any_other_failure_is_an_error_without_its_text(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(Exception) as caught:
        await running.backend.run(make_job("crash"))
    assert not isinstance(caught.value, JobFailed)
    assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text
    assert text_of(await running.backend.run(make_job("echo again"))) == "again"


async def test_a_cancelled_job_is_left_at_once_and_its_agent_learns_of_it(running: Running, tmp_path: Path) -> None:
    mark = tmp_path / "hanging"
    work = asyncio.create_task(running.backend.run(make_job(f"hang {mark}")))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert time.monotonic() - began < 0.5
    while running.supports.cancel and not Path(f"{mark}.cancelled").exists():
        assert time.monotonic() - began < 3
        await asyncio.sleep(0.01)
    assert text_of(await running.backend.run(make_job("echo after"))) == "after"


async def test_health_follows_the_agent(running: Running) -> None:
    assert (await running.backend.health()).ready
    (running.folder / "unhealthy").touch()
    health = await running.backend.health()
    assert not health.ready
    assert health.detail
    (running.folder / "unhealthy").unlink()
    assert (await running.backend.health()).ready


async def test_fifty_jobs_at_once_each_get_their_own_answer(running: Running) -> None:
    texts = [f"{number} {'x' * number}" for number in range(50)]
    replies = await asyncio.gather(*(running.backend.run(make_job(f"echo {text}")) for text in texts))
    assert [text_of(reply) for reply in replies] == texts


async def test_a_mode_that_is_not_declared_is_refused(running: Running) -> None:
    for mode in {"task", "generation", "direct"} - running.supports.modes:
        with pytest.raises(Exception) as caught:
            await running.backend.run(make_job("echo hello", mode=mode))
        assert not isinstance(caught.value, JobFailed | AttributeError | TypeError)


async def test_an_agent_that_does_more_than_is_declared_is_refused(running: Running) -> None:
    port = RecordingPort()
    with pytest.raises(Exception) as caught:
        await running.backend.run(make_job("strange", port=port))
    assert not isinstance(caught.value, JobFailed)
    assert port.reported == []


async def test_closing_twice_and_closing_what_never_started_is_quiet(running: Running) -> None:
    await running.backend.close()
    await type(running.backend)().close()


async def _resume(stored: Mapping[str, Any]) -> str:
    """Run a stored job in this process, which knows nothing but what was stored."""
    module, _, name = stored["backend"].partition(":")
    sys.path.insert(0, stored["folder"])
    backend = getattr(__import__(module, fromlist=[name]), name)()
    await backend.start(env_for(stored["options"], Path(stored["folder"])))
    kept = {name: stored[name] for name in ("answers", "resume", "state")}
    reply = await backend.run(make_job(stored["text"], turn_id="turn-2", **kept))
    await backend.close()
    return text_of(reply)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_resume(json.loads(Path(sys.argv[1]).read_text())))))
