"""The receiver judges every delivery as Finch would, keeps its order, and misbehaves exactly where it is told to."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from emulator.conftest import CALLBACK_SECRET, FOUR_BACK, KEY_ID, SECRET, tag

from finch_gateway.emulator.receiver import Fault, Receiver
from finch_gateway.emulator.timeline import Timeline, callback_trace

TASK = "provider-task-123"
INVOCATION = "8f14e45f-ceea-467f-a0f1-7e1b9a6f5b10"
MESSAGE = {"role": "agent", "content": [{"type": "text", "text": "Generation complete."}]}


def event(sequence: int, status: str = "working", **facts: Any) -> dict[str, Any]:
    return {
        "protocol_version": "2.0",
        "event_id": f"evt-{TASK}-{sequence}",
        "invocation_id": INVOCATION,
        "event_type": f"task.{status}",
        "status": status,
        "merchant_task_id": TASK,
        "sequence": sequence,
        **facts,
    }


def completed(sequence: int, **facts: Any) -> dict[str, Any]:
    result = {"message": MESSAGE, "artifacts": [], "completed_at": "2026-08-24T10:29:12Z"}
    return event(sequence, "completed", **{**result, **facts})


@dataclass
class Sender:
    """Sends deliveries to one URL by hand, each signed as it says."""

    url: str
    secret: bytes = CALLBACK_SECRET
    key_id: str = KEY_ID

    @property
    def authority(self) -> str:
        return self.url.split("/")[2]

    @property
    def target(self) -> str:
        return "/" + self.url.split("/", 3)[3]

    def headers(self, body: bytes, *, signed_target: str = "", nonce: str = "", at: float | None = None) -> list[str]:
        stamp, nonce = str(int(time.time() if at is None else at)), nonce or uuid.uuid4().hex
        signature = tag("POST", signed_target or self.target, stamp, nonce, body, self.secret)
        proof = zip(FOUR_BACK, (self.key_id, stamp, nonce, signature), strict=True)
        return ["Content-Type: application/json", *(f"{name}: {value}" for name, value in proof)]

    @asynccontextmanager
    async def line(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        host, _, port = self.authority.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def raw(self, body: bytes, headers: list[str], *, method: str = "POST", target: str = "") -> bytes:
        head = [f"{method} {target or self.target} HTTP/1.1", f"Host: {self.authority}", *headers]
        return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body

    async def post(self, document: object, **how: Any) -> int:
        """Send an event (or bytes); returns the status that comes back, 0 where none does."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        sent = {name: how.pop(name) for name in ("method", "target") if name in how}
        headers = how.pop("headers", None) or self.headers(body, **how)
        async with self.line() as (reader, writer):
            writer.write(self.raw(body, headers, **sent))
            answer = await reader.readline()
        return int(answer.split()[1]) if answer else 0


@pytest.fixture
def timeline(receiver: Receiver) -> Timeline:
    return receiver.open(INVOCATION)


@pytest.fixture
def sender(timeline: Timeline) -> Sender:
    return Sender(timeline.url)


def only_fault(timeline: Timeline) -> str:
    assert len(timeline.faults) == 1, timeline.faults
    return timeline.faults[0]


async def test_the_platforms_own_samples_are_accepted(sender: Sender, timeline: Timeline) -> None:
    progress = {"percent": 65, "stage": "Rendering final image"}
    reference = {
        "slot_id": str(uuid.uuid4()),
        "asset_id": str(uuid.uuid4()),
        "sha256": "ab" * 32,
        "bytes": 248112,
        "filename": "result.png",
    }
    done = {
        "protocol_version": "2.0",
        "event_id": f"evt-{TASK}-5",
        "event_type": "task.completed",
        "merchant_task_id": TASK,
        "sequence": 5,
        "message": MESSAGE,
        "artifacts": [reference],
    }
    assert await sender.post(event(4, "generating", progress=progress)) == 200
    assert await sender.post(done) == 200
    assert timeline.faults == []
    assert [(told.sequence, told.status, told.percent) for told in timeline.events] == [
        (4, "generating", 65),
        (5, "completed", None),
    ]
    assert timeline.is_ended


