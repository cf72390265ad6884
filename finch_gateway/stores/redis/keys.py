"""What things are called: short names for what may be long or hostile, beside the namespace's tag."""

from __future__ import annotations

from hashlib import blake2b

from ...store import Nonce, TurnKey

_BLANK = blake2b(digest_size=16)


def tag_of(namespace: str) -> bytes:
    """Return what every key's name begins with; its braces keep all keys in one hash slot."""
    return b"{%b}" % namespace.encode()


# Lengths come first: the parts hold any character, and none may run into the next.


def nonce_name(nonce: Nonce) -> bytes:
    return _digest(f"{len(nonce.key_id)}:{nonce.key_id}{nonce.value}")


def turn_name(key: TurnKey) -> bytes:
    listing, invocation_id = key.listing, key.invocation_id
    return _digest(f"{len(listing)},{len(invocation_id)}:{listing}{invocation_id}{key.turn_id}")


def conversation_name(key: TurnKey, conversation_id: str, turn: bytes) -> bytes:
    """Return a conversation's name; `turn` is the turn's, for a turn outside any conversation.

    That is one of its own, so that no question reaches a stranger.
    """
    return _digest(f"{len(key.listing)}:{key.listing}{conversation_id}") if conversation_id else turn


def receipt_name(listing: str, invocation_id: str) -> bytes:
    return _digest(f"{len(listing)}:{listing}{invocation_id}")


def _digest(text: str) -> bytes:
    # A copy costs less than setting the length anew.
    digest = _BLANK.copy()
    digest.update(text.encode())
    return digest.digest()
