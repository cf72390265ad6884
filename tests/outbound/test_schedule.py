"""When callbacks are tried again, and what a receiver can do to that."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finch_gateway.outbound.schedule import (
    Impossible,
    Outcome,
    Pace,
    Schedule,
    Status,
    Unanswered,
    decide,
    kind_of,
    only_value,
    read_retry_after,
)
from finch_gateway.store import Dead, Delivered, Delivery, DeliveryEnd, RetryAt

NOW = 1_900_000_000.0
DAY_S = 86_400.0
SCHEDULE = Schedule()


def delivery(attempts: int = 0, created_at: float = NOW) -> Delivery:
    url = "https://a.example/"
    return Delivery("task", 1, "op", "listing", "kid", b"body", url, "callback-kid", "a.example", attempts, created_at)


def end_of(outcome: Outcome, *, attempts: int = 0, refusals: int = 0, now: float = NOW, seed: int = 0) -> DeliveryEnd:
    one = delivery(attempts, NOW)
    return decide(outcome, one, refusals, SCHEDULE, now=now, chance=random.Random(seed))


def delays(outcome: Outcome, attempts: int) -> list[float]:
    """Return what 300 events would have to wait."""
    ends = [end_of(outcome, attempts=attempts, seed=seed) for seed in range(300)]
    return [end.at - NOW for end in ends if isinstance(end, RetryAt)]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        *((Status(status), "taken") for status in (200, 201, 202, 204, 299)),
        *((Status(status), "passing") for status in (408, 425, 429, 500, 502, 503, 504, 599)),
        *((Status(status), "refused") for status in (300, 301, 302, 307, 308, 304, 400, 401, 404, 409, 413, 600, 999)),
        (Status(410), "hopeless"),
        (Unanswered("timeout"), "passing"),
        (Impossible("no way"), "hopeless"),
    ],
)
def test_every_outcome_has_its_reaction(outcome: Outcome, kind: str) -> None:
    assert kind_of(outcome) == kind


def test_a_taken_event_is_done_with() -> None:
    assert end_of(Status(204), attempts=500, refusals=2, now=NOW + 2 * DAY_S) == Delivered()


@pytest.mark.parametrize("outcome", [Status(503), Status(429), Unanswered("dropped")])
def test_the_first_retry_comes_within_a_second_and_the_waits_double_up_to_a_quarter_of_an_hour(
    outcome: Outcome,
) -> None:
    for attempts in (0, 1, 2, 5, 9, 10, 50, 5_000):
        ceiling = min(900.0, 0.25 * 2.0**attempts) if attempts < 64 else 900.0
        waits = delays(outcome, attempts)
        assert len(waits) == 300
        assert 0 <= min(waits) < 0.1 * ceiling
        assert 0.9 * ceiling < max(waits) <= ceiling


def test_a_receiver_that_stays_down_is_tried_for_a_day_and_not_longer() -> None:
    for seed in range(20):
        chance, now, attempts = random.Random(seed), NOW, 0
        while True:
            end = decide(Status(503), delivery(attempts), 0, SCHEDULE, now=now, chance=chance)
            if not isinstance(end, RetryAt):
                break
            assert now <= end.at <= NOW + DAY_S
            now, attempts = end.at, attempts + 1
        assert end == Dead("not taken in 86400 s; at last: the receiver answered 503")
        assert now > NOW + DAY_S - 900
        assert 150 < attempts < 260


def test_a_refused_event_has_three_spaced_attempts() -> None:
    for outcome in (Status(404), Status(401), Status(302)):
        first, second = (end_of(outcome, attempts=n - 1, refusals=n) for n in (1, 2))
        assert isinstance(first, RetryAt)
        assert 2.5 <= first.at - NOW <= 5
        assert isinstance(second, RetryAt)
        assert 15 <= second.at - NOW <= 30
        assert end_of(outcome, attempts=2, refusals=3) == Dead(f"the receiver answered {outcome.status}, 3 times")


def test_a_refusal_after_a_long_outage_still_has_its_three_attempts() -> None:
    assert isinstance(end_of(Status(404), attempts=40, refusals=1), RetryAt)


def test_what_is_gone_or_impossible_ends_at_once() -> None:
    assert end_of(Status(410)) == Dead("the receiver answered 410")
    assert end_of(Impossible("the callback URL is not https")) == Dead("the callback URL is not https")


@pytest.mark.parametrize("asked", ["120", "0120", format_datetime(datetime.fromtimestamp(NOW + 120, UTC), usegmt=True)])
@pytest.mark.parametrize("status", [429, 503])
def test_the_receiver_s_wish_is_honoured_within_the_cap(status: int, asked: str) -> None:
    waits = delays(Status(status, asked), attempts=3)
    assert min(waits) >= 120
    assert 121 < max(waits) <= 122
    assert max(delays(Status(status, "899"), attempts=20)) <= 900


HOSTILE = [
    "901",
    "9999999999",
    "9" * 5_000,
    "-5",
    "+5",
    "0",
    "1e3",
    "0x10",
    "٣٠",
    "5.5",
    "abc",
    "",
    " ",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "Mon, 99 Foo 2030 99:99:99 GMT",
    "Mon, 01 Jan 99999999999 00:00:00 GMT",
    "Mon, 18 Mar 2030 17:46:40 +99999999",
    ", , , ,",
    "NaN",
    "inf",
]


@pytest.mark.parametrize("asked", HOSTILE)
def test_a_hostile_wish_is_ignored(asked: str) -> None:
    assert delays(Status(429, asked), attempts=3) == delays(Status(429), attempts=3)


@given(st.text(max_size=50) | st.from_regex(r"\A[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{1,6} \d\d:\d\d:\d\d .{0,6}\Z"))
def test_no_wish_breaks_the_schedule(asked: str) -> None:
    end = end_of(Status(503, asked), attempts=4)
    assert isinstance(end, RetryAt)
    assert 0 <= end.at - NOW <= 900


def test_retry_after_reads_seconds_and_dates() -> None:
    assert read_retry_after("7", NOW) == 7
    for written in ("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00 -0000"):
        assert read_retry_after(written, 0) == datetime(2015, 10, 21, 7, 28, tzinfo=UTC).timestamp()


def test_a_repeated_header_says_nothing() -> None:
    assert only_value([("retry-after", " 7 ")], "retry-after") == "7"
    assert only_value([("retry-after", "7"), ("x", "y"), ("retry-after", "7")], "retry-after") == ""
    assert only_value([], "retry-after") == ""


def test_the_retries_of_a_large_backlog_are_spread_evenly() -> None:
    chance, seconds = random.Random(1), Counter[int]()
    for _ in range(1_000):
        now, attempts = NOW, 0
        while now < NOW + 3_600:
            end = decide(Status(503), delivery(attempts), 0, SCHEDULE, now=now, chance=chance)
            assert isinstance(end, RetryAt)
            now, attempts = end.at, attempts + 1
            seconds[int(now - NOW)] += 1
    # Once the first minute's quick retries are over.
    assert max(count for second, count in seconds.items() if second > 60) < 50


@pytest.mark.parametrize("backlog", [200, 400, 2_000, 20_000])
def test_a_backlog_leaves_within_minutes_and_no_second_carries_more_than_about_a_twentieth(backlog: int) -> None:
    now, left, sent = 0.0, backlog, Counter[int]()
    pace = Pace(now)
    while left:
        count = min(left, 4, pace.allowed(now))
        pace.let_through(count)
        left -= count
        sent[int(now * 4)] += count
        now += max(0.01, pace.wait_s()) if not count else 0.001
    quarters = [sent[at] for at in range(max(sent) + 1)]
    busiest = max(sum(quarters[at : at + 4]) for at in range(len(quarters)))
    assert busiest <= 0.06 * backlog
    assert now < 300