async def test_status_alone_is_enough(sender: Sender, timeline: Timeline) -> None:
    told = completed(2)
    del told["event_type"]
    assert await sender.post(told) == 200
    assert timeline.is_ended


@pytest.mark.parametrize("query", ["?a=%2Fb%7e&q=x+y&q=&empty&state=", "?", "?a=1&b=2"])
async def test_the_target_counts_byte_for_byte(receiver: Receiver, query: str) -> None:
    timeline = receiver.open(INVOCATION, query)
    sender = Sender(timeline.url)
    assert await sender.post(event(1, "queued")) == 200
    moved = sender.target.replace("%7e", "~").replace("b=2", "b=2&").removesuffix("?")
    if moved != sender.target:
        assert await sender.post(event(2), target=moved, signed_target=moved) == 404
        assert only_fault(timeline) == "the target is not the URL's own, byte for byte"


async def test_a_prefix_before_the_receiver_is_part_of_the_target() -> None:
    receiver = Receiver([], base_url="https://tunnel.example/finch/")
    timeline = receiver.open(INVOCATION)
    assert timeline.url.startswith("https://tunnel.example/finch/callbacks/")
    assert timeline.target.startswith("/finch/callbacks/")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"headers": ["Content-Type: application/json"]}, "unsigned: X-Agent-Key-Id is missing"),
        ({"signed_target": "/elsewhere"}, "not over this method, target and these exact bytes"),
        ({"at": time.time() - 400}, "s away from this clock"),
        ({"nonce": "n" * 257}, "X-Agent-Nonce is not 1 to 256"),
    ],
)
async def test_what_is_not_proven_is_refused(
    sender: Sender, timeline: Timeline, how: dict[str, Any], words: str
) -> None:
    assert await sender.post(event(1), **how) == 401
    assert words in only_fault(timeline)
    assert timeline.events == []


async def test_the_request_secret_is_told_from_a_strangers(sender: Sender, timeline: Timeline) -> None:
    sender.secret = SECRET
    assert await sender.post(event(1)) == 401
    sender.secret = b"somebody else's"
    assert await sender.post(event(1)) == 401
    assert "signed with the request secret" in timeline.faults[0]
    assert "signed with the request secret" not in timeline.faults[1]


async def test_an_unknown_key_is_refused(sender: Sender, timeline: Timeline) -> None:
    sender.key_id = "finch.agenton.other"
    assert await sender.post(event(1)) == 401
    assert only_fault(timeline) == "X-Agent-Key-Id names no callback key"


async def test_a_nonce_proves_one_delivery_even_where_that_was_not_taken(
    receiver: Receiver, sender: Sender, timeline: Timeline
) -> None:
    receiver.seed(Fault(status=503), times=1)
    assert await sender.post(event(1), nonce="once") == 503
    assert await sender.post(event(1), nonce="once") == 401
    assert "X-Agent-Nonce was used" in only_fault(timeline)


async def test_what_no_dispatch_named_is_a_stray(receiver: Receiver, sender: Sender) -> None:
    assert await sender.post(event(1), target="/callbacks/none") == 404
    assert await sender.post(event(1), method="PUT") == 405
    assert [stray.faults for stray in receiver.strays] == [("no dispatch named this target",)]


