"""The python backend: targets, threads that do not come back, questions, and what an agent raises."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from textwrap import dedent

import pytest
from support.jobs import RecordingPort, make_job

from finch_gateway.backend import BackendEnv, Health
from finch_gateway.backends.python import AgentFailed, PythonBackend
from finch_gateway.errors import ConfigError
from finch_gateway.job import JobFailed, NeedInput, Question, Reply

Start = Callable[..., Awaitable[PythonBackend]]
EXAMPLE = Path(__file__).parents[2] / "examples" / "python_agent"
SETTING = "listings.writer.backend"


def env_for(folder: Path, target: object, max_jobs: int = 8) -> BackendEnv:
    return BackendEnv("writer", SETTING, {"target": target}, folder, max_jobs, 1_000_000)


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Start a backend on an agent's source; its stuck threads are let go when the test ends."""
    monkeypatch.syspath_prepend(tmp_path)
    backends: list[PythonBackend] = []
    release = tmp_path / "release"
    head = f"""
        import asyncio, time
        from pathlib import Path
        from finch_gateway import Job, JobFailed, Reply
        def stick():
            while not Path({str(release)!r}).exists():
                time.sleep(0.005)
    """

    async def make(source: str, attribute: str = "run", max_jobs: int = 8) -> PythonBackend:
        name = f"agent_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(dedent(head) + dedent(source))
        backend = PythonBackend()
        await backend.start(env_for(tmp_path, f"{name}:{attribute}", max_jobs))
        backends.append(backend)
        return backend

    yield make
    release.touch()
    for backend in backends:
        await backend.close()
    await until(lambda: not any(thread.name.startswith("agent-writer") for thread in threading.enumerate()))


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The file whose appearance lets stuck agent code return."""
    return tmp_path / "release"


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)


async def until_healthy(backend: PythonBackend, ready: bool) -> None:
    deadline = time.monotonic() + 10
    while (await backend.health()).ready is not ready:
        assert time.monotonic() < deadline, f"health did not become {ready}"
        await asyncio.sleep(0.02)


def texts(reply: Reply | NeedInput) -> list[object]:
    assert isinstance(reply, Reply)
    return [part["text"] for part in reply.content]


TARGETS = {
    "async function": ("async def run(job): return job.text", "run"),
    "plain function": ("def run(job): return job.text", "run"),
    "object": (
        """
        class Agent:
            async def run(self, job): return job.text
        agent = Agent()
        """,
        "agent",
    ),
    "class": (
        """
        class Agent:
            def run(self, job): return job.text
        """,
        "Agent",
    ),
    "callable object": (
        """
        class Agent:
            async def __call__(self, job): return job.text
        agent = Agent()
        """,
        "agent",
    ),
    "plain wrapper around an async function": (
        """
        async def inner(job): return job.text
        def run(job): return inner(job)
        """,
        "run",
    ),
    "nested attribute": (
        """
        class agents:
            async def first(job): return job.text
        """,
        "agents.first",
    ),
}


@pytest.mark.parametrize(("source", "attribute"), TARGETS.values(), ids=TARGETS)
async def test_every_form_of_target_runs_off_the_gateways_thread(start: Start, source: str, attribute: str) -> None:
    backend = await start(source, attribute)
    assert texts(await backend.run(make_job("héllo"))) == ["héllo"]
    assert (await backend.health()).ready


@pytest.mark.parametrize(
    ("source", "attribute", "said"),
    [
        ("run = 5", "run", "it is a int"),
        ("", "run", "has no 'run'"),
        ("def run(): pass", "run", "exactly one argument, the job"),
        ("async def run(job, other): pass", "run", "exactly one argument, the job"),
        ("async def run(job): yield 'part'", "run", "generator"),
        ("class Agent: pass", "Agent", "no method run"),
        (
            "class Agent:\n    def __init__(self): raise OSError('hunter2')\n    def run(self, job): pass",
            "Agent",
            "OSError",
        ),
        ("class Agent:\n    def __init__(self, a): pass\n    def run(self, job): pass", "Agent", "TypeError"),
        ("class Agent:\n    run = 5\nagent = Agent()", "agent", "its run is a int"),
        ("class Agent:\n    def run(self, job): pass\n    def health(self, a): pass", "Agent", "its health must be"),
        ("raise ValueError('hunter2')", "run", "ValueError (agent_"),
        ("import sys; sys.exit('hunter2')", "run", "SystemExit (agent_"),
        ("def run(job: pass", "run", "SyntaxError (agent_"),
        ("import nowhere_at_all", "run", "needs the module 'nowhere_at_all'"),
    ],
)
async def test_an_unusable_target_is_one_line_without_the_agents_text(
    start: Start, source: str, attribute: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        await start(source, attribute)
    problem = caught.value.problems[0]
    assert problem.setting == f"{SETTING}.target"
    assert said in problem.message
    assert "hunter2" not in problem.message
    assert "\n" not in problem.message


@pytest.mark.parametrize("target", [None, 5, "", "module", "module:", ":run", "a:b:c", "..up:run", "a b:run"])
async def test_a_target_must_be_module_and_attribute(tmp_path: Path, target: object) -> None:
    with pytest.raises(ConfigError, match=r'must be "module:attribute"'):
        await PythonBackend().start(env_for(tmp_path, target))


async def test_a_missing_module_and_an_unknown_option_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no module 'no_such_agent'"):
        await PythonBackend().start(env_for(tmp_path, "no_such_agent:run"))
    env = BackendEnv("writer", SETTING, {"target": "a:b", "colour": 1}, tmp_path, 1, 1)
    with pytest.raises(ConfigError, match=r"backend\.colour"):
        await PythonBackend().start(env)


async def test_an_async_agent_that_blocks_its_loop_stops_no_other_job(start: Start, release: Path) -> None:
    backend = await start("""
        async def run(job):
            if job.text == "stick":
                stick()
            return job.text
    """)
    stuck = asyncio.create_task(backend.run(make_job("stick")))
    await asyncio.sleep(0.05)
    # This one was handed to the blocked loop and moves to a fresh one.
    began = time.monotonic()
    assert texts(await backend.run(make_job("moved"))) == ["moved"]
    assert time.monotonic() - began < 2.5
    began = time.monotonic()
    assert texts(await backend.run(make_job("next"))) == ["next"]
    assert time.monotonic() - began < 0.5
    assert not (await backend.health()).ready
    assert not stuck.done()
    release.touch()
    assert texts(await stuck) == ["stick"]
    await until_healthy(backend, True)


@pytest.mark.parametrize("form", ["async def", "def"])
async def test_cancelling_returns_at_once_and_a_late_result_changes_nothing(
    start: Start, release: Path, form: str
) -> None:
    backend = await start(f"""
        {form} run(job):
            if job.text != "stick":
                return job.text
            job.folder.joinpath("begun").touch()
            stick()
            job.state = "late"
            job.folder.joinpath("late").touch()
            return "late"
    """)
    job = make_job("stick")
    running = asyncio.create_task(backend.run(job))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - began < 0.1
    folder = job._folder
    assert folder is not None
    assert (folder / "begun").exists()
    job.discard_folder()
    await until_healthy(backend, False)
    assert texts(await backend.run(make_job("other"))) == ["other"]
    release.touch()
    await until_healthy(backend, True)
    assert job.state is None
    assert job._folder is None
    await until(lambda: not folder.exists())


@pytest.mark.parametrize("form", ["async def", "def"])
async def test_stuck_threads_count_as_running_jobs(start: Start, release: Path, form: str) -> None:
    backend = await start(
        f"{form} run(job):\n    Path(job.text).touch()\n    stick()\n    return 'done'",
        max_jobs=2,
    )
    for number in range(2):
        mark = release.with_name(f"begun-{number}")
        job = asyncio.create_task(backend.run(make_job(str(mark))))
        await until(mark.exists)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
    await until_healthy(backend, False)
    with pytest.raises(JobFailed) as caught:
        await backend.run(make_job())
    assert caught.value.code == "agent_overloaded"
    release.touch()
    await until_healthy(backend, True)
    assert texts(await backend.run(make_job(str(release)))) == ["done"]


async def test_an_async_agent_that_ignores_its_cancellation_turns_health_bad_until_it_ends(
    start: Start, release: Path
) -> None:
    backend = await start("""
        async def run(job):
            while not Path(job.parameters["release"]).exists():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass
    """)
    running = asyncio.create_task(backend.run(make_job(parameters={"release": str(release)})))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_healthy(backend, False)
    release.touch()
    await until_healthy(backend, True)


async def test_an_async_agent_learns_of_its_cancellation(start: Start, tmp_path: Path) -> None:
    backend = await start("""
        async def run(job):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                Path(job.text).touch()
                raise
    """)
    mark = tmp_path / "cancelled"
    running = asyncio.create_task(backend.run(make_job(str(mark))))
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until(mark.exists)
    assert (await backend.health()).ready


async def test_a_plain_function_learns_of_its_cancellation_at_its_next_call(start: Start, release: Path) -> None:
    backend = await start("""
        def run(job):
            stick()
            asyncio.run(job.progress(50))
            Path(job.text).touch()
    """)
    port = RecordingPort()
    mark = release.with_name("went-on")
    running = asyncio.create_task(backend.run(make_job(str(mark), port=port)))
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until_healthy(backend, False)
    release.touch()
    await until_healthy(backend, True)
    assert port.reported == []
    assert not mark.exists()


async def test_closing_does_not_wait_for_stuck_threads(start: Start) -> None:
    backend = await start("async def run(job): stick()")
    running = asyncio.create_task(backend.run(make_job()))
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    began = time.monotonic()
    await backend.close()
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("form", ["async def", "def"])
async def test_progress_state_and_folder_reach_the_engines_job(start: Start, form: str) -> None:
    call = "await " if form == "async def" else "asyncio.run"
    backend = await start(f"""
        {form} run(job):
            {call}(job.progress(20, "Reading"))
            {call}(job.save({{"page": 3}}))
            (job.folder / "draft").write_text("x")
            return str(job.folder)
    """)
    port = RecordingPort()
    job = make_job(port=port)
    (folder,) = texts(await backend.run(job))
    assert port.reported == [(20, "Reading")]
    assert port.saved == [{"page": 3}]
    assert job.state == {"page": 3}
    assert str(job.folder) == folder
    job.discard_folder()
    assert not Path(str(folder)).exists()


ASKING = {
    "plainly": """
        async def run(job):
            return "got " + await job.ask("q", "Which?")
    """,
    "in a task group": """
        async def run(job):
            async with asyncio.TaskGroup() as outer:
                async def inner():
                    async with asyncio.TaskGroup() as group:
                        group.create_task(asyncio.sleep(0 if job.answers else 60))
                        task = group.create_task(job.ask("q", "Which?"))
                    return await task
                task = outer.create_task(inner())
            return "got " + task.result()
    """,
    "swallowed": """
        async def run(job):
            try:
                return "got " + await job.ask("q", "Which?")
            except BaseException:
                return "nothing"
    """,
    "from a plain function": """
        def run(job):
            return "got " + asyncio.run(job.ask("q", "Which?"))
    """,
}


@pytest.mark.parametrize("source", ASKING.values(), ids=ASKING)
async def test_a_question_leaves_the_agent_and_its_answer_is_returned_at_once(start: Start, source: str) -> None:
    backend = await start(source)
    assert await backend.run(make_job()) == NeedInput((Question("q", "Which?"),))
    assert texts(await backend.run(make_job(answers={"q": "this"}))) == ["got this"]


async def test_questions_asked_together_are_asked_together(start: Start) -> None:
    backend = await start("""
        async def run(job):
            async with asyncio.TaskGroup() as group:
                group.create_task(job.ask("a", "A?"))
                group.create_task(job.ask("b", "B?"))
    """)
    assert await backend.run(make_job()) == NeedInput((Question("a", "A?"), Question("b", "B?")))


RAISING = {
    "an error": ("raise ValueError('hunter2')", "ValueError"),
    "an error that cannot be shown": ("raise Mute()", "Mute"),
    "SystemExit": ("raise SystemExit('hunter2')", "SystemExit"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt('hunter2')", "KeyboardInterrupt"),
    "GeneratorExit": ("raise GeneratorExit('hunter2')", "GeneratorExit"),
    "its own cancellation": ("raise asyncio.CancelledError('hunter2')", "CancelledError"),
    "a question's exception without a question": ("raise Asked()", "Asked"),
    "a group of errors": ("raise ExceptionGroup('hunter2', [OSError('hunter2')])", "OSError"),
    "a question beside an error": (
        "job._asked['q'] = 1; raise BaseExceptionGroup('hunter2', [Asked(), KeyError('hunter2')])",
        "KeyError",
    ),
    "a failure beside an error": (
        "raise ExceptionGroup('hunter2', [KeyError('hunter2'), JobFailed('sold_out')])",
        "KeyError",
    ),
}


@pytest.mark.parametrize("form", ["async def", "def"])
@pytest.mark.parametrize(("line", "named"), RAISING.values(), ids=RAISING)
async def test_whatever_an_agent_raises_is_one_error_without_its_text(
    start: Start, caplog: pytest.LogCaptureFixture, form: str, line: str, named: str
) -> None:
    caplog.set_level(logging.DEBUG)
    backend = await start(f"""
        from finch_gateway.job import Asked
        class Mute(Exception):
            def __str__(self): raise RuntimeError('hunter2')
            __repr__ = __str__
        {form} run(job):
            if job.text == "fine":
                return "fine"
            {line}
    """)
    with pytest.raises(AgentFailed) as caught:
        await backend.run(make_job())
    assert str(caught.value) == f"the agent raised {named}"
    assert texts(await backend.run(make_job("fine"))) == ["fine"]
    assert (await backend.health()).ready
    assert "hunter2" not in caplog.text


async def test_stop_iteration_from_a_plain_function_is_an_error_like_any_other(start: Start) -> None:
    backend = await start("def run(job): raise StopIteration('hunter2')")
    with pytest.raises(AgentFailed, match="raised StopIteration"):
        await backend.run(make_job())


@pytest.mark.parametrize(
    "line", ["raise JobFailed('sold_out', 'Gone.')", "raise ExceptionGroup('', [JobFailed('sold_out', 'Gone.')])"]
)
async def test_a_failure_for_the_buyer_passes_without_what_led_to_it(start: Start, line: str) -> None:
    backend = await start(f"""
        async def run(job):
            try:
                raise ValueError("hunter2")
            except ValueError:
                {line}
    """)
    with pytest.raises(JobFailed) as caught:
        await backend.run(make_job())
    assert (caught.value.code, caught.value.message) == ("sold_out", "Gone.")
    assert caught.value.__context__ is None


@pytest.mark.parametrize("value", ["None", "5", "b'x'", "[]", "[5]", "[{'type': 'image'}]", "object()"])
async def test_what_is_no_reply_is_an_error_that_says_what_is(start: Start, value: str) -> None:
    backend = await start(f"async def run(job): return {value}")
    with pytest.raises(AgentFailed, match="a reply is str, dict, a list of parts or Reply"):
        await backend.run(make_job())


async def test_a_background_task_that_raises_is_named_without_its_text_and_ends_no_loop(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    backend = await start("""
        import gc
        async def bad(error):
            raise error
        async def run(job):
            asyncio.create_task(bad(ValueError("hunter2")))
            asyncio.create_task(bad(SystemExit("hunter2")))
            await asyncio.sleep(0.05)
            gc.collect()
            return "fine"
    """)
    assert texts(await backend.run(make_job())) == ["fine"]
    assert texts(await backend.run(make_job())) == ["fine"]
    assert "hunter2" not in caplog.text
    assert "ValueError" in caplog.text


@pytest.mark.parametrize(
    ("body", "ready"),
    [
        ("return True", True),
        ("return None", True),
        ("return False", False),
        ("return Health(False, 'no model')", False),
        ("return 'yes'", False),
        ("raise OSError('hunter2')", False),
    ],
)
@pytest.mark.parametrize("form", ["async def", "def"])
async def test_the_agents_own_health_decides(start: Start, form: str, body: str, ready: bool) -> None:
    backend = await start(
        f"""
        from finch_gateway.backend import Health
        class Agent:
            def run(self, job): return "x"
            {form} health(self): {body}
        """,
        "Agent",
    )
    health = await backend.health()
    assert health.ready is ready
    assert "hunter2" not in health.detail


async def test_a_health_that_hangs_is_asked_once_and_takes_no_jobs_place(start: Start, release: Path) -> None:
    backend = await start(
        """
        class Agent:
            def run(self, job): return "x"
            def health(self): stick()
        """,
        "Agent",
        max_jobs=1,
    )
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(backend.health(), 0.1)
    began = time.monotonic()
    assert await backend.health() == Health(False, "the agent's health has not come back since it was last asked")
    assert time.monotonic() - began < 0.5
    assert texts(await backend.run(make_job())) == ["x"]
    release.touch()
    await until_healthy(backend, True)


async def test_a_mode_it_does_not_declare_is_refused(start: Start) -> None:
    backend = await start("async def run(job): return 'x'")
    with pytest.raises(AgentFailed, match="does not serve this mode"):
        await backend.run(make_job(mode="direct"))


async def test_the_example_agent_answers_asks_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.delitem(__import__("sys").modules, "agent", raising=False)
    backend = PythonBackend()
    await backend.start(env_for(EXAMPLE, "agent:run"))
    try:
        assert texts(await backend.run(make_job("hello"))) == ["You said: hello"]
        asked = await backend.run(make_job("a report"))
        assert isinstance(asked, NeedInput)
        answered = make_job("a report", answers={asked.questions[0].id: "May"})
        assert texts(await backend.run(answered)) == ["Here is your report for May."]
        with pytest.raises(JobFailed, match="no_such_report"):
            await backend.run(make_job("fail"))
    finally:
        await backend.close()
