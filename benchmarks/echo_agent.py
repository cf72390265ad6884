"""The agent behind the measured gateways."""

import asyncio

from finch_gateway import Job


async def run(job: Job) -> str:
    """Say what was told."""
    return job.text


async def sleep(job: Job) -> str:
    """Never come to an end."""
    await asyncio.Event().wait()
    return job.text
