"""The demo's agent: it answers, asks one question, fails on demand, and counts its runs out loud."""

from __future__ import annotations

from finch_gateway import Job, JobFailed

PRIVATE_TEXT = "the password is correct-horse-battery"


class DemoAgent:
    """An agent as a provider might have it; it knows nothing of Finch, signatures or retries."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, job: Job) -> str:
        self.runs += 1
        request = job.text.lower()
        if "sunday" in request:
            raise JobFailed("archive_closed", "The archive is closed on Sundays.")
        if "crash" in request:
            raise RuntimeError(PRIVATE_TEXT)
        if "report" in request:
            period = await job.ask("period", "Which period should the report cover?")
            return f"Report on {period}: three risks, two chances. (run {self.runs} of this agent)"
        return f"You said: {job.text} (run {self.runs} of this agent)"


agent = DemoAgent()
