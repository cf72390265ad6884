"""JSON as this wire allows it: read strictly, compared as values, written once (wire 1.3, 2.3, 5.2).

Reading runs fast first: one C decoder, one walk that counts object keys. Only where that count leaves
doubt about a repeated key does the slower, exact reader decide.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, TypeAlias, cast

import msgspec

from ..errors import Refusal

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = "dict[str, Json]"

MAX_DEPTH = 64

_KEY_END = re.compile(rb'"[ \t\r\n]*:')
_decode = msgspec.json.Decoder().decode


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
    keys = _count_keys(value, 1)
    if keys != len(_KEY_END.findall(body)):
        # A string that holds `":` lands here too; the exact reader tells the two apart.
        _refuse_repeated_keys(body)
    return value


def _count_keys(value: Json, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise Refusal("body_invalid", reason="json_depth")
    count = 0
    children: Iterable[Json]
    if isinstance(value, dict):
        count = len(value)
        children = value.values()
    else:
        children = cast("list[Json]", value)
    for child in children:
        if isinstance(child, dict | list):
            count += _count_keys(child, depth + 1)
    return count


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


def digest(value: object) -> str:
    """Return a hash under which two values are equal exactly when they are equal as JSON values (wire 5.2)."""
    text = json.dumps(_plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    return value
