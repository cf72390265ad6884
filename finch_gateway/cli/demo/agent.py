"""The demo's agent: it answers, asks, fails on demand, takes its time over tasks, and counts its runs out loud."""

from __future__ import annotations

import asyncio

from finch_gateway import Job, JobFailed

PRIVATE_TEXT = "the password is correct-horse-battery"
PAGES = 12


class DemoAgent:
    """An agent as a provider might have it; it knows nothing of Finch, signatures, retries or callbacks."""

    def __init__(self) -> None:
        self.runs = 0
        self.watching = 0

    async def run(self, job: Job) -> str:
        self.runs += 1
        return await (self._work(job) if job.mode == "task" else self._talk(job))

    async def _talk(self, job: Job) -> str:
        request = job.text.lower()
        if "sunday" in request:
            raise JobFailed("archive_closed", "The archive is closed on Sundays.")
        if "crash" in request:
            raise RuntimeError(PRIVATE_TEXT)
        if "watching" in request:
            return f"I am watching {self.watching} prices."
        if "report" in request:
            period = await job.ask("period", "Which period should the report cover?")
            return f"Report on {period}: three risks, two chances. (run {self.runs} of this agent)"
        return f"You said: {job.text} (run {self.runs} of this agent)"

    async def _work(self, job: Job) -> str:
        request = job.text.lower()
        if "study" in request:
            return await self._study(job)
        if "watch" in request:
            return await self._watch(job)
        if "translate" in request:
            return await self._translate(job)
        return f"Done: {job.text}"

    async def _study(self, job: Job) -> str:
        if job.state is None:
            await job.progress(10, "Reading the sources")
            await asyncio.sleep(1.4)
            await job.progress(40, "Comparing the markets")
            await asyncio.sleep(0.5)
            await job.save("sources read")
        # Left here until the buyer answers; then run again from the top, with what was saved and the answer.
        market = await job.ask("market", "Which market matters most?")
        await job.progress(75, f"Writing about {market}")
        await asyncio.sleep(0.5)
        return f"Study on {market}: enter in spring."

    async def _watch(self, job: Job) -> str:
        self.watching += 1
        try:
            await job.progress(5, "Watching")
            await asyncio.sleep(600)
        finally:
            self.watching -= 1
        return "Nothing happened."

    async def _translate(self, job: Job) -> str:
        done = job.state or 0
        for page in range(done + 1, PAGES + 1):
            await asyncio.sleep(0.3)
            await job.save(page)
            await job.progress(100 * page // PAGES, f"Page {page} of {PAGES}")
        return f"All {PAGES} pages; attempt {job.attempt} began after page {done}."


agent = DemoAgent()
