"""uvicorn's two HTTP parsers, brought to one verdict (docs/http-parsers.md).

httptools cuts a fragment and an absolute form off the target before the application sees it: here the whole
target travels along. h11 accepts bare line feeds, folded headers, two framings and repeated lengths, all of
which httptools refuses: here h11 refuses them too.
"""

from __future__ import annotations

import re
from typing import Any, cast

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from .edge import TARGET_KEY

_FRAMING = re.compile(rb"(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)


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
    if sum(1 for line in lines[1:] if _FRAMING.match(line)) > 1:
        raise h11.RemoteProtocolError("the body is framed twice")


class StrictH11Protocol(H11Protocol):
    """uvicorn's h11 protocol with the strictness of httptools."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # h11 has no public hook before it parses a header block; the buffer it reads from is the narrowest one.
        self.conn._receive_buffer = _StrictBuffer()


def whole_target_httptools() -> type[Any]:
    """Return uvicorn's httptools protocol, made to pass on the whole target; raise `ImportError` without httptools."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class WholeTargetHttpToolsProtocol(HttpToolsProtocol):
        def on_headers_complete(self) -> None:
            # A lone trailing `?` is no part of the target (wire 1.2); ASGI would not show it either.
            lone = self.url.endswith(b"?") and self.url.count(b"?") == 1
            cast("dict[str, Any]", self.scope)[TARGET_KEY] = self.url[:-1] if lone else self.url
            super().on_headers_complete()

    return WholeTargetHttpToolsProtocol
