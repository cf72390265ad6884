"""Finch's own signer against samples that an independent implementation made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from finch_gateway.emulator.exchange import Answer
from finch_gateway.emulator.signer import (
    Credential,
    Distrust,
    SecretUnusable,
    canonical_string,
    secret_bytes,
    sign_request,
    signature_of,
    verify_answer,
)

VECTORS = Path(__file__).parents[1] / "vectors"
SECRETS = json.loads((VECTORS / "secrets.json").read_text("utf-8"))
SIGNINGS = json.loads((VECTORS / "signing.json").read_text("utf-8"))
CREDENTIAL = Credential("finch.agenton.1", b"k" * 32)
NOW = 1_790_000_000


@pytest.mark.parametrize("sample", SECRETS, ids=range(len(SECRETS)))
def test_reads_a_displayed_secret_as_finch_does(sample: dict[str, Any]) -> None:
    if sample.get("error"):
        with pytest.raises(SecretUnusable) as raised:
            secret_bytes(sample["displayed"], sample["wire_protocol"])
        assert not sample["displayed"] or sample["displayed"] not in str(raised.value)
    else:
        assert secret_bytes(sample["displayed"], sample["wire_protocol"]).hex() == sample["bytes_hex"]


@pytest.mark.parametrize("sample", SIGNINGS, ids=range(len(SIGNINGS)))
def test_signs_as_the_samples_say(sample: dict[str, Any]) -> None:
    body = sample["body_utf8"].encode("utf-8")
    assert hashlib.sha256(body).hexdigest() == sample["body_sha256"]
    secret = secret_bytes(sample["displayed_secret"], sample["wire_protocol"])
    canonical = canonical_string(sample["method"], sample["target"], sample["timestamp"], sample["nonce"], body)
    assert canonical.split("\n")[-1] == sample["body_sha256"]
    assert signature_of(secret, canonical) == sample["signature"]


def answer(body: bytes = b"{}", *, signed: bytes | None = None, timestamp: int = NOW, nonce: str = "n-1") -> Answer:
    four = sign_request(
        CREDENTIAL, "GET", "/h?b=2&a=1", body if signed is None else signed, timestamp=timestamp, nonce=nonce
    )
    return Answer(200, tuple((name.replace("Platform", "Agent"), value) for name, value in four), body)


def verify(given: Answer, *, method: str = "GET", target: str = "/h?b=2&a=1") -> str:
    return verify_answer(CREDENTIAL, method, target, given, now=NOW)


def test_believes_an_answer_signed_over_its_bytes() -> None:
    assert verify(answer()) == "n-1"


@pytest.mark.parametrize("timestamp", [NOW - 301, NOW + 301, NOW * 1000, 0])
def test_distrusts_an_answer_of_another_time(timestamp: int) -> None:
    with pytest.raises(Distrust, match="X-Agent-Timestamp"):
        verify(answer(timestamp=timestamp))


@pytest.mark.parametrize(
    ("given", "method", "target"),
    [
        (answer(signed=b"{ }"), "GET", "/h?b=2&a=1"),
        (answer(), "POST", "/h?b=2&a=1"),
        (answer(), "GET", "/h?a=1&b=2"),
    ],
)
def test_distrusts_a_signature_over_anything_else(given: Answer, method: str, target: str) -> None:
    with pytest.raises(Distrust, match="exact bytes"):
        verify(given, method=method, target=target)


@pytest.mark.parametrize("name", ["X-Agent-Key-Id", "X-Agent-Timestamp", "X-Agent-Nonce", "X-Agent-Signature"])
def test_distrusts_a_header_that_is_missing_or_there_twice(name: str) -> None:
    good = answer()
    without = tuple(pair for pair in good.headers if pair[0] != name)
    with pytest.raises(Distrust, match=f"unsigned: {name} is missing"):
        verify(Answer(200, without, good.body))
    twice = good.headers + tuple(pair for pair in good.headers if pair[0] == name)
    with pytest.raises(Distrust, match=f"{name} is there 2 times"):
        verify(Answer(200, twice, good.body))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Agent-Key-Id", "finch.agenton.2"),
        ("X-Agent-Nonce", "a b"),
        ("X-Agent-Nonce", "x" * 257),
        ("X-Agent-Signature", "v1=" + "A" * 64),
        ("X-Agent-Signature", "sha256=" + "a" * 64),
        ("X-Agent-Timestamp", "+1790000000"),
    ],
)
def test_distrusts_a_header_of_another_form(name: str, value: str) -> None:
    good = answer()
    headers = tuple((found, value if found == name else held) for found, held in good.headers)
    with pytest.raises(Distrust, match=name):
        verify(Answer(200, headers, good.body))


def test_a_credential_never_shows_its_secret() -> None:
    assert "kkkk" not in repr(CREDENTIAL)
