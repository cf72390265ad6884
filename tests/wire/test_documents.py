"""JSON read strictly: what two readers could see differently is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from finch_gateway.errors import Refusal
from finch_gateway.wire.documents import digest, read_object, write


def nested(opening: str, closing: str, depth: int) -> bytes:
    return (opening * depth + closing * depth).encode()


REFUSED = {
    "empty": b"",
    "blank": b"  ",
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-32": '{"a":1}'.encode("utf-32"),
    "stray 0xFF": b'{"a":"\xff"}',
    "overlong": b'{"a":"\xc0\xaf"}',
    "encoded surrogate": b'{"a":"\xed\xa0\x80"}',
    "control character": b'{"a":"\x01"}',
    "raw newline in a string": b'{"a":"\n"}',
    "two documents": b"{}{}",
    "trailing comma": b'{"a":1,}',
    "comment": b'{"a":1/**/}',
    "single quotes": b"{'a':1}",
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":Infinity}',
    "-Infinity": b'{"a":-Infinity}',
    "too large a number": b'{"a":1e999}',
    "5,000 digits": b'{"a":' + b"9" * 5000 + b"}",
    "leading zero": b'{"a":01}',
    "lone high surrogate": b'{"a":"\\ud800"}',
    "lone low surrogate": b'{"a":"\\udc00"}',
    "surrogates the wrong way round": b'{"a":"\\udc00\\ud800"}',
    "high surrogate before a letter": b'{"a":"\\ud800x"}',
    "lone surrogate in a key": b'{"\\ud800":1}',
    "array at the root": b"[]",
    "text at the root": b'"a"',
    "null at the root": b"null",
    "repeated key": b'{"a":1,"a":1}',
    "repeated key, escaped": b'{"a":1,"\\u0061":2}',
    "repeated key, deep": b'{"p":{"x":[{"k":1,"k":2}]}}',
    "repeated key beside a string that looks like one": b'{"t":"\\"k\\":","k":1,"k":2}',
    "20,000 arrays": b'{"a":' + nested("[", "]", 20_000) + b"}",
    "20,000 objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "65 levels": b'{"a":' * 65 + b"1" + b"}" * 65,
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_what_is_not_one_strict_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        read_object(body)
    assert caught.value.code == "body_invalid"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b' {"a" : [1, 2.5, -0, 1e2, true, null, "x"]}\r\n',
        b'{"a":"\\ud83d\\ude00 \\u00e9"}',
        b'{"a":9007199254740993,"b":18446744073709551617}',
        b'{"t":"\\"k\\": 1, \\"k\\": 2","k":1}',
        b'{"a":' * 64 + b"1" + b"}" * 64,
        ('{"a":"' + "9" * 6000 + '"}').encode(),
    ],
)
def test_odd_but_sound_objects_are_read_digit_for_digit(body: bytes) -> None:
    assert read_object(body) == json.loads(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON))
@example({'":': '":', "a": {'":': 1}})
def test_every_object_written_is_read_back(value: dict[str, object]) -> None:
    assert read_object(write(value)) == value
    assert read_object(json.dumps(value, indent=2).encode()) == value


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,\\ \n0aé1eNI-.u', max_size=60).map(str.encode))
def test_any_bytes_are_read_as_the_standard_reader_does_or_refused(body: bytes) -> None:
    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(items)) == len(items)
        return dict(items)

    try:
        value = read_object(body)
    except Refusal:
        return
    assert json.loads(body.decode("utf-8"), object_pairs_hook=pairs) == value


def test_values_equal_as_json_have_one_digest() -> None:
    assert digest({"a": 1.0, "b": [100, {}]}) == digest({"b": [1e2, {}], "a": 1})
    assert digest({"a": 1}) != digest({"a": True})
    assert digest({"a": "1"}) != digest({"a": 1})
    assert digest([None]) != digest([])
    assert digest({"a": 2**70}) != digest({"a": 2**70 + 1})


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", object(), {1, 2}])
def test_what_json_cannot_say_is_an_error(value: object) -> None:
    with pytest.raises(ValueError):
        write({"a": value})
