"""The store on Redis or Valkey: each method is one call of one script over one shared connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b

from ...errors import ConfigError, StoreUnavailable
from ...store import (
    Answered,
    ClearQuestion,
    Conflict,
    Free,
    Held,
    KeepQuestion,
    KnownRevision,
    Nonce,
    Replayed,
    Running,
    TurnClaim,
    TurnEnd,
    TurnKey,
    Verdict,
)
from . import scripts
from .address import SETTING, Address
from .checks import check_server, unreachable
from .connection import Limits, Reply, SharedConnection
from .failures import NotConnected, Refused
from .scripts import Argument, Script, pack

_NONSENSE = "the server's reply makes no sense"
_log = logging.getLogger(__name__)


class Keys:
    """The names of everything kept, all in one hash slot; what may be long or hostile is hashed to 16 bytes."""

    __slots__ = ("_conversation", "_nonce", "_turn", "probe", "revisions", "running")

    def __init__(self, namespace: str) -> None:
        tag = b"{%b}" % namespace.encode()
        self._nonce, self._turn, self._conversation = tag + b"n", tag + b"t", tag + b"c"
        self.running, self.revisions, self.probe = tag + b"running", tag + b"revisions", tag + b"probe"

    # Lengths come first: the parts hold any character, and none may run into the next.

    def nonce(self, nonce: Nonce) -> bytes:
        return self._nonce + _digest(f"{len(nonce.key_id)}:{nonce.key_id}{nonce.value}")

    def turn(self, key: TurnKey) -> bytes:
        listing, invocation_id = key.listing, key.invocation_id
        return self._turn + _digest(f"{len(listing)},{len(invocation_id)}:{listing}{invocation_id}{key.turn_id}")

    def conversation(self, key: TurnKey, conversation_id: str) -> bytes:
        if not conversation_id:
            # A turn outside any conversation is one of its own, so that no question reaches a stranger.
            return self._conversation + self.turn(key)[-16:]
        return self._conversation + _digest(f"{len(key.listing)}:{key.listing}{conversation_id}")


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


class RedisStore:
    """A `Store` that several instances share.

    `warnings` holds, after `open`, what an operator should know of the server.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "finch",
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ConfigError.one("store.namespace", "a namespace is at least one character, without braces")
        self._address = Address(url)
        self._keys = Keys(namespace)
        self._clock = clock
        loading = [pack(("SCRIPT", "LOAD", script.source)) for script in scripts.ALL]
        self.connection = SharedConnection(self._address, loading, limits or Limits())
        self.warnings: tuple[str, ...] = ()

    async def open(self) -> None:
        """Connect and check the server; raise `ConfigError` naming the setting and the remedy."""
        try:
            await self.connection.open()
        except NotConnected as error:
            raise unreachable(self._address, error) from None
        try:
            self.warnings = await check_server(self.connection, self._address, self._clock)
            await self.probe()
        except StoreUnavailable as error:
            await self.connection.close()
            remedy = "free its memory, see to its disk and its permissions, or name another server"
            raise ConfigError.one(SETTING, f"{self._address} takes no writes ({error}); {remedy}") from None
        except BaseException:
            await self.connection.close()
            raise
        for warning in self.warnings:
            _log.warning("store.warning", extra={"reason": warning})

    async def close(self) -> None:
        """Let the calls under way end, and disconnect."""
        await self.connection.close()

    # Admission

    async def spend(self, nonce: Nonce, now: float) -> bool:
        """Consume a nonce; False when it was consumed before by another operation."""
        return await self._run(scripts.SPEND, (self._keys.nonce(nonce),), now, nonce.op, nonce.expires_at) == 1

    async def probe(self) -> None:
        """Write something small; raise `StoreUnavailable` when that fails."""
        if await self._run(scripts.PROBE, (self._keys.probe,)) != 1:
            raise StoreUnavailable(_NONSENSE)

    # Turns

    async def claim_turn(self, claim: TurnClaim, now: float) -> Verdict:
        """Spend the claim's nonce, then say what is known of the turn or hand it over."""
        key, nonce = claim.key, claim.nonce
        lease_until = now + claim.lease_s
        keep_until = max(claim.keep_until, lease_until)
        keys: tuple[bytes, ...] = (
            self._keys.turn(key),
            self._keys.conversation(key, claim.conversation_id),
            self._keys.running,
        )
        arguments: tuple[Argument, ...] = (
            now,
            claim.input_digest,
            claim.key_id,
            claim.op,
            lease_until,
            keep_until,
            "1" if claim.may_start else "0",
            claim.facts,
            f"{key.listing}\n{key.invocation_id}\n{key.turn_id}\n{claim.conversation_id}",
        )
        if nonce:
            keys = (*keys, self._keys.nonce(nonce))
            arguments = (*arguments, nonce.op, nonce.expires_at)
        return _verdict(await self._run(scripts.CLAIM_TURN, keys, *arguments))

    async def peek_turn(self, key: TurnKey, now: float) -> Running | Answered | Free:
        """Say where a turn stands, changing nothing."""
        verdict = _verdict(await self._run(scripts.PEEK_TURN, (self._keys.turn(key),), now))
        if isinstance(verdict, Running | Answered | Free):
            return verdict
        raise StoreUnavailable(_NONSENSE)

    async def renew_turn(self, key: TurnKey, epoch: int, lease_until: float, now: float) -> bool:
        """Move the lease's end; False when the epoch no longer holds the turn."""
        keys = (self._keys.turn(key), self._keys.running)
        return await self._run(scripts.RENEW_TURN, keys, now, epoch, lease_until) == 1

    async def save_turn(self, key: TurnKey, epoch: int, saved: bytes, now: float) -> bool:
        """Keep what the agent saved; False when the epoch no longer holds the turn."""
        return await self._run(scripts.SAVE_TURN, (self._keys.turn(key),), now, epoch, saved) == 1

    async def release_turn(self, key: TurnKey, epoch: int, now: float) -> bool:
        """Give the turn back unanswered; True also for the same epoch once more."""
        return await self._run(scripts.RELEASE_TURN, (self._keys.turn(key), self._keys.running), now, epoch) == 1

    async def finish_turn(self, end: TurnEnd, now: float) -> bool:
        """Write the answer and the conversation's record; True also for the same end once more."""
        turn = self._keys.turn(end.key)
        effect: tuple[Argument, ...] = ()
        match end.question:
            case KeepQuestion(record, keep_until):
                # A turn ends once, so its name and epoch make a version that no other question has.
                version = f"{turn[-16:].hex()}.{end.epoch}"
                effect = ("keep", version, keep_until, record)
            case ClearQuestion(version):
                effect = ("clear", version)
        keys = (turn, self._keys.conversation(end.key, end.conversation_id), self._keys.running)
        arguments = (now, end.epoch, end.reply, end.keep_until, *effect)
        return await self._run(scripts.FINISH_TURN, keys, *arguments) == 1

    # Operator

    async def register_revisions(self, revisions: Sequence[KnownRevision]) -> Sequence[KnownRevision]:
        """Record revisions not seen before; return those held under another fingerprint or listing."""
        rows: list[Argument] = []
        for one in revisions:
            rows += (one.key_id, one.listing, one.fingerprint, one.first_seen)
        return _revisions(await self._run(scripts.REGISTER_REVISIONS, (self._keys.revisions,), *rows))

    async def known_revisions(self) -> Sequence[KnownRevision]:
        """Return every revision this store has seen, oldest first."""
        known = _revisions(await self._run(scripts.KNOWN_REVISIONS, (self._keys.revisions,)))
        return sorted(known, key=lambda one: (one.first_seen, one.key_id))

    async def forget_revision(self, key_id: str) -> bool:
        """Drop a revision's record; False when it was not known."""
        return await self._run(scripts.FORGET_REVISION, (self._keys.revisions,), key_id) == 1

    async def running_turns(self, now: float) -> dict[str, int]:
        """Return the number of turns under a live lease by key id."""
        flat = _list(await self._run(scripts.RUNNING_TURNS, (self._keys.running,), now))
        return {_text(key_id): _integer(count) for key_id, count in zip(flat[::2], flat[1::2], strict=True)}

    async def purge(self, now: float, limit: int) -> int:
        """Drop up to `limit` entries of ended leases; everything else expires on the server by itself."""
        return _integer(await self._run(scripts.PURGE, (self._keys.running,), now, limit))

    async def _run(self, script: Script, keys: tuple[bytes, ...], *arguments: Argument) -> Reply:
        answer = await self.connection.call(script.by_name(keys, arguments))
        if isinstance(answer, Refused) and answer.code == "NOSCRIPT":
            # The server's scripts were flushed; bringing the script along cannot fail the same way.
            answer = await self.connection.call(script.in_full(keys, arguments))
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer


def _verdict(reply: Reply) -> Verdict:
    match reply:
        case [b"held", int() as epoch, int() as attempt, bytes() | None as saved, bytes() | None as question, version]:
            return Held(epoch, attempt, saved, question, _text(version))
        case [b"running", lease_until]:
            return Running(float(_text(lease_until)))
        case [b"answered", bytes() as answer]:
            return Answered(answer)
        case [b"conflict"]:
            return Conflict()
        case [b"replayed"]:
            return Replayed()
        case [b"free"]:
            return Free()
    raise StoreUnavailable(_NONSENSE)


def _revisions(reply: Reply) -> list[KnownRevision]:
    rows = ([_text(cell) for cell in _list(row)] for row in _list(reply))
    return [KnownRevision(key_id, listing, mark, float(seen)) for key_id, listing, mark, seen in rows]


def _list(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise StoreUnavailable(_NONSENSE)
    return reply


def _text(reply: Reply) -> str:
    if not isinstance(reply, bytes):
        raise StoreUnavailable(_NONSENSE)
    return reply.decode()


def _integer(reply: Reply) -> int:
    if not isinstance(reply, int):
        raise StoreUnavailable(_NONSENSE)
    return reply
