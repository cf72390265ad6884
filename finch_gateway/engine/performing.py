"""Runs one job on a backend, within its time, and turns whatever comes of it into one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..backend import Backend
from ..job import Job, JobFailed, NeedInput, Reply
from ..observe import Log, blame


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended without a result; `code` and `message` are for the buyer."""

    code: str
    message: str = ""


class Interrupted(Enum):
    """Why the gateway itself let go of a job: nothing of it is to be reported."""

    LOST = "lost"
    DRAIN = "drain"


class Ended(Enum):
    """How the wait for a job ended, where the gateway did not interrupt it."""

    BY_AGENT = "by agent"
    BY_TIME = "by time"


Signal = asyncio.Future[Interrupted | Ended]
"""What a run waits for: whoever sets it first decides."""


Outcome = Reply | NeedInput | Failed | Interrupted

DEADLINE_EXCEEDED = Failed("deadline_exceeded", "The work was not finished before its deadline.")
AGENT_ERROR = Failed("agent_error", "The agent could not complete this request.")
AGENT_INTERRUPTED = Failed("agent_interrupted", "The work was interrupted and is not repeated.")
OUTPUT_TOO_LARGE = Failed("output_too_large", "The result is larger than this listing may return.")


async def perform(
    backend: Backend,
    job: Job,
    *,
    timeout_s: float,
    signal: Signal,
    on_end: Callable[[], None],
    log: Log,
) -> Outcome:
    """Run `job` and return its outcome after at most `timeout_s` seconds, whatever the agent does.

    An agent that does not heed its cancellation is left behind: its late result is dropped, and `on_end` is
    called only when it has really ended.
    """
    loop = asyncio.get_running_loop()
    work = loop.create_task(backend.run(job))

    def end(_: object) -> None:
        job.discard_folder()
        on_end()
        give_signal(signal, Ended.BY_AGENT)

    work.add_done_callback(end)
    timer = loop.call_later(timeout_s, give_signal, signal, Ended.BY_TIME)
    try:
        how = await signal
    finally:
        timer.cancel()
        if not work.done():
            work.add_done_callback(_retrieve)
            work.cancel()
    if isinstance(how, Interrupted):
        return how
    return _outcome(backend, job, work, log) if how is Ended.BY_AGENT else DEADLINE_EXCEEDED


def give_signal(signal: Signal, how: Interrupted | Ended) -> None:
    """Set a run's signal, unless it is set already."""
    if not signal.done():
        signal.set_result(how)


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Take a left-behind job's exception, so that the loop does not report it with its text."""
    if not work.cancelled():
        work.exception()


def _outcome(backend: Backend, job: Job, work: asyncio.Future[Reply | NeedInput], log: Log) -> Outcome:
    ids = {
        "listing": job.listing,
        "invocation_id": job.invocation_id,
        "turn_id": job.turn_id,
        "merchant_task_id": job.task_id,
    }
    if work.cancelled():
        log.error("job.failed", error_type="CancelledError", **ids)
        return AGENT_ERROR
    error = work.exception()
    if isinstance(error, JobFailed):
        return Failed(error.code, error.message)
    if error is not None:
        log.error("job.failed", **ids, **blame(error))
        return AGENT_ERROR
    result = work.result()
    if isinstance(result, NeedInput) and not _may_ask(backend, result):
        log.error("job.failed", error_type="UndeclaredQuestion", **ids)
        return AGENT_ERROR
    return result


def _may_ask(backend: Backend, need: NeedInput) -> bool:
    return backend.supports.questions and bool(need.questions)
