"""The Lua scripts, one per store method, and how a command is written for the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import TypeAlias

from msgspec.msgpack import Encoder

Fact: TypeAlias = "str | int | float | bool | tuple[Fact, ...] | list[Fact]"
"""What a script may be told beside raw bytes. There is no None: a hole would end a list in Lua. False stands for it."""

Told: TypeAlias = tuple[tuple[Fact, ...], tuple[bytes, ...]]
"""What a script is told: facts, then raw bytes."""

_encode = Encoder().encode


def pack(command: tuple[bytes | str | int, ...]) -> bytes:
    """Return a command as it goes over the wire."""
    words = (word(part if isinstance(part, bytes) else str(part).encode()) for part in command)
    return b"*%d\r\n%b" % (len(command), b"".join(words))


def word(data: bytes) -> bytes:
    """Return one argument of a command as it goes over the wire."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, the name the server knows it by, and that name as a call begins with it."""

    source: str
    sha: str
    opening: bytes

    def by_name(self, tag: bytes, facts: tuple[Fact, ...], raw: tuple[bytes, ...]) -> bytes:
        """Return the call that runs the script where the server has it; `tag` is the namespace's as a word."""
        told = _encode(facts)
        rest = b"".join([b"$%d\r\n%b\r\n" % (len(data), data) for data in raw])
        return b"*%d\r\n%b%b$%d\r\n%b\r\n%b" % (5 + len(raw), self.opening, tag, len(told), told, rest)

    def in_full(self, tag: bytes, facts: tuple[Fact, ...], raw: tuple[bytes, ...]) -> bytes:
        """Return the call that brings the script along; the server has it from then on."""
        opening = word(b"EVAL") + word(self.source.encode()) + word(b"1")
        return b"".join((b"*%d\r\n" % (5 + len(raw)), opening, tag, word(_encode(facts)), *map(word, raw)))


def _read(name: str) -> str:
    """Return a file's Lua without its comments."""
    return re.sub(r"\s*--.*", "", (resources.files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")).strip()


def _definitions(part: str) -> list[tuple[re.Pattern[str], str]]:
    """Return what a part defines, in order: a pattern that finds its use, and its text."""
    found = []
    for text in re.split(r"\s+(?=^local )", _read(f"parts/{part}"), flags=re.MULTILINE):
        function, values = _DEFINES.match(text).groups()  # type: ignore[union-attr]  # a part holds nothing else
        names = re.findall(r"\w+", function or values)
        found.append((re.compile(rf"\b(?:{'|'.join(names)})\b"), text))
    return found


_DEFINES = re.compile(r"local (?:function (\w+)|([\w,\s]+?)(?: =|$))")
_PARTS = {part: _definitions(part) for part in ("step", "nonce", "turn", "task", "outbox", "revision")}


def _script(name: str, *parts: str) -> Script:
    """Read a script and what it uses of the parts it builds on.

    Only that, since each definition costs the server time in every call: all of them, as much as the work itself.
    """
    source = _read(name)
    for used, text in reversed([one for part in ("step", *parts) for one in _PARTS[part]]):
        if used.search(source):
            source = f"{text}\n{source}"
    # The server names scripts by SHA-1; nothing rests on it.
    sha = sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(source, sha, word(b"EVALSHA") + word(sha.encode()) + word(b"1"))


SPEND = _script("spend", "nonce")
PROBE = _script("probe")

CLAIM_TURN = _script("claim_turn", "nonce", "turn")
PEEK_TURN = _script("peek_turn", "turn")
RENEW_TURN = _script("renew_turn", "turn")
SAVE_TURN = _script("save_turn", "turn")
RELEASE_TURN = _script("release_turn", "turn")
FINISH_TURN = _script("finish_turn", "turn")

ADMIT_TASK = _script("admit_task", "nonce", "task", "outbox")
READ_TASK = _script("read_task", "nonce", "task")
LEASE_TASK = _script("lease_task", "task")
RENEW_TASKS = _script("renew_tasks", "task")
LOST_TASKS = _script("lost_tasks", "task")
COMMIT_TASK = _script("commit_task", "task", "outbox")
RELEASE_TASK = _script("release_task", "task")
DUE_TASKS = _script("due_tasks", "task")

DUE_HOSTS = _script("due_hosts", "outbox")
CLAIM_EVENTS = _script("claim_events", "task", "outbox")
SETTLE_EVENT = _script("settle_event", "outbox")

REGISTER_REVISIONS = _script("register_revisions", "revision")
KNOWN_REVISIONS = _script("known_revisions", "revision")
FORGET_REVISION = _script("forget_revision", "revision")
RUNNING_TURNS = _script("running_turns", "turn")
OPEN_TASKS = _script("open_tasks", "task")
LIST_TASKS = _script("list_tasks", "task")
LIST_EVENTS = _script("list_events", "task", "outbox")
RESEND_EVENT = _script("resend_event", "outbox")
PURGE = _script("purge", "turn", "task", "outbox")

ALL = tuple(value for value in globals().values() if isinstance(value, Script))
