"""uvicorn's two HTTP parsers, brought to one verdict (docs/http-parsers.md).

httptools cuts a fragment and an absolute form off the target before the application sees it: here the whole
target travels along. What only one of the two refuses, and a proxy in front could read otherwise, both refuse:
h11 accepts bare line feeds, folded headers, control characters, two framings, lengths in a list and any version;
httptools accepts no version at all, other codings before `chunked`, no host or two, and puts trailers among the
headers. Neither knows what to do with a body under an upgrade that is not granted.
"""

from __future__ import annotations

import re
from typing import Any, cast

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from .edge import TARGET_KEY

_OTHER_VERSION = re.compile(rb" HTTP/(?!1\.[01]$)")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FRAMING = re.compile(rb"(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)
_PLAIN_FRAMING = re.compile(rb"[^:]+:[ \t]*([0-9]+|chunked)[ \t]*", re.IGNORECASE)
_UPGRADE = re.compile(rb"upgrade[ \t]*:", re.IGNORECASE)


class _StrictBuffer(ReceiveBuffer):
    """Refuses header blocks that h11 would repair."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        before = bytes(self._data)
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if lines:
            head = before[: len(before) - len(self._data)]
            _refuse_lenient_forms(head, lines)
        return lines


def _refuse_lenient_forms(head: bytes, lines: list[bytearray]) -> None:
    if head.count(b"\n") != head.count(b"\r\n"):
        raise h11.RemoteProtocolError("a line ends in a bare line feed")
    if any(line.startswith((b" ", b"\t")) for line in lines[1:]):
        raise h11.RemoteProtocolError("a header is folded")
    if _CONTROL.search(head):
        raise h11.RemoteProtocolError("a control character")
    if _OTHER_VERSION.search(lines[0]):
        raise h11.RemoteProtocolError("not HTTP/1.0 or 1.1")
    framings = [line for line in lines[1:] if _FRAMING.match(line)]
    if len(framings) > 1 or not all(_PLAIN_FRAMING.fullmatch(line) for line in framings):
        raise h11.RemoteProtocolError("the body's framing is in doubt")
    if framings and any(_UPGRADE.match(line) for line in lines[1:]):
        raise h11.RemoteProtocolError("a body under an upgrade")


class StrictH11Protocol(H11Protocol):
    """uvicorn's h11 protocol with the strictness of httptools."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # h11 has no public hook before it parses a header block; the buffer it reads from is the narrowest one.
        self.conn._receive_buffer = _StrictBuffer()

    def send_400_response(self, msg: str) -> None:
        # Where an answer has begun, h11 would not let a second one begin.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


def _refuse_doubtful_heads(version: str, headers: list[tuple[bytes, bytes]]) -> None:
    """Raise `ValueError`, which the parser answers with a 400, for heads that h11 refuses and llhttp does not."""
    if version not in ("1.0", "1.1"):
        raise ValueError("not HTTP/1.0 or 1.1")
    names = [name for name, _ in headers]
    if names.count(b"host") > 1 or (version == "1.1" and b"host" not in names):
        raise ValueError("not one host")
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    framings = len(codings) + names.count(b"content-length")
    if framings > 1 or codings not in ([], [b"chunked"]):
        raise ValueError("the body's framing is in doubt")
    if framings and b"upgrade" in names:
        raise ValueError("a body under an upgrade")


def whole_target_httptools() -> type[Any]:
    """Return uvicorn's httptools protocol, made to pass on the whole target; raise `ImportError` without httptools."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class WholeTargetHttpToolsProtocol(HttpToolsProtocol):
        def on_headers_complete(self) -> None:
            # A lone trailing `?` is no part of the target (wire 1.2); ASGI would not show it either.
            lone = self.url.endswith(b"?") and self.url.count(b"?") == 1
            scope = cast("dict[str, Any]", self.scope)
            scope[TARGET_KEY] = self.url[:-1] if lone else self.url
            _refuse_doubtful_heads(self.parser.get_http_version(), self.headers)
            # A copy, because trailers go on being added to the parser's own list.
            scope["headers"] = list(self.headers)
            super().on_headers_complete()

    return WholeTargetHttpToolsProtocol
