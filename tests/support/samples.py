"""Hostile samples, by what they replace: the raw material of `mutations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .finch import Headers

ODD_VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 1.5, -0.0, 1e308, "", " ", "0", "x", "2.0", "null",
    "é\u2028\x1b[0m", "a\r\nb", "\x00", "\U0001f600" * 40, "x" * 10_001, [], [[]], [None], {}, {"": ""},
    {"type": "text"},
    "task", "generation", "conversation_turn", "../../etc/passwd", "2030-01-01T00:00:00Z",
    [{"type": "text", "text": 7}],
)  # fmt: skip
ODD_INSTANTS = (
    "", "now", "2030-01-01", "2030-01-01T00:00:00", "2030-13-01T00:00:00Z", "2030-01-01T24:00:00Z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999999-23:59", "1970-01-01T00:00:00Z", "2030-01-01t00:00:00z", "٢٠٣٠-01-01T00:00:00Z",
    1893456000, None,
)  # fmt: skip
ODD_QUANTITIES = (
    "1e3",
    "-1",
    "+1",
    "1.",
    ".5",
    "１",
    "0x10",
    " 1",
    "1" * 31,
    "NaN",
    -1,
    1e60,
    1e-300,
    True,
    [],
    "1.000",
    0,
)
ODD_SUFFIXES = (
    b"/", b"//", b"/.", b"/..", b"?", b"??", b"?a=1", b"?a=%00&a=%ff", b"#", b"#x", b"%2f", b"%00", b";a=b",
    b"/tasks/x", b"|", b"\\",
    b"{x}", b"?%", b"?a=1#b", b"/\xc3\xa9", b"?" + b"q" * 3000, b"*", b"?http://x/", b":", b"@", b'"', b"^", b"<",
    b"`",
)  # fmt: skip
ODD_PATHS = (b"", b"/", b"/HEALTH", b"/Invoke", b"/%69nvoke", b"/invoke/../health", b"//invoke", b"x", b"/tasks")
ODD_METHODS = ("PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "GET", "POST", "PROPFIND")
UNKNOWN_METHODS = ("post", "Post", "POSTS", "FOO", "CONNECT", "PRI", "M-SEARCH", "P\x7fST", "")
ODD_HEADERS: Headers = [
    (b"Content-Type", b"text/xml"), (b"Content-Type", b""), (b"Idempotency-Key", b"a\x1b[31m\xe2\x80\xa8"),
    (b"Accept", b"*/*"),
    (b"traceparent", b"00-" + b"0" * 32), (b"X-Forwarded-Prefix", b"/finch"), (b"X-HTTP-Method-Override", b"DELETE"),
    (b"X-Original-URL", b"/finch/v2/health"), (b"Cookie", b"a=b; " * 200), (b"Expect", b"100-continue"),
    (b"TE", b"trailers"),
    (b"X-Agent-Key-Id", b"x"), (b"X-Agent-Signature", b"v1=" + b"0" * 64), (b"Content-Encoding", b"identity"),
    (b"Range", b"bytes=0-1"),
]  # fmt: skip
ODD_JSON = (
    b"", b" ", b"null", b"[]", b'"x"', b"1", b"{", b"}", b"{}{}", b"{},", b"{'a':1}", b"{a:1}", b"{\"a\":NaN}",
    b"{\"a\":-Infinity}",
    b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"{\"a\":\"\xff\"}", b"{\"a\":\"\xed\xa0\x80\"}", b'{"a":"\\ud800"}',
    b'{"a":1e400}',
    b'{"a":"\x01"}', b'{"a":01}', b'{"a":1,"a":2}', b"[" * 9_000, b'{"a":' * 9_000, b"//\n{}", b"{\"a\":.5}",
    b"\x00", b"{}\x00",
)  # fmt: skip
SURROUNDINGS = {
    "suffix": 14,
    "path": 10,
    "method": 12,
    "unknown method": 3,
    "encoding": 10,
    "header": 10,
    "large": 8,
    "chunked": 10,
    "stale": 5,
    "body": 3,
    "own nonce": 2,
    "nonce": 4,
}
"""How a request can be damaged around its body, and how often that is done."""

TAMPERINGS = {
    "body": 12,
    "target": 12,
    "method": 6,
    "header gone": 8,
    "header twice": 8,
    "header changed": 14,
    "key": 6,
    "secret": 8,
    "replay": 8,
    "wire": 8,
    "flip": 5,
    "harmless": 5,
}
"""What can be done to a request after it was signed, and how often."""
