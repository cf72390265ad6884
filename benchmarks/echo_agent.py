"""The agent behind the measured gateways: it says what it was told."""

from finch_gateway import Job


async def run(job: Job) -> str:
    return job.text
