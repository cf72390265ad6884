"""A Python agent: it answers, asks when it needs to know more, and fails when it is told to.

In `finch.toml`, beside this file:

    [listings.backend]
    type = "python"
    target = "agent:run"
"""

from finch_gateway import Job, JobFailed


async def run(job: Job) -> str:
    if "fail" in job.text.lower():
        raise JobFailed("no_such_report", "There is no report of that name.")
    if "report" in job.text.lower():
        # The function is left here when there is no answer yet, and runs again from the top when there is one.
        period = await job.ask("period", "Which reporting period should I use?")
        return f"Here is your report for {period}."
    return f"You said: {job.text}"
