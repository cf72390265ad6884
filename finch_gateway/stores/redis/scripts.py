"""The Lua scripts, one per store method, and how a command is written for the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import TypeAlias

Argument: TypeAlias = bytes | str | int | float


def _pack(command: tuple[Argument, ...]) -> bytes:
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _packer() -> Callable[[tuple[Argument, ...]], bytes]:
    try:
        from hiredis import pack_command
    except ImportError:
        return _pack
    return pack_command  # type: ignore[return-value]  # its stub asks for a tuple of exactly one


pack = _packer()
"""Return a command as it goes over the wire; a float goes as the shortest text that reads back as the same."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the name the server knows it by."""

    source: str
    sha: str

    def by_name(self, keys: tuple[bytes, ...], arguments: tuple[Argument, ...]) -> bytes:
        """Return the call that runs the script where the server has it."""
        return pack((b"EVALSHA", self.sha, len(keys), *keys, *arguments))

    def in_full(self, keys: tuple[bytes, ...], arguments: tuple[Argument, ...]) -> bytes:
        """Return the call that brings the script along; the server has it from then on."""
        return pack((b"EVAL", self.source, len(keys), *keys, *arguments))


def _read(name: str) -> str:
    return (resources.files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")


def _script(name: str) -> Script:
    source = _read("prelude") + _read(name)
    # The server names scripts by SHA-1; nothing rests on it.
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


SPEND = _script("spend")
PROBE = _script("probe")
CLAIM_TURN = _script("claim_turn")
PEEK_TURN = _script("peek_turn")
RENEW_TURN = _script("renew_turn")
SAVE_TURN = _script("save_turn")
RELEASE_TURN = _script("release_turn")
FINISH_TURN = _script("finish_turn")
REGISTER_REVISIONS = _script("register_revisions")
KNOWN_REVISIONS = _script("known_revisions")
FORGET_REVISION = _script("forget_revision")
RUNNING_TURNS = _script("running_turns")
PURGE = _script("purge")

ALL = (
    SPEND,
    PROBE,
    CLAIM_TURN,
    PEEK_TURN,
    RENEW_TURN,
    SAVE_TURN,
    RELEASE_TURN,
    FINISH_TURN,
    REGISTER_REVISIONS,
    KNOWN_REVISIONS,
    FORGET_REVISION,
    RUNNING_TURNS,
    PURGE,
)