FORMS = [
    (b"{", "not JSON"),
    (b"[]", "not an object"),
    (b'{"sequence":1,"sequence":1}', "repeats a key"),
    (event(0), "sequence is not a positive"),
    (event(True), "sequence is not a positive"),
    ({**event(1), "sequence": "1"}, "sequence is not a positive"),
    ({**event(1), "protocol_version": "1.0"}, "protocol_version"),
    ({**event(1), "merchant_task_id": "short"}, "merchant_task_id is not"),
    ({**event(1), "event_id": ""}, "event_id is not"),
    ({**event(1), "event_type": "task.completed"}, "event_type is not task. and the status"),
    ({**event(1), "event_type": "working"}, "event_type is not task. and the status"),
    (event(1, "dreaming"), "none that Finch recognises"),
    ({**event(1), "status": ["working"], "event_type": None}, "none that Finch recognises"),
    ({name: value for name, value in event(1).items() if name not in ("status", "event_type")}, "neither event_type"),
    (event(1, poll_after_ms=100), "not in the contract: poll_after_ms"),
    (event(1, usage={}), "not in the contract: usage"),
    (event(1, progress=None), "event.progress is null"),
    (event(1, progress={"percent": 101}), "from 0 to 100"),
    (event(1, progress={"percent": 1.5}), "from 0 to 100"),
    (event(1, progress={"stage": "Reading"}), "progress lacks percent"),
    (event(1, "queued", progress={"percent": 1}), "progress is there while the task is queued"),
    (event(1, "input_required"), "the event lacks questions"),
    (event(1, "input_required", questions=[]), "questions is not a list of questions"),
    (event(1, "failed", error={"code": "Bad Code"}), "error.code is not snake_case"),
    (event(1, "failed"), "the event lacks error"),
    (event(1, "completed", message=MESSAGE), "the event lacks artifacts"),
    (completed(1, completed_at="yesterday"), "completed_at"),
    (completed(1, error={"code": "none"}), "not in the contract: error"),
    (event(1, "canceled", questions=[]), "not in the contract: questions"),
]


@pytest.mark.parametrize(("told", "words"), FORMS)
async def test_a_wrong_form_is_refused_and_named(sender: Sender, timeline: Timeline, told: object, words: str) -> None:
    assert await sender.post(told) in (409, 422)
    assert any(words in fault for fault in timeline.faults), timeline.faults
    assert timeline.events == []


async def test_a_repeat_is_accepted_and_counted_once(sender: Sender, timeline: Timeline) -> None:
    for told in (event(1, "queued"), event(3), event(1, "queued"), event(3)):
        assert await sender.post(told) == 200
    assert [told.sequence for told in timeline.events] == [1, 3]
    assert [arrival.is_repeat for arrival in timeline.arrivals] == [False, False, True, True]
    assert timeline.faults == []


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (event(2), event(2, progress={"percent": 5}), "has two bodies"),
        (event(2), {**event(2), "event_id": "another"}, "it does not increase"),
        (event(3), event(2), "it does not increase"),
        (completed(3), event(4), "comes after the end (completed)"),
        (completed(3), event(4, "canceled"), "comes after the end (completed)"),
        (event(1, progress={"percent": 60}), event(2, progress={"percent": 59}), "progress falls to 59"),
        (event(1), {**event(2), "merchant_task_id": "another-task-0001"}, "not that of the task's earlier events"),
        (event(1), {**event(2), "invocation_id": str(uuid.uuid4())}, "not the dispatch's"),
    ],
)
async def test_what_must_not_follow_is_refused_and_named(
    sender: Sender, timeline: Timeline, first: dict[str, Any], second: dict[str, Any], words: str
) -> None:
    assert await sender.post(first) == 200
    assert await sender.post(second) == 409
    assert words in only_fault(timeline)
    assert len(timeline.events) == 1


async def test_a_content_type_of_its_own_is_a_fault(sender: Sender, timeline: Timeline) -> None:
    body = json.dumps(event(1)).encode()
    headers = [line.replace("application/json", "text/plain") for line in sender.headers(body)]
    assert await sender.post(body, headers=headers) == 409
    assert only_fault(timeline) == "Content-Type is not application/json"


async def test_a_seeded_status_is_answered_as_often_as_asked(
    receiver: Receiver, sender: Sender, timeline: Timeline
) -> None:
    receiver.seed(Fault(status=429, headers=(("Retry-After", "7"),)), times=2)
    answers = [await sender.post(event(1)) for _ in range(3)]
    assert answers == [429, 429, 200]
    assert [arrival.answered for arrival in timeline.arrivals] == [429, 429, 200]
    assert len(timeline.events) == 1
    assert timeline.faults == []


