"""Several gateway processes on one socket: starts them, replaces those that die, ends them together."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from .observe import Log

START_TIMEOUT_S = 60.0
FIRST_RESTART_S = 0.5
SLOWEST_RESTART_S = 30.0
HEALTHY_AFTER_S = 30.0
TICK_S = 0.1
READY = b"1"
"""What a child writes into its pipe once it serves."""


@dataclass(slots=True)
class Worker:
    """One child process, begun at `began` on the monotonic clock."""

    process: subprocess.Popen[bytes]
    began: float


class Workers:
    """Runs `count` children. `arguments` is the child's command line; it inherits the socket and two pipes."""

    def __init__(self, arguments: Sequence[str], count: int, listener: socket.socket, log: Log, grace_s: float) -> None:
        self._arguments = list(arguments)
        self._count = count
        self._listener = listener
        self._log = log
        self._grace_s = grace_s
        # Closed by our end, even by kill -9: then no child outlives us.
        self._life_read, self._life_write = os.pipe()
        self._stopping = False
        self._restart_s = FIRST_RESTART_S

    def run(self, on_ready: Callable[[], None]) -> int:
        """Serve until a signal; return the exit status. A first child that cannot be configured ends it all."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        workers: list[Worker] = []
        try:
            # The first one alone, so that a wrong configuration is told once.
            for _ in range(self._count):
                worker, ready = self._spawn()
                workers.append(worker)
                if not ready:
                    return 0 if self._stopping else worker.process.poll() or 1
            on_ready()
            while not self._stopping:
                time.sleep(TICK_S)
                workers = [self._replace(worker) for worker in workers]
            return 0
        finally:
            self._end(workers)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _spawn(self) -> tuple[Worker, bool]:
        """Start a child and wait until it serves; False when it ended, or a signal came, before that."""
        ready_read, ready_write = os.pipe()
        descriptors = (self._listener.fileno(), self._life_read, ready_write)
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [
                sys.executable,
                "-m",
                "finch_gateway.cli",
                *self._arguments,
                "--inherited",
                ",".join(map(str, descriptors)),
            ],
            pass_fds=descriptors,
        )
        os.close(ready_write)
        worker = Worker(process, time.monotonic())
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(ready_read, selectors.EVENT_READ)
                while not self._stopping and time.monotonic() - worker.began < START_TIMEOUT_S:
                    if selector.select(TICK_S):
                        if os.read(ready_read, 1) == READY:
                            return worker, True
                        # The pipe ended without a word: the child is about to, and its status says why.
                        process.wait(START_TIMEOUT_S)
                        return worker, False
            return worker, False
        finally:
            os.close(ready_read)

    def _replace(self, worker: Worker) -> Worker:
        status = worker.process.poll()
        if status is None:
            if time.monotonic() - worker.began > HEALTHY_AFTER_S:
                self._restart_s = FIRST_RESTART_S
            return worker
        self._log.error("worker.ended", pid=worker.process.pid, status=status, restart_in_s=self._restart_s)
        pause_until = time.monotonic() + self._restart_s
        while not self._stopping and time.monotonic() < pause_until:
            time.sleep(TICK_S)
        self._restart_s = min(self._restart_s * 2, SLOWEST_RESTART_S)
        return worker if self._stopping else self._spawn()[0]

    def _end(self, workers: Sequence[Worker]) -> None:
        """Ask every child to drain, and end those that do not by the end of the grace time."""
        # The children have the socket too; once they have closed theirs, nobody is to wait in its queue.
        self._listener.close()
        for worker in workers:
            if worker.process.poll() is None:
                worker.process.terminate()
        until = time.monotonic() + self._grace_s
        for worker in workers:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        os.close(self._life_write)
        os.close(self._life_read)
