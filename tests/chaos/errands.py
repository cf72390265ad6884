"""Finch's side of a run: dispatches, polls, answers and cancels until every task has ended, and judges what it saw."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.finch import Finch, HttpAnswer
from support.gateway import Provider
from support.receiver import FINAL, Receiver

ENDS = {
    "report": "completed",
    "brief": "completed",
    "long": "completed",
    "canceled": "canceled",
    "expired": "expired",
    "unanswered": "expired",
}
"""What Finch wants done, and how it must end."""

TEXTS = {"canceled": "endless", "expired": "endless", "unanswered": "report"}
"""What the agent is told, where that is not the errand's own name."""

CALL_LIMIT_S = 10.0


@dataclass(slots=True)
class Errand:
    """One dispatch and all that Finch learned about it."""

    kind: str
    envelope: dict[str, Any]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    receipts: set[bytes] = field(default_factory=set)
    task_id: str = ""
    redelivered_in: int = 0
    is_answered: bool = False
    canceled_at: int | None = None
    snapshots: dict[int, dict[str, Any]] = field(default_factory=dict)
    newest: int = 0
    was_purged: bool = False

    @property
    def status(self) -> str:
        return str(self.snapshots[self.newest]["status"]) if self.snapshots else ""

    @property
    def is_over(self) -> bool:
        return self.status in FINAL

    @property
    def name(self) -> str:
        return f"{self.kind} {self.task_id or self.envelope['invocation_id']}"