async def test_a_fault_of_one_task_leaves_the_others_alone(receiver: Receiver, timeline: Timeline) -> None:
    other = receiver.open(INVOCATION)
    receiver.seed(Fault(status=410), timeline=timeline)
    assert await Sender(other.url).post(event(1)) == 200
    assert await Sender(timeline.url).post(event(1)) == 410
    receiver.heal()
    assert await Sender(timeline.url).post(event(1)) == 200


async def test_headers_of_a_seeded_answer_are_sent(receiver: Receiver, sender: Sender) -> None:
    receiver.seed(Fault(status=301, headers=(("Location", "http://127.0.0.1:1/"),)))
    body = json.dumps(event(1)).encode()
    async with sender.line() as (reader, writer):
        writer.write(sender.raw(body, sender.headers(body)))
        assert b"Location: http://127.0.0.1:1/" in await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(("kind", "counts"), [("drop", 0), ("forget", 1)])
async def test_a_connection_that_closes_without_an_answer(
    receiver: Receiver, sender: Sender, timeline: Timeline, kind: Any, counts: int
) -> None:
    receiver.seed(Fault(kind), times=1)
    assert await sender.post(event(1)) == 0
    assert len(timeline.events) == counts
    assert await sender.post(event(1)) == 200
    assert [arrival.is_repeat for arrival in timeline.arrivals] == [False, counts == 1]


@pytest.mark.parametrize(
    ("kind", "begins", "counts"), [("hang", b"", 0), ("trickle", b"HTTP/1.1 200", 0), ("endless", b"HTTP/1.1 200", 1)]
)
async def test_an_answer_that_never_ends(
    receiver: Receiver, sender: Sender, timeline: Timeline, kind: Any, begins: bytes, counts: int
) -> None:
    receiver.seed(Fault(kind), times=1)
    body = json.dumps(event(1)).encode()
    async with sender.line() as (reader, writer):
        writer.write(sender.raw(body, sender.headers(body)))
        got = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    got += await reader.readexactly(1)
    assert got.startswith(begins)
    assert (b"\r\n\r\n" in got) is (kind == "endless")
    assert len(timeline.events) == counts


async def test_stopping_ends_whatever_hangs(timeline: Timeline, receiver: Receiver, sender: Sender) -> None:
    receiver.seed(Fault("hang"))
    body = json.dumps(event(1)).encode()
    async with sender.line() as (reader, writer):
        writer.write(sender.raw(body, sender.headers(body)))
        await timeline.until(lambda: len(timeline.arrivals) == 1, 5)
        async with asyncio.timeout(5):
            await receiver.stop()
            assert await reader.read() == b""


async def test_one_connection_carries_many(sender: Sender, timeline: Timeline) -> None:
    async with sender.line() as (reader, writer):
        for sequence in range(1, 4):
            body = json.dumps(event(sequence)).encode()
            writer.write(sender.raw(body, sender.headers(body)))
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    assert len(timeline.events) == 3


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n"])
async def test_what_is_no_request_disturbs_nobody(sender: Sender, timeline: Timeline, garbage: bytes) -> None:
    async with sender.line() as (_, writer):
        writer.write(garbage)
    assert await sender.post(event(1)) == 200
    assert timeline.faults == []


async def test_a_watcher_sees_each_delivery_and_waiting_ends_with_it(sender: Sender, timeline: Timeline) -> None:
    seen: list[int] = []
    timeline.watch(lambda arrival: seen.append(arrival.answered))
    waiting = asyncio.create_task(timeline.until(lambda: timeline.is_ended, 10))
    await sender.post(event(1))
    await sender.post(completed(2))
    assert await waiting
    assert seen == [200, 200]
    assert not await timeline.until(lambda: False, 0.05)


async def test_a_trace_holds_neither_signature_nor_text(sender: Sender, timeline: Timeline) -> None:
    await sender.post(completed(2), nonce="n-nobody-may-read")
    text = repr(callback_trace(timeline.arrivals[0]))
    assert "completed" in text
    for private in ("n-nobody-may-read", "v1=", "Generation complete"):
        assert private not in text
