"""One JSON line per event, whatever is in it, and nothing that must stay private (wire 2.5)."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

import pytest

from finch_gateway.observe import Log, Sampler, adopt_libraries, blame

HOSTILE = 'a\r\n{"event":"forged"}\x1b[31m\u2028\u202e\x85\x7f"\\ \ud800 é 🎌'


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_hostile_field_stays_one_ascii_line_and_reads_back() -> None:
    stream = io.StringIO()
    Log(stream=stream, clock=lambda: 1.0).info("request.refused", path=HOSTILE)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().isascii()
    assert not any(ord(sign) < 32 or ord(sign) == 127 for sign in stream.getvalue().rstrip("\n"))
    assert events(stream) == [{"at": 1.0, "level": "info", "event": "request.refused", "path": HOSTILE}]


def test_a_long_field_is_cut_and_an_empty_one_left_out() -> None:
    stream = io.StringIO()
    Log(stream=stream).info("x", long="a" * 10_000, empty="", none=None, zero=0)
    [event] = events(stream)
    assert len(event["long"]) == 512
    assert "empty" not in event
    assert "none" not in event
    assert event["zero"] == 0


def test_below_the_level_nothing_is_written() -> None:
    stream = io.StringIO()
    log = Log("warning", stream)
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [event["event"] for event in events(stream)] == ["c", "d"]


async def test_a_turn_of_the_loop_writes_once_and_loses_nothing() -> None:
    class Counting(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            Counting.writes += 1
            return super().write(text)

    stream = Counting()
    log = Log(stream=stream)
    for number in range(100):
        log.info("x", number=number)
    assert stream.getvalue() == ""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [event["number"] for event in events(stream)] == list(range(100))
    assert Counting.writes == 1


def test_lines_left_by_an_ended_loop_are_written_by_the_next() -> None:
    stream = io.StringIO()
    log = Log(stream=stream)

    async def speak(word: str) -> None:
        log.info(word)

    asyncio.run(speak("one"))
    asyncio.run(speak("two"))
    log.info("three")
    assert [event["event"] for event in events(stream)] == ["one", "two", "three"]


def test_a_stream_that_cannot_be_written_costs_lines_and_nothing_else() -> None:
    class Full(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if Full.full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Full()
    log = Log(stream=stream)
    log.info("lost")
    log.info("lost")
    Full.full = False
    log.info("found")
    [event] = events(stream)
    assert (event["event"], event["lost_lines"]) == ("found", 2)


def test_blame_names_type_and_place_and_never_the_text() -> None:
    try:
        raise ValueError("a private text") from KeyError("another")
    except ValueError as error:
        fields = blame(error)
    assert fields["error_type"] == "ValueError"
    assert fields["error_cause"] == "KeyError"
    assert str(fields["error_at"]).startswith("test_observe.py:")
    assert "private" not in json.dumps(fields)


def test_a_flood_is_sampled_per_kind_and_counted() -> None:
    now = [0.0]
    sampler = Sampler(most=3, period_s=10, clock=lambda: now[0])
    assert [sampler.admit("a")[0] for _ in range(5)] == [True, True, True, False, False]
    assert sampler.admit("b") == (True, 0)
    now[0] = 11
    assert sampler.admit("a") == (True, 2)


@pytest.fixture
def adopted() -> Any:
    stream = io.StringIO()
    names = ("uvicorn", "uvicorn.error", "asyncio", "redis", "httpcore2", "finch_gateway")
    before = {name: (logging.getLogger(name).handlers[:], logging.getLogger(name).propagate) for name in names}
    adopt_libraries(Log("debug", stream))
    yield stream
    for name, (handlers, propagate) in before.items():
        logging.getLogger(name).handlers[:] = handlers
        logging.getLogger(name).propagate = propagate
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_a_librarys_words_do_not_pass_only_that_it_spoke(adopted: io.StringIO) -> None:
    try:
        raise RuntimeError("a private text")
    except RuntimeError:
        logging.getLogger("uvicorn.error").exception("private %s", "argument")
    logging.getLogger("redis").info("chatter")
    [event] = events(adopted)
    assert event["logger"] == "uvicorn.error"
    assert event["error_type"] == "RuntimeError"
    assert "private" not in adopted.getvalue()


def test_our_own_modules_events_keep_their_names(adopted: io.StringIO) -> None:
    logging.getLogger("finch_gateway.stores.redis").warning("store.lost", extra={"reason": "ConnectionError"})
    logging.getLogger("finch_gateway.stores.redis").warning("not an event: %s", "private")
    first, second = events(adopted)
    assert (first["event"], first["reason"]) == ("store.lost", "ConnectionError")
    assert second["event"] == "library.message"
    assert "private" not in adopted.getvalue()
