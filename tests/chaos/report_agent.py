"""The agent under the crash harness: works in saved steps, asks once, and keeps a diary of what it saw."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from chaos_gate import reach

from finch_gateway import Job

DIARY = Path(__file__).parent / "diary.jsonl"
STEPS = 3


def note(job: Job, what: str, value: Any = None) -> None:
    line = {"at": time.time(), "task": job.task_id, "attempt": job.attempt, "pid": os.getpid(), what: value}
    # One write to a file opened for appending: two processes' lines never mix.
    with DIARY.open("ab", buffering=0) as diary:
        diary.write(json.dumps(line).encode() + b"\n")


async def run(job: Job) -> str | dict[str, Any]:
    done = (job.state or {}).get("step", 0)
    note(job, "begun", done)
    if job.text == "brief":
        return "done"
    if job.text == "endless":
        await asyncio.sleep(600)
    if job.text == "long":
        await asyncio.sleep(4)
        return "done"
    if job.attempt > 1:
        # Time for a frozen process to come back while this one holds the task.
        await asyncio.sleep(0.5)
    for step in range(done, STEPS):
        await asyncio.sleep(0.25)
        await job.progress(20 * (step + 1), f"Step {step}")
        await job.save({"step": step + 1})
        note(job, "saved", step + 1)
    period = await job.ask("scope", "Which period?")
    await job.progress(90, "Writing")
    await asyncio.sleep(0.8)
    await reach("return:before")
    return {"period": period, "attempt": job.attempt}
