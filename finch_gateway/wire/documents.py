"""JSON as this wire allows it: read strictly, compared as values, written once (wire 1.3, 2.3, 5.2).

Reading runs fast first: one C decoder, one walk that counts object keys. Only where that count leaves
doubt about a repeated key does the slower, exact reader decide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, TypeAlias, cast

import msgspec

from ..errors import Refusal

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = "dict[str, Json]"

MAX_DEPTH = 64

_FLOAT = re.compile(rb"[:,\[]-?[0-9]+[.eE]")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="sorted").encode
_encode_text = msgspec.json.Encoder().encode


def read_object(body: bytes) -> JsonObject:
    """Return the one JSON object that `body` is; raise `Refusal("body_invalid")` for anything else.

    Refused: not UTF-8, a byte order mark, several documents, a repeated key, NaN or Infinity, a number
    too large to hold, lone surrogates, nesting over 64, anything but an object at the root.
    """
    try:
        value = _decode(body)
    except (ValueError, RecursionError) as error:
        raise Refusal("body_invalid", reason="json_syntax") from error
    if not isinstance(value, dict):
        raise Refusal("body_invalid", reason="json_not_object")
    if _encode_text(value) == body and body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        # Written back as it came, so no key is there twice: that is how Finch writes, and it is checked fastest.
        return value
    if _count_keys(value, 1) != _count_key_ends(body):
        # A string that holds `":` lands here too; the exact reader tells the two apart.
        _refuse_repeated_keys(body)
    return value


def _count_keys(fields: dict[str, Json], depth: int) -> int:
    return len(fields) + _count_below(fields.values(), depth)


def _count_below(children: Iterable[Json], depth: int) -> int:
    if depth > MAX_DEPTH:
        raise Refusal("body_invalid", reason="json_depth")
    count = 0
    for child in children:
        if type(child) is dict:
            count += len(child) + _count_below(child.values(), depth + 1)
        elif type(child) is list:
            count += _count_below(child, depth + 1)
    return count


def _count_key_ends(body: bytes) -> int:
    """Count what can end a key: never fewer than there are keys, more where a string looks like an end."""
    return body.translate(None, b" \t\r\n").count(b'":')


def _refuse_repeated_keys(body: bytes) -> None:
    def pairs(items: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in items}) != len(items):
            raise Refusal("body_invalid", reason="json_repeated_key")

    json.loads(body, object_pairs_hook=pairs)


def read_value(document: bytes) -> Json:
    """Return the value of JSON that this gateway wrote itself."""
    return cast("Json", _decode(document))


def write(value: object) -> bytes:
    """Return `value` as compact UTF-8 JSON; raise `ValueError` for what JSON cannot say (NaN, lone surrogates)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (TypeError, RecursionError) as error:
        raise ValueError("not representable as JSON") from error


def write_text(value: object) -> bytes:
    """Return `value` as `write` does, only faster; for values without a float in them. Raises `ValueError`."""
    return _encode_text(value)


def digest(value: object) -> str:
    """Return a hash under which two values are equal exactly when they are equal as JSON values (wire 5.2)."""
    text = _encode_sorted(value)
    if _FLOAT.search(text):
        # A float can be equal to an integer: 1.0 is 1. (A string that looks like one costs a little time.)
        text = _encode_sorted(_plain(value))
    return sha256(text).hexdigest()


def _encode_sorted(value: object) -> bytes:
    try:
        return _encode(value)
    except OverflowError:  # an integer over 64 bits
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(child) for name, child in value.items()}
    if isinstance(value, list):
        return [_plain(child) for child in value]
    return value
