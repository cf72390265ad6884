"""The door, on raw sockets against a real process with either parser: what is refused, and how (wire 1 to 2)."""

from __future__ import annotations

import base64
import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.finch import Finch, HttpAnswer, body_hash, mac, request_bytes
from support.gateway import Provider

AGENT = """
from pathlib import Path
from finch_gateway import Job

RUNS = Path(__file__).parent / "runs.txt"

async def run(job: Job) -> str:
    with RUNS.open("a") as runs:
        runs.write(job.invocation_id + "\\n")
    if job.text == "explode":
        raise RuntimeError("inside")
    if job.text == "large":
        return "é" * 100_000
    return "echo " + job.text
"""

LIMIT = 64 * 1024


@pytest.fixture(scope="module", params=["h11", "httptools"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finch]:
    provider = Provider(tmp_path_factory.mktemp("door"), server={"max_body_bytes": LIMIT, "body_timeout_s": 2})
    provider.write(AGENT)
    with provider.running("--http", request.param) as process:
        yield provider.finch(process)
        assert process.process.poll() is None


def turn_body(finch: Finch, text: str = "hello") -> bytes:
    return json.dumps(finch.envelope(text)).encode()


async def post(finch: Finch, body: bytes, *, path: bytes = b"/invoke", **changed: Any) -> HttpAnswer:
    """Send a signed invoke, with the headers changed as named; the answer must verify."""
    target = finch.mount.encode() + path
    headers = finch.signed("POST", target, changed.pop("signed_body", body))
    headers = [(name, changed.get(name.decode(), value)) for name, value in headers]
    answer = await finch.send("POST", target, [*headers, *changed.get("extra", [])], body)
    finch.verify(answer, "POST", target)
    return answer


async def test_a_good_turn_is_answered_and_signed(gateway: Finch) -> None:
    answer = await gateway.turn("x")
    assert answer.status == 200
    assert answer.json["message"]["content"] == [{"type": "text", "text": "echo x"}]
    assert answer.header("cache-control") == "no-store, no-transform"
    assert answer.header("content-type") == "application/json"
    assert answer.header("content-length") == str(len(answer.body))
    assert answer.header("server") == ""


async def test_the_body_is_verified_as_it_came_and_not_as_it_would_be_written(gateway: Finch) -> None:
    envelope = gateway.envelope("é")
    odd = json.dumps(envelope, indent=3, ensure_ascii=True).replace('"quantity": 1', '"quantity":  1e0') + "\n"
    assert (await post(gateway, odd.encode())).status == 200
    compact = json.dumps(gateway.envelope("y"), separators=(",", ":")).encode()
    spaced = json.dumps(json.loads(compact)).encode()
    assert (await post(gateway, compact, signed_body=spaced)).code == "auth_failed"


@pytest.mark.parametrize(
    "content_type", [b"application/json", b'APPLICATION/JSON; charset="UTF-8"', b"text/plain", b""]
)
async def test_any_content_type_is_read_as_json(gateway: Finch, content_type: bytes) -> None:
    extra = [(b"Content-Type", content_type)] if content_type else []
    assert (await post(gateway, turn_body(gateway), extra=extra)).status == 200


@pytest.mark.parametrize(
    ("sent", "signed", "status"),
    [
        (b"/health?b=2&a=1", b"/health?b=2&a=1", 200),
        (b"/health?b=2&a=1", b"/health?a=1&b=2", 401),
        (b"/health?z=1&a=2&a=1&q=a+b%20c&e=&f&p=%7e", b"/health?z=1&a=2&a=1&q=a+b%20c&e=&f&p=%7e", 200),
        (b"/health?z=1&a=1&a=2", b"/health?z=1&a=2&a=1", 401),
        (b"/health?q=a%20b", b"/health?q=a+b", 401),
        (b"/health?", b"/health", 200),
        (b"/health?", b"/health?", 401),
        (b"/tasks/a%2Fb", b"/tasks/a%2Fb", 404),
        (b"/tasks/a%2Fb", b"/tasks/a%2fb", 401),
        (b"/tasks/a%2Fb", b"/tasks/a/b", 401),
        (b"//health", b"//health", 404),
        (b"/./health", b"/./health", 404),
        (b"/x/../health", b"/x/../health", 404),
        (b"/health/", b"/health/", 404),
        (b"/%68ealth", b"/%68ealth", 404),
        (b"/HEALTH", b"/HEALTH", 404),
        (b"", b"", 404),
        (b"/", b"/", 404),
        (b"/health#x", b"/health#x", 401),
        (b"/health?a=1?b=2", b"/health?a=1?b=2", 200),
        (b"/health?%ff=%00", b"/health?%ff=%00", 200),
    ],
)
async def test_the_target_is_what_came_over_the_wire(gateway: Finch, sent: bytes, signed: bytes, status: int) -> None:
    mount = gateway.mount.encode()
    answer = await gateway.send("GET", mount + sent, gateway.signed("GET", mount + signed))
    seen = mount + (sent.removesuffix(b"?") if sent.count(b"?") == 1 else sent)
    gateway.verify(answer, "GET", seen)
    assert answer.status == status


@pytest.mark.parametrize(
    "target", [b"/", b"/finch", b"/finch/v", b"/finch/v22/health", b"/other", b"//finch/v2/health"]
)
async def test_outside_every_mount_there_is_an_unsigned_404(gateway: Finch, target: bytes) -> None:
    answer = await gateway.send("GET", target, gateway.signed("GET", target))
    assert (answer.status, answer.code) == (404, "not_found")
    assert answer.header("X-Agent-Signature") == ""


async def test_an_absolute_form_target_belongs_to_no_listing(gateway: Finch) -> None:
    target = b"http://gateway.test/finch/v2/health"
    answer = await gateway.send("GET", target, gateway.signed("GET", b"/finch/v2/health"))
    assert answer.status == 404
    assert answer.header("X-Agent-Signature") == ""


HEADERS = [b"X-Platform-Key-Id", b"X-Platform-Timestamp", b"X-Platform-Nonce", b"X-Platform-Signature"]


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("how", ["missing", "same twice", "other first", "other last", "joined", "0xE9", "empty"])
async def test_each_platform_header_is_there_exactly_once_and_well_formed(
    gateway: Finch, name: bytes, how: str
) -> None:
    target = gateway.mount.encode() + b"/health"
    headers = gateway.signed("GET", target)
    value = dict(headers)[name]
    changed = {
        "missing": [],
        "same twice": [(name, value), (name, value)],
        "other first": [(name, b"other"), (name, value)],
        "other last": [(name, value), (name, b"other")],
        "joined": [(name, value + b", " + value)],
        "0xE9": [(name, value[:-1] + b"\xe9")],
        "empty": [(name, b"")],
    }[how]
    answer = await gateway.send("GET", target, [*[pair for pair in headers if pair[0] != name], *changed])
    assert (answer.status, answer.code) == (401, "auth_failed")
    gateway.verify(answer, "GET", target)


async def test_every_reason_gives_one_and_the_same_401(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/health"
    bodies = set()
    for headers in (
        [],
        gateway.signed("GET", target + b"x"),
        gateway.signed("GET", target, timestamp=1),
        gateway.with_key("finch.agenton.unknown", b"x").signed("GET", target),
        gateway.with_key(gateway.key_id.upper(), gateway.secret).signed("GET", target),
    ):
        answer = await gateway.send("GET", target, headers)
        gateway.verify(answer, "GET", target)
        assert answer.status == 401
        bodies.add(answer.body)
    assert len(bodies) == 1


@pytest.mark.parametrize(("offset", "status"), [(-310, 401), (-290, 200), (290, 200), (310, 401)])
async def test_skew_is_bounded_either_way(gateway: Finch, offset: int, status: int) -> None:
    assert (await gateway.call("GET", "/health", timestamp=int(time.time()) + offset)).status == status


async def test_milliseconds_are_no_timestamp(gateway: Finch) -> None:
    assert (await gateway.call("GET", "/health", timestamp=int(time.time() * 1000))).status == 401


async def test_a_nonce_is_spent_by_every_answer_but_a_refused_signature(gateway: Finch) -> None:
    for method, path, body, first in (
        ("GET", "/health", b"", 200),
        ("GET", "/nowhere", b"", 404),
        ("PUT", "/health", b"", 405),
        ("POST", "/invoke", b"[]", 400),
        ("POST", "/invoke", b"{}", 422),
    ):
        nonce = uuid.uuid4().hex
        assert (await gateway.call(method, path, body, nonce=nonce)).status == first
        assert (await gateway.call("GET", "/health", nonce=nonce)).status == 401


async def test_a_bad_signature_burns_no_nonce(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/health"
    nonce = uuid.uuid4().hex
    wrong = gateway.with_key(gateway.key_id, b"another secret").signed("GET", target, nonce=nonce)
    assert (await gateway.send("GET", target, wrong)).status == 401
    assert (await gateway.call("GET", "/health", nonce=nonce)).status == 200


async def test_a_get_with_a_body_is_refused(gateway: Finch) -> None:
    assert (await gateway.call("GET", "/health", b"{}")).code == "auth_failed"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_another_method_is_a_signed_405(gateway: Finch, method: str) -> None:
    answer = await gateway.call(method, "/health")
    assert (answer.status, answer.code) == (405, "method_not_allowed")


async def test_head_is_a_405_signed_over_zero_bytes(gateway: Finch) -> None:
    answer = await gateway.call("HEAD", "/health")
    assert answer.status == 405
    assert answer.body == b""


async def test_a_slash_is_not_redirected(gateway: Finch) -> None:
    answer = await gateway.call("GET", "/health/")
    assert answer.status == 404
    assert answer.header("location") == ""


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b"GZIP"])
async def test_an_encoded_body_is_a_415_that_spends_nothing(gateway: Finch, encoding: bytes) -> None:
    nonce = uuid.uuid4().hex
    extra = [(b"Content-Encoding", encoding)]
    answer = await gateway.call("POST", "/invoke", b"{}", extra=extra, nonce=nonce)
    assert (answer.status, answer.code) == (415, "encoding_unsupported")
    assert (await gateway.call("GET", "/health", nonce=nonce)).status == 200


async def test_a_stranger_is_not_told_about_encodings(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/invoke"
    answer = await gateway.send("POST", target, [(b"Content-Encoding", b"gzip")], b"{}")
    assert answer.status == 401


@pytest.mark.parametrize("size", [LIMIT + 1, 4 * LIMIT])
async def test_an_over_long_body_is_a_413_that_arrives_and_spends_nothing(gateway: Finch, size: int) -> None:
    nonce = uuid.uuid4().hex
    answer = await gateway.call("POST", "/invoke", b"x" * size, nonce=nonce)
    assert (answer.status, answer.code) == (413, "request_too_large")
    assert (await gateway.call("GET", "/health", nonce=nonce)).status == 200


async def test_an_endless_chunked_body_ends_soon_after_the_limit(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/invoke"
    headers = [*gateway.signed("POST", target, b"x"), (b"Transfer-Encoding", b"chunked")]
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    sent = 0
    async with gateway.connection() as connection:
        connection.writer.write(request_bytes("POST", target, headers))
        try:
            while sent < 100 * 1024 * 1024:
                connection.writer.write(chunk)
                await connection.writer.drain()
                sent += 0x4000
        except ConnectionError:
            pass
    assert sent < 32 * 1024 * 1024


async def test_a_stranger_is_refused_before_the_body_has_come(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/invoke"
    async with gateway.connection() as connection:
        connection.writer.write(request_bytes("POST", target, [(b"Content-Length", b"1000")]))
        answer = await connection.read()
    assert answer.status == 401
    gateway.verify(answer, "POST", target)


async def test_a_body_that_does_not_come_is_refused_in_time(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/invoke"
    headers = [*gateway.signed("POST", target, b"x" * 100), (b"Content-Length", b"100")]
    async with gateway.connection() as connection:
        connection.writer.write(request_bytes("POST", target, headers) + b"x" * 10)
        began = time.monotonic()
        answer = await connection.read()
    assert answer.status == 401
    assert time.monotonic() - began < 20


async def test_no_answer_is_compressed(gateway: Finch) -> None:
    body = turn_body(gateway, "large")
    answer = await post(gateway, body, extra=[(b"Accept-Encoding", b"gzip, br, deflate")])
    assert answer.header("content-encoding") == ""
    assert len(answer.body) > 200_000


async def test_an_agents_failure_is_a_signed_200_without_its_words(gateway: Finch) -> None:
    answer = await gateway.turn("explode")
    assert (answer.status, answer.code) == (200, "agent_error")
    assert b"inside" not in answer.body


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/health", "/invoke", "/elsewhere"])
async def test_a_signed_answer_turned_round_is_no_request(gateway: Finch, method: str, path: str) -> None:
    answer = await gateway.call(method, path)
    target = gateway.mount.encode() + path.encode()
    reflected = [
        (name.replace(b"Agent", b"Platform"), answer.header(name.decode()).encode())
        for name in (b"X-Agent-Key-Id", b"X-Agent-Timestamp", b"X-Agent-Nonce", b"X-Agent-Signature")
    ]
    for again in ("GET", "POST"):
        turned = await gateway.send(again, target, reflected, answer.body)
        assert turned.status == 401
    # Even over a body and target of the attacker's choice, our own nonces are refused.
    forged = gateway.signed("GET", target, nonce="fgw-" + "0" * 32)
    assert (await gateway.send("GET", target, forged)).status == 401


REFUSED_BY_THE_PARSER = {
    "two framings": b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two equal lengths": b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "bare line feeds": b"GET %s HTTP/1.1\nHost: x\n\n",
    "a folded header": b"GET %s HTTP/1.1\r\nHost: x\r\nX-Platform-Nonce: a\r\n b\r\n\r\n",
    "NUL in a header": b"GET %s HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n",
    "a space before the colon": b"GET %s HTTP/1.1\r\nHost: x\r\nX-A : a\r\n\r\n",
    "no host": b"GET  HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("raw", REFUSED_BY_THE_PARSER.values(), ids=REFUSED_BY_THE_PARSER)
async def test_both_parsers_refuse_what_two_readers_could_read_differently(gateway: Finch, raw: bytes) -> None:
    target = gateway.mount.encode() + b"/health"
    async with gateway.connection() as connection:
        connection.writer.write(raw % target if b"%s" in raw else raw)
        answer = await connection.read()
        assert answer.status == 400
        # The rest is that answer's own text; then the connection is closed.
        assert b"HTTP/1.1" not in await connection.reader.read()


async def test_a_request_hidden_behind_a_malformed_chunk_is_never_read(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/invoke"
    headers = [*gateway.signed("POST", target, b"ab"), (b"Transfer-Encoding", b"chunked")]
    hidden = request_bytes("GET", gateway.mount.encode() + b"/health", gateway.signed("GET", b"/finch/v2/health"))
    async with gateway.connection() as connection:
        connection.writer.write(request_bytes("POST", target, headers) + b"2\r\nabXX0\r\n\r\n" + hidden)
        answer = await connection.read()
        assert answer.status in (400, 401)
        rest = await connection.reader.read()
    assert b'"ready"' not in rest


async def test_a_lower_case_method_reaches_no_endpoint(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/invoke"
    body = turn_body(gateway)
    answer = await gateway.send("post", target, gateway.signed("post", target, body), body)
    assert answer.status in (400, 405)


async def test_kept_alive_connections_carry_many_requests(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/health"
    async with gateway.connection() as connection:
        for _ in range(20):
            answer = await connection.ask("GET", target, gateway.signed("GET", target))
            gateway.verify(answer, "GET", target)
            assert answer.status == 200


async def test_slow_callers_do_not_hold_up_the_others(gateway: Finch) -> None:
    target = gateway.mount.encode() + b"/invoke"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(150):
            connection = await stack.enter_async_context(gateway.connection())
            connection.writer.write(b"POST " + target + b" HTTP/1.1\r\nX-Slow: ")
        took = []
        for _ in range(20):
            began = time.monotonic()
            assert (await gateway.health()).status == 200
            took.append(time.monotonic() - began)
        assert sorted(took)[-2] < 1


def test_the_harness_signs_as_the_vectors_do() -> None:
    vector = json.loads((Path(__file__).parent.parent / "vectors" / "signing.json").read_text())[0]
    secret = base64.urlsafe_b64decode(vector["displayed_secret"] + "=")
    lines = [vector[name].encode() for name in ("method", "target", "timestamp", "nonce")]
    assert mac(secret, *lines, body_hash(vector["body_utf8"].encode())).decode() == vector["signature"]
