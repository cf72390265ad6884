"""The agent behind this listing. The gateway calls `run` for each turn and task; put yours in its place."""

from finch_gateway import Job


async def run(job: Job) -> str:
    """Answer a turn; asking the buyer is part of answering."""
    if "report" in job.text.lower():
        # Without an answer yet, the turn ends here as a question. The next one runs this again, with the answer.
        period = await job.ask("period", "Which period should the report cover?")
        return f"Here is your report for {period}."
    return f"You wrote: {job.text}"
