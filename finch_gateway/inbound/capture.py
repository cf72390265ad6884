"""The last refused requests, kept on this machine for a later look (`serve --capture N`)."""

from __future__ import annotations

import base64
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ..errors import Refusal
from ..observe import Log, blame

MAX_CAPTURED_BODY_BYTES = 64 * 1024
FORMAT = "finch-gateway capture 1"


class Capture:
    """Writes each refused request to a file of its own, readable by the owner only, and keeps the newest `most`."""

    def __init__(self, folder: Path, most: int, log: Log, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._most = most
        self._log = log
        self._clock = clock
        self._count = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._files = deque(sorted(folder.glob("refused-*.json")))

    def keep(
        self,
        method: bytes,
        target: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        refusal: Refusal,
    ) -> None:
        """Keep one request: its target and headers as they came, its body up to 64 KiB, and why it was refused."""
        now = self._clock()
        record = {
            "format": FORMAT,
            "at": now,
            "code": refusal.code,
            "reason": refusal.reason,
            "method": method.decode("latin-1"),
            "target": target.decode("latin-1"),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers],
            "body_base64": base64.b64encode(body[:MAX_CAPTURED_BODY_BYTES]).decode(),
            "body_bytes": len(body),
        }
        self._count += 1
        path = self._folder / f"refused-{int(now * 1000):013d}-{os.getpid()}-{self._count:06d}.json"
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(record))
            self._files.append(path)
            while len(self._files) > self._most:
                self._files.popleft().unlink(missing_ok=True)
        except OSError as error:
            # A full disk must not turn a refusal into a failure.
            self._log.warning("capture.failed", **blame(error))