@dataclass(slots=True)
class Platform:
    """Finch, over the lives of a gateway; `violations` holds every broken promise in words."""

    provider: Provider
    receiver: Receiver
    may_purge: bool = False
    finch: Finch | None = None
    lives: int = 0
    is_last_life: bool = False
    errands: list[Errand] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def meet(self, finch: Finch) -> None:
        """Speak with this process from now on."""
        self.finch = finch
        self.lives += 1

    def want(self, kind: str) -> Errand:
        assert self.finch
        deadline_s = 3 if ENDS[kind] == "expired" else 300
        envelope = self.finch.task_envelope(TEXTS.get(kind, kind), callback=self.receiver.url(), deadline_s=deadline_s)
        errand = Errand(kind, envelope)
        self.errands.append(errand)
        return errand

    async def drive(self) -> None:
        """Do what Finch does until, in the gateway's last life, every errand is over and its end was told."""
        await asyncio.gather(*(self._drive(errand) for errand in self.errands))

    async def _drive(self, errand: Errand) -> None:
        while not (self.is_last_life and errand.redelivered_in == self.lives and self.is_done(errand)):
            try:
                async with asyncio.timeout(CALL_LIMIT_S):
                    await self._step(errand)
            except (OSError, EOFError, TimeoutError):
                pass  # the process is gone, or frozen: Finch tries again
            except AssertionError as error:
                self.violations.append(f"{errand.name}: {str(error)[:500]}")
            await asyncio.sleep(0.08)

    def is_done(self, errand: Errand) -> bool:
        """Say whether an errand is over and its end was told."""
        return errand.is_over and self.receiver.terminal(errand.task_id) is not None

    async def _step(self, errand: Errand) -> None:
        if errand.redelivered_in != self.lives:
            await self._dispatch(errand)
        if not errand.task_id:
            return
        await self._poll(errand)
        if errand.kind == "report" and errand.status == "input_required" and not errand.is_answered:
            await self._answer(errand)
        if errand.kind == "canceled" and errand.status == "working":
            await self._cancel(errand)

    async def _dispatch(self, errand: Errand) -> None:
        """Send the dispatch, once more in every life of the gateway: the receipt is the same."""
        assert self.finch
        life = self.lives
        errand.envelope["dispatch_id"] = str(uuid.uuid4())
        answer = await self.finch.invoke(errand.envelope)
        if self._is_passing(errand, "dispatch", answer, 202):
            return
        errand.receipts.add(answer.body)
        if len(errand.receipts) > 1:
            self.violations.append(f"{errand.name}: a second receipt for one invocation")
        errand.task_id = errand.task_id or answer.json["merchant_task_id"]
        errand.redelivered_in = life

    async def _poll(self, errand: Errand) -> None:
        assert self.finch
        taken = [event["sequence"] for event in self.receiver.of(errand.task_id)]
        answer = await self.finch.poll(errand.task_id)
        if answer.status == 404 and self.may_purge and errand.is_over:
            errand.was_purged = True
            return
        if answer.status == 404:
            self.violations.append(f"{errand.name}: an accepted task was lost")
            errand.snapshots[1 << 30] = {"status": "failed", "sequence": 1 << 30}
            errand.newest = 1 << 30
            return
        if self._is_passing(errand, "poll", answer, 200):
            return
        self._see(errand, answer.json, max(taken, default=0))

    def _see(self, errand: Errand, snapshot: dict[str, Any], floor: int) -> None:
        sequence = snapshot["sequence"]
        if sequence < floor:
            self.violations.append(f"{errand.name}: snapshot {sequence} is behind event {floor}, which was taken")
        if sequence < errand.newest:
            self.violations.append(f"{errand.name}: snapshot {sequence} after snapshot {errand.newest}")
        if errand.is_over and sequence != errand.newest:
            self.violations.append(f"{errand.name}: went on to {snapshot['status']} after its end {errand.status}")
        if errand.snapshots.setdefault(sequence, snapshot) != snapshot:
            self.violations.append(f"{errand.name}: two snapshots with the sequence {sequence}")
        errand.newest = max(errand.newest, sequence)

    async def _answer(self, errand: Errand) -> None:
        assert self.finch
        answer = await self.finch.message(errand.task_id, "May", key=errand.key)
        if not self._is_passing(errand, "answer", answer, 202):
            errand.is_answered = True

    async def _cancel(self, errand: Errand) -> None:
        assert self.finch
        answer = await self.finch.cancel(errand.task_id)
        if self._is_passing(errand, "cancel", answer, 200):
            return
        sequence = answer.json["sequence"]
        if errand.canceled_at not in (None, sequence):
            self.violations.append(f"{errand.name}: canceled at {errand.canceled_at} and at {sequence}")
        errand.canceled_at = sequence

    def _is_passing(self, errand: Errand, what: str, answer: HttpAnswer, good: int) -> bool:
        """Say whether the call is to be made again; anything but success and a drain's 503 is a violation."""
        if answer.status not in (good, 503):
            self.violations.append(f"{errand.name}: {what} got {answer.status} {answer.body[:200]!r}")
        return answer.status != good

    # Afterwards

    def judge(self) -> None:
        """Hold everything that was seen against each other."""
        self.violations += self.receiver.violations
        events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in self.receiver.events:
            events[event.body["merchant_task_id"]].append(event.body)
        if strays := set(events) - {errand.task_id for errand in self.errands}:
            self.violations.append(f"events of tasks that no receipt named: {sorted(strays)}")
        for errand in self.errands:
            self._judge(errand, events[errand.task_id])

    def _judge(self, errand: Errand, events: list[dict[str, Any]]) -> None:
        ends = {event["event_id"] for event in events if event["status"] in FINAL}
        if len(ends) != 1:
            self.violations.append(f"{errand.name}: {len(ends)} terminal events: {sorted(ends)}")
        if errand.status != ENDS[errand.kind]:
            self.violations.append(f"{errand.name}: ended {errand.status or 'never'}, not {ENDS[errand.kind]}")
        for event in events:
            snapshot = errand.snapshots.get(event["sequence"])
            if snapshot and _said(event) != _said(snapshot):
                self.violations.append(f"{errand.name}: event and snapshot {event['sequence']} differ")
        if errand.canceled_at is not None and errand.canceled_at != errand.newest:
            self.violations.append(f"{errand.name}: the cancel's answer names another sequence than the snapshot")
        if errand.kind == "report" and errand.is_over:
            self._judge_report(errand)

    def _judge_report(self, errand: Errand) -> None:
        pages = self._diary(errand.task_id)
        begun = [page for page in pages if "begun" in page]
        content = errand.snapshots[errand.newest].get("message", {}).get("content", [{}])[0].get("json", {})
        if content.get("period") != "May":
            self.violations.append(f"{errand.name}: the answer did not reach the agent: {content}")
        last = max((page["attempt"] for page in begun), default=0)
        if content.get("attempt") != last:
            self.violations.append(f"{errand.name}: attempt {content.get('attempt')} ended it, after {last} had begun")
        for page in begun:
            earlier = [kept["saved"] for kept in pages if "saved" in kept and kept["at"] < page["at"]]
            if page["begun"] < max(earlier, default=0):
                self.violations.append(f"{errand.name}: a saved state was lost")

    def _diary(self, task_id: str) -> list[dict[str, Any]]:
        path = self.provider.folder / "diary.jsonl"
        pages = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [page for page in pages if page["task"] == task_id]

    def attempts_begun(self, task_id: str) -> int:
        return max((page["attempt"] for page in self._diary(task_id) if "begun" in page), default=0)


def _said(document: dict[str, Any]) -> dict[str, Any]:
    """Return what an event and a snapshot of the same sequence have in common."""
    own = {"event_id", "invocation_id", "event_type", "poll_after_ms"}
    return {name: value for name, value in document.items() if name not in own}


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Return once the condition holds; raise `TimeoutError`."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        await asyncio.sleep(0.02)
