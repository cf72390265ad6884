"""The signature: every vector of the independent implementation, and every loose form refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finch_gateway.wire import signing
from finch_gateway.wire.secrets import SecretError, read_secret

VECTORS = Path(__file__).parent.parent / "vectors"
SIGNED = json.loads((VECTORS / "signing.json").read_text())
SECRETS = json.loads((VECTORS / "secrets.json").read_text())
KEY = signing.SigningKey(b"k" * 32)
GOOD = {
    b"x-platform-key-id": b"finch.agenton.1",
    b"x-platform-timestamp": b"1790000000",
    b"x-platform-nonce": b"n-1",
    b"x-platform-signature": b"v1=" + b"a" * 64,
}


def headers(**changed: bytes | None) -> list[tuple[bytes, bytes]]:
    named = {f"x-platform-{name.replace('_', '-')}".encode(): value for name, value in changed.items()}
    return [(name, value) for name, value in {**GOOD, **named}.items() if value is not None]


def test_there_are_vectors() -> None:
    assert len(SIGNED) >= 20
    assert len(SECRETS) >= 10


@pytest.mark.parametrize("vector", SIGNED, ids=lambda vector: f"{vector['wire_protocol']} {vector['target']}")
def test_every_signing_vector_holds(vector: dict[str, str]) -> None:
    secret = read_secret(vector["displayed_secret"], vector["wire_protocol"])  # type: ignore[arg-type]
    body = vector["body_utf8"].encode()
    canonical = signing.canonical(
        vector["method"].encode(),
        vector["target"].encode(),
        vector["timestamp"].encode(),
        vector["nonce"].encode(),
        body,
    )
    assert canonical.rpartition(b"\n")[2].decode() == vector["body_sha256"]
    assert signing.SigningKey(secret.key).sign(canonical).decode() == vector["signature"]
    claim = signing.read_claim(
        headers(
            timestamp=vector["timestamp"].encode(),
            nonce=vector["nonce"].encode(),
            signature=vector["signature"].encode(),
        )
    )
    signing.check_signature(
        signing.SigningKey(secret.key), claim, vector["method"].encode(), vector["target"].encode(), body
    )
    for other in (body + b" ", b"\xef\xbb\xbf" + body):
        with pytest.raises(signing.Unverified, match="signature"):
            signing.check_signature(
                signing.SigningKey(secret.key), claim, vector["method"].encode(), vector["target"].encode(), other
            )


@pytest.mark.parametrize("vector", SECRETS, ids=lambda vector: repr(vector["displayed"])[:40] + vector.get("note", ""))
def test_every_secret_vector_holds(vector: dict[str, str]) -> None:
    if vector.get("error"):
        with pytest.raises(SecretError) as caught:
            read_secret(vector["displayed"], vector["wire_protocol"])  # type: ignore[arg-type]
        if vector["displayed"]:
            assert vector["displayed"] not in str(caught.value)
    else:
        assert read_secret(vector["displayed"], vector["wire_protocol"]).key.hex() == vector["bytes_hex"]  # type: ignore[arg-type]


GOOD_SECRET = "SHJ6h4ZyfhSKPLZO0H8CfGRjlajFRQI5yQ9GQlae_s8"


@pytest.mark.parametrize(
    "written",
    [
        GOOD_SECRET[:20] + "\r\n" + GOOD_SECRET[20:],
        GOOD_SECRET + "!!!!",
        f'"{GOOD_SECRET}"',
        GOOD_SECRET[:-1] + "9",
        GOOD_SECRET[:-2],
        GOOD_SECRET + "A",
        GOOD_SECRET + "\0",
        "ﬀ" + GOOD_SECRET[1:],
    ],
)
def test_a_mistyped_secret_is_an_error_that_does_not_show_it(written: str) -> None:
    with pytest.raises(SecretError) as caught:
        read_secret(written, "finch_v2")
    assert GOOD_SECRET[1:20] not in str(caught.value)


def test_one_displayed_secret_keys_two_protocols_differently() -> None:
    assert read_secret(GOOD_SECRET, "finch_v2").key != read_secret(GOOD_SECRET, "agenton_v0").key
    assert read_secret("пароль", "agenton_v0").key == "пароль".encode()


@pytest.mark.parametrize("written", [" padded", "padded\n", '"quoted"', "'quoted'"])
def test_a_text_secret_with_a_copying_mistake_is_refused(written: str) -> None:
    with pytest.raises(SecretError):
        read_secret(written, "agenton_v0")


@pytest.mark.parametrize(
    "signature",
    [
        b"V1=" + b"a" * 64,
        b"v1," + b"a" * 64,
        b"sha256=" + b"a" * 64,
        b"a" * 64,
        b"v1=" + b"A" * 64,
        b"v1=" + b"a" * 63,
        b"v1=" + b"a" * 65,
        b"v1=" + b"a" * 64 + b",v1=" + b"a" * 64,
        b"v1= " + b"a" * 64,
        b"v1=" + b"a" * 63 + b"\xe9",
        b"v1=" + b"a" * 64 + b"\n",
        b"",
    ],
)
def test_only_the_exact_signature_form_is_read(signature: bytes) -> None:
    with pytest.raises(signing.Unverified):
        signing.read_claim(headers(signature=signature))


@pytest.mark.parametrize(
    "timestamp",
    [
        b"",
        b"+5",
        b"-5",
        b"05",
        b"1_0",
        b"1790000000.0",
        b"1790000000000",
        "१२३".encode(),
        b"1e9",
        b" ",
        b"\xe9",
        b"1\n",
    ],
)
def test_a_timestamp_is_1_to_12_ascii_digits(timestamp: bytes) -> None:
    with pytest.raises(signing.Unverified):
        claim = signing.read_claim(headers(timestamp=timestamp))
        signing.check_skew(claim, 1790000000)


@pytest.mark.parametrize("nonce", [b"", b"n" * 257, b"a b", "é".encode(), b"a\x00", b"\x7f", b"a\n"])
def test_a_nonce_is_1_to_256_visible_ascii_characters(nonce: bytes) -> None:
    with pytest.raises(signing.Unverified):
        signing.read_claim(headers(nonce=nonce))


@pytest.mark.parametrize("nonce", [b"n" * 256, b"*", b"{x}", b"a:b", b"~!"])
def test_an_odd_nonce_within_the_form_is_read_as_it_is(nonce: bytes) -> None:
    assert signing.read_claim(headers(nonce=nonce)).nonce == nonce.decode()


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    assert signing.read_claim(headers(nonce=b" \tn-1 ")).nonce == "n-1"


@pytest.mark.parametrize("name", list(GOOD))
def test_each_header_is_present_exactly_once(name: bytes) -> None:
    with pytest.raises(signing.Unverified, match="missing"):
        signing.read_claim([(found, value) for found, value in GOOD.items() if found != name])
    with pytest.raises(signing.Unverified, match="repeated"):
        signing.read_claim([*GOOD.items(), (name, GOOD[name])])


def test_a_nonce_of_our_own_form_is_refused() -> None:
    with pytest.raises(signing.Unverified, match="ours"):
        signing.read_claim(headers(nonce=signing.issue_nonce().encode()))


@pytest.mark.parametrize(("offset", "fine"), [(-301, False), (-300, True), (300, True), (301, False)])
def test_skew_is_at_most_300_seconds_either_way(offset: int, fine: bool) -> None:
    claim = signing.read_claim(headers(timestamp=str(1790000000 + offset).encode()))
    if fine:
        signing.check_skew(claim, 1790000000.9)
    else:
        with pytest.raises(signing.Unverified, match="skew"):
            signing.check_skew(claim, 1790000000.9)


@given(st.dictionaries(st.sampled_from(list(GOOD)), st.binary(max_size=300)))
def test_no_header_bytes_raise_anything_but_unverified(changed: dict[bytes, bytes]) -> None:
    try:
        claim = signing.read_claim([*{**GOOD, **changed}.items()])
        signing.check_signature(KEY, claim, b"GET", b"/", b"")
    except signing.Unverified as error:
        assert error.reason


def test_keys_and_secrets_do_not_print_themselves() -> None:
    secret = read_secret(GOOD_SECRET, "finch_v2")
    key = signing.SigningKey(secret.key)
    assert GOOD_SECRET not in repr(secret)
    assert repr(secret.key) not in repr(secret)
    assert "48727a" not in repr(key)
    assert len(key.fingerprint()) == 16
