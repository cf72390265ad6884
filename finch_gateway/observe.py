"""One JSON line per outcome, on one stream, with Finch's ids and nothing that must stay private (wire 2.5).

Events have stable names (`turn.answered`, `request.refused`). Never logged: bodies, prompts, secrets,
signatures, URL queries, an exception's text. An exception is named by its type and its place in the code.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import PurePath
from typing import TextIO, TypeAlias

import msgspec

Field: TypeAlias = "str | int | float | bool | None"

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
MAX_FIELD_CHARS = 512
_encode = msgspec.json.Encoder().encode


class Log:
    """Writes events at or above `level` to `stream`, each as one line of ASCII JSON."""

    def __init__(
        self, level: str = "info", stream: TextIO | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._threshold = LEVELS[level]
        self._stream = stream
        self._clock = clock
        # A deque, because other threads' events come in beside this one's.
        self._unwritten: deque[str] = deque()
        self._flushing_loop: asyncio.AbstractEventLoop | None = None
        self._lost = 0

    def debug(self, event: str, **fields: Field) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Field) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Field) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Field) -> None:
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Field]) -> None:
        if LEVELS[level] < self._threshold:
            return
        record: dict[str, Field] = {"at": round(self._clock(), 3), "level": level, "event": event}
        for name, value in fields.items():
            if value is None or value == "":
                continue
            is_long = isinstance(value, str) and len(value) > MAX_FIELD_CHARS
            record[name] = value[:MAX_FIELD_CHARS] if is_long else value  # type: ignore[index]  # only a text is long
        if self._lost:
            record["lost_lines"] = self._lost
        self._unwritten.append(_line(record))
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
        else:
            # Once per turn of the loop: a busy turn has many events.
            if self._flushing_loop is not loop:
                self._flushing_loop = loop
                loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was not written yet."""
        self._flushing_loop = None
        lines = []
        while self._unwritten:
            lines.append(self._unwritten.popleft())
        try:
            # Resolved at each write, so that a stream replaced by its owner is honoured.
            (self._stream or sys.stderr).write("".join(lines))
        except (OSError, ValueError):
            # A full disk, a reader that has gone, a closed stream: no caller may lose an answer over it.
            self._lost += len(lines)
        else:
            self._lost = 0


def _line(record: dict[str, Field]) -> str:
    try:
        line = _encode(record)
    except UnicodeEncodeError:  # a lone surrogate, which the ASCII form below can say
        line = b""
    # ASCII only: a terminal or a log shipper must not meet U+2028, bidi marks or C1 controls.
    if line and line.isascii() and b"\x7f" not in line:
        return line.decode() + "\n"
    return json.dumps(record, separators=(",", ":")).replace("\x7f", "\\u007f") + "\n"


def blame(error: BaseException) -> dict[str, Field]:
    """Return an exception's type and place, never its text, as fields of an event."""
    frames = traceback.extract_tb(error.__traceback__)
    fields: dict[str, Field] = {"error_type": type(error).__name__}
    if frames:
        last = frames[-1]
        fields["error_at"] = f"{PurePath(last.filename).name}:{last.lineno} in {last.name}"
    if error.__cause__ is not None:
        fields["error_cause"] = type(error.__cause__).__name__
    return fields


class Sampler:
    """Lets the first events of a kind through in each period and counts the rest (wire 2.5)."""

    def __init__(self, most: int = 20, period_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._period_s = period_s
        self._clock = clock
        self._began = clock()
        self._seen: dict[str, int] = defaultdict(int)

    def admit(self, kind: str) -> tuple[bool, int]:
        """Return whether to log this event, and how many of all kinds the period that just ended held back."""
        held_back = 0
        now = self._clock()
        if now - self._began >= self._period_s:
            held_back = sum(max(0, count - self._most) for count in self._seen.values())
            self._seen.clear()
            self._began = now
        self._seen[kind] += 1
        return self._seen[kind] <= self._most, held_back


class LibraryLog(logging.Handler):
    """Carries other libraries' records into the log: who spoke and where, not what was said.

    A library's message can hold anything (a URL with its query, an exception's text, a prompt in a repr),
    so only the logger's name, the level and the place in the library's code pass.
    """

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Field] = {"logger": record.name, "at_code": f"{record.filename}:{record.lineno}"}
        event = "library.message"
        if record.name.startswith(OWN) and _EVENT_NAME.fullmatch(str(record.msg)):
            event, fields = str(record.msg), {"reason": getattr(record, "reason", None)}
        if record.exc_info and record.exc_info[1] is not None:
            fields |= blame(record.exc_info[1])
        if record.levelno >= logging.ERROR:
            self._log.error(event, **fields)
        elif record.levelno >= logging.WARNING:
            self._log.warning(event, **fields)
        else:
            self._log.info(event, **fields)


OWN = "finch_gateway"
"""Our own modules that have no `Log` at hand speak through loggers under this name, an event's name as the message."""

_EVENT_NAME = re.compile(r"[a-z_]+(\.[a-z_]+)+")
LIBRARIES = ("uvicorn", "asyncio", "httpcore2", "redis")


def adopt_libraries(log: Log) -> None:
    """Send the records of the libraries the gateway itself uses through `log`; an agent's own loggers stay its own."""
    handler = LibraryLog(log)
    for name in (*LIBRARIES, OWN):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if name == OWN else logging.WARNING)
