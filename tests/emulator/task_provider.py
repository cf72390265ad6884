"""Tasks of a provider in the standard library alone: right unless a fault is seeded, one thread per agent."""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

Document = dict[str, Any]
Result = tuple[int, bytes]
Sign = Callable[[str, str, bytes], dict[str, str]]

FINAL = ("completed", "failed", "canceled", "expired")
STEP_S = 0.05
SHORT_OF_TIME_S = 5.0


def refusal(status: int, code: str) -> Result:
    return status, json.dumps({"code": code, "message": "No."}).encode()


@dataclass
class Task:
    """One task; `events` are sent in order by a thread of its own."""

    id: str
    invocation_id: str
    url: str
    deadline: float
    asked: str
    receipt: bytes = b""
    status: str = "queued"
    sequence: int = 0
    facts: Document = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    polled: dict[str, Result] = field(default_factory=dict)
    done: bool = False


class TaskDesk:
    """Every task of the provider. `fault` changes one thing; `task_asks` and the like choose the agent."""

    def __init__(self, fault: str, sign: Sign) -> None:
        self.fault = fault
        self.sign = sign
        self.changed = threading.Condition()
        self.tasks: dict[str, Task] = {}
        self.by_invocation: dict[str, Task] = {}
        self.closed = False

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def dispatch(self, envelope: Document) -> Result:
        asked = json.dumps(envelope["input"], sort_keys=True)
        with self.changed:
            task = self.by_invocation.get(envelope["invocation_id"])
            if task is None or self.fault == "task_per_attempt":
                task = self.begin(envelope, asked)
            elif task.asked != asked and self.fault != "no_conflict":
                return refusal(409, "idempotency_conflict")
            elif self.fault == "receipt_changes":
                task.receipt = task.receipt.replace(b'"poll_after_ms": 1', b'"poll_after_ms": 11')
        return (200 if self.fault == "task_200" else 202), task.receipt

    def begin(self, envelope: Document, asked: str) -> Task:
        deadline = datetime.fromisoformat(envelope["limits"]["deadline_at"]).timestamp()
        task_id = "t" if self.fault == "short_id" else f"task-{uuid.uuid4().hex}"
        url = envelope.get("callback", {}).get("url", "")
        task = Task(task_id, envelope["invocation_id"], url, deadline, asked)
        receipt = {
            "protocol_version": "2.0",
            "invocation_id": task.invocation_id,
            "status": "accepted",
            "merchant_task_id": task.id,
            "poll_after_ms": 3_600_001 if self.fault == "polls_too_late" else 100,
        }
        task.receipt = json.dumps(receipt).encode()
        self.tasks[task.id] = self.by_invocation[task.invocation_id] = task
        self.move(task, "queued")
        for work in (self.run, self.expire_in_time, self.send_events):
            threading.Thread(target=work, args=(task,), daemon=True).start()
        return task

    def find(self, task_id: str) -> Task | None:
        with self.changed:
            return self.tasks.get(task_id)

    def move(self, task: Task, status: str, **facts: Any) -> bool:
        """Write a state and its event; what has ended stays ended."""
        with self.changed:
            if task.status in FINAL and self.fault != "cancel_ignored":
                return False
            same = self.fault == "repeats_sequence" and status == task.status == "working"
            task.status, task.facts = status, facts
            task.sequence += 0 if same else 1
            if status in FINAL and self.fault == "no_end_event":
                task.done = True
            else:
                task.events.append(self.event(task))
            self.changed.notify_all()
            return True

    def event(self, task: Task) -> bytes:
        event = {
            "protocol_version": "2.0",
            "event_id": f"evt-{task.id}-{task.sequence}",
            "invocation_id": task.invocation_id,
            "event_type": f"task.{task.status}",
            "status": task.status,
            "merchant_task_id": task.id,
            "sequence": task.sequence,
            **task.facts,
        }
        if self.fault in ("event_type_only", "status_only"):
            del event["status" if self.fault == "event_type_only" else "event_type"]
        if self.fault == "null_in_event":
            event["error"] = None
        return json.dumps(event).encode()

    def pause(self, task: Task, seconds: float) -> bool:
        """Wait; False when the task has ended meanwhile."""
        with self.changed:
            self.changed.wait_for(lambda: task.status in FINAL or self.closed, seconds)
            return not self.closed and (task.status not in FINAL or self.fault == "cancel_ignored")

    def run(self, task: Task) -> None:
        if task.deadline < time.time() and self.fault != "runs_past_deadline":
            return
        if self.fault != "task_at_once" and not self.work(task):
            return
        if self.fault == "task_fails":
            self.move(task, "failed", error={"code": "agent_error"})
            return
        self.move(task, "completed", **self.result())
        if self.fault == "event_after_end":
            late = Task(task.id, task.invocation_id, task.url, 0, "", status="working", sequence=task.sequence + 1)
            self.append(task, self.event(late))
        if self.fault == "event_with_two_bodies":
            self.append(task, self.event(task).replace(b"I am useful", b"I am useless"))

    def append(self, task: Task, event: bytes) -> None:
        with self.changed:
            task.events.append(event)
            self.changed.notify_all()

    def work(self, task: Task) -> bool:
        """Report progress and take a while; longer than the deadline where that is near."""
        for percent in (10, 60, 30 if self.fault == "progress_falls" else 80):
            if not self.pause(task, STEP_S):
                return False
            self.move(task, "working", progress={"percent": percent, "stage": "Reading"})
        if task.deadline - time.time() < SHORT_OF_TIME_S:
            return self.pause(task, 60)
        for _ in range(2 if self.fault == "task_asks_twice" else self.fault == "task_asks"):
            if not self.ask(task):
                return False
        return self.pause(task, 4 * STEP_S)

    def ask(self, task: Task) -> bool:
        self.move(task, "input_required", questions=[{"id": "scope", "question": "Which one?"}])
        with self.changed:
            self.changed.wait_for(lambda: task.status != "input_required" or self.closed)
            return task.status == "working"

    @staticmethod
    def result() -> Document:
        return {
            "message": {"role": "agent", "content": [{"type": "text", "text": "I am useful."}]},
            "artifacts": [],
            "completed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def expire_in_time(self, task: Task) -> None:
        with self.changed:
            left_s = max(task.deadline - time.time(), 0)
            self.changed.wait_for(lambda: task.status in FINAL or self.closed, left_s)
        if not self.closed and self.fault not in ("never_expires", "runs_past_deadline"):
            self.move(task, "expired")

    def send_events(self, task: Task) -> None:
        unsent = task.events
        while task.url:
            with self.changed:
                self.changed.wait_for(lambda: unsent or self.closed)
                if self.closed:
                    return
                body = unsent.pop(0)
            self.deliver(task.url, body)

    def deliver(self, url: str, body: bytes) -> None:
        """Send one event until it is taken, three times at most; each attempt is signed anew."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        signed = parts.path if self.fault == "signs_without_query" else target
        for _ in range(3):
            line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
            try:
                headers = {"Content-Type": "application/json", **self.sign("POST", signed, body)}
                line.request("POST", target, body, headers)
                if 200 <= line.getresponse().status < 300:
                    return
            except OSError:
                pass
            finally:
                line.close()
            time.sleep(STEP_S)

    def poll(self, task: Task, key: str) -> Result:
        with self.changed:
            if self.fault == "remembers_polls" and key in task.polled:
                return task.polled[key]
            snapshot = {
                "protocol_version": "2.0",
                "merchant_task_id": task.id,
                "status": task.status,
                "sequence": max(task.sequence - (self.fault == "snapshot_behind"), 1),
                **task.facts,
            }
        if task.status not in FINAL:
            snapshot["poll_after_ms"] = 100
        if self.fault == "null_in_snapshot":
            snapshot["error"] = None
        if self.fault == "progress_at_the_end" and task.status == "completed":
            snapshot["progress"] = {"percent": 100, "stage": "Done"}
        task.polled[key] = 200, json.dumps(snapshot).encode()
        return task.polled[key]

    def answer(self, task: Task, key: str, body: bytes) -> Result:
        taken = json.dumps({"protocol_version": "2.0", "status": "accepted", "merchant_task_id": task.id}).encode()
        with self.changed:
            if self.fault != "applies_answers_twice" and key in task.answers:
                return (202, taken) if task.answers[key] == body else refusal(409, "idempotency_conflict")
            if task.status == "input_required":
                task.answers[key] = body
                self.move(task, "working")
                return 202, taken
        if self.fault == "takes_any_answer":
            return 202, taken
        return refusal(409, "task_terminal" if task.status in FINAL else "task_not_awaiting_input")

    def cancel(self, task: Task) -> Result:
        with self.changed:
            again = task.status == "canceled"
            if task.status in FINAL and not (again and self.fault != "cancels_once"):
                return refusal(409, "task_terminal") if self.fault != "cancels_ended" else self.canceled(task)
            if not again:
                self.move(task, "canceled")
            return self.canceled(task)

    @staticmethod
    def canceled(task: Task) -> Result:
        answer = {"protocol_version": "2.0", "status": "canceled", "merchant_task_id": task.id}
        return 200, json.dumps({**answer, "sequence": task.sequence}).encode()
