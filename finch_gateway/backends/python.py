"""The `python` backend: an agent that is a Python function or object, run in this process but off its event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ..backend import Backend, BackendEnv, Health, Supports
from ..job import Asked, Job, JobFailed, JobPort, NeedInput, Question, Reply
from .agent_loop import Outcome
from .target import Agent, Entry, check_target, load_agent
from .threads import AgentThreads


class AgentFailed(Exception):
    """The agent raised what the buyer may not read, or returned what is no reply; holds none of its text."""


class PythonBackend(Backend):
    """Runs `target`: an async function, a plain function, or an object with `run` and optionally `health`.

    Async agents share an event loop in a thread of its own; each call of a plain function has its own thread.
    A plain function reaches the job's methods by `asyncio.run(job.ask(…))`; once its job was cancelled, they
    raise `CancelledError`. With `max_jobs` jobs in their threads, stuck ones included, a new one fails as
    `agent_overloaded`.
    """

    supports = Supports(modes=frozenset({"conversation_turn", "task"}), questions=True, progress=True, cancel=True)

    def __init__(self) -> None:
        self._agent: Agent | None = None
        self._threads: AgentThreads | None = None
        self._is_probing = False

    def check(self, env: BackendEnv) -> None:
        self.refuse_unknown_options(env, frozenset({"target"}))
        check_target(env)

    async def start(self, env: BackendEnv) -> None:
        self.check(env)
        self._agent = load_agent(env)
        self._threads = AgentThreads(env.listing, env.max_jobs)

    async def run(self, job: Job) -> Reply | NeedInput:
        agent, threads = self._started()
        if job.mode not in self.supports.modes:
            raise AgentFailed("the python backend does not serve this mode")
        if not threads.has_room:
            raise JobFailed("agent_overloaded", "The agent is at its limit; try again later.")
        port = _GatewayPort(job.port)
        # A job of its own, so that an agent that was left behind changes nothing the engine still looks at.
        own = replace(job, port=port, _asked={})
        try:
            outcome = await _invoke(threads, agent.run, (own,), partial(_tidy, own, port))
        finally:
            port.close()
            job.state, job._folder = own.state, own._folder
            job._asked.update(own._asked)
        return _read(outcome, own.open_questions)

    async def health(self) -> Health:
        agent, threads = self._started()
        if threads.stuck:
            return Health(False, f"{threads.stuck} of the agent's threads do not come back")
        if agent.health is None:
            return Health(True)
        if self._is_probing:
            return Health(False, "the agent's health has not come back since it was last asked")
        self._is_probing = True
        return _read_health(await _invoke(threads, agent.health, (), self._probed, counts=False))

    async def close(self) -> None:
        if self._threads is not None:
            await self._threads.close()

    def _started(self) -> tuple[Agent, AgentThreads]:
        if self._agent is None or self._threads is None:
            raise RuntimeError("the backend was not started")
        return self._agent, self._threads

    def _probed(self) -> None:
        self._is_probing = False


class _GatewayPort:
    """Carries a job's calls from the agent's thread to the engine's port on the gateway's loop."""

    def __init__(self, port: JobPort) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self.is_open = True

    async def progress(self, percent: int | None, stage: str | None) -> None:
        await self._there(lambda: self._port.progress(percent, stage))

    async def save(self, state: Any) -> None:
        await self._there(lambda: self._port.save(state))

    def close(self) -> None:
        """Let nothing through any more: who calls from now on works for a job that has ended."""
        self.is_open = False

    async def _there(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self.is_open:
            raise asyncio.CancelledError
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._deliver(call), self._loop))

    async def _deliver(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self.is_open:
            raise asyncio.CancelledError
        await call()


async def _invoke(
    threads: AgentThreads,
    entry: Entry,
    arguments: tuple[object, ...],
    on_end: Callable[[], None],
    *,
    counts: bool = True,
) -> Outcome:
    if entry.is_async:
        begin: Callable[[], Any] = partial(entry.function, *arguments)
        return await threads.run(begin, counts=counts, on_end=on_end)
    outcome = await threads.call(partial(entry.function, *arguments), counts=counts, on_end=on_end)
    value = outcome.value
    if inspect.isawaitable(value):  # a plain wrapper around an async agent
        return await threads.run(lambda: value, counts=counts, on_end=on_end)
    return outcome


def _tidy(own: Job, port: _GatewayPort) -> None:
    """Remove what an agent that was left behind still put into its folder."""
    if not port.is_open:
        own.discard_folder()


def _read(outcome: Outcome, questions: tuple[Question, ...]) -> Reply | NeedInput:
    error = outcome.error
    if error is None:
        # An open question wins over a result: the agent swallowed the exception that was to end it.
        return NeedInput(questions) if questions else _reply(outcome.value)
    errors = [leaf for leaf in _leaves(error) if not isinstance(leaf, Asked)]
    if not errors and questions:
        return NeedInput(questions)
    failures = [leaf for leaf in errors if isinstance(leaf, JobFailed)]
    if failures and len(failures) == len(errors):
        # Made anew: the agent's own may carry other errors, and their texts, in its context.
        raise JobFailed(failures[0].code, failures[0].message)
    cause = errors[0] if errors else error
    raise AgentFailed(f"the agent raised {type(cause).__name__}").with_traceback(cause.__traceback__) from cause


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _reply(value: object) -> Reply:
    try:
        return Reply.of(value)
    except Exception as error:
        kind = type(value).__name__
        raise AgentFailed(f"the agent returned {kind}; a reply is str, dict, a list of parts or Reply") from error


def _read_health(outcome: Outcome) -> Health:
    value = outcome.value
    if outcome.error is not None:
        return Health(False, f"the agent's health raised {type(outcome.error).__name__}")
    if isinstance(value, Health):
        return value
    if value is None or value is True:
        return Health(True)
    if value is False:
        return Health(False, "the agent's health says that it is not ready")
    return Health(False, f"the agent's health returned {type(value).__name__}, not True, False, Health or None")
