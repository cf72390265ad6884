"""Hostile requests from a fixed seed: sound turns and health calls, each damaged in one or two ways.

Every second one is signed again after the damage, so that it passes the door and meets what lies behind it;
the others are damaged after they were signed. `Mutations.make` returns them as the bytes that go over the wire.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .finch import Finch, Headers, request_bytes
from .samples import (
    ODD_HEADERS,
    ODD_INSTANTS,
    ODD_JSON,
    ODD_METHODS,
    ODD_PATHS,
    ODD_QUANTITIES,
    ODD_SUFFIXES,
    ODD_VALUES,
    SURROUNDINGS,
    TAMPERINGS,
    UNKNOWN_METHODS,
)

Envelope = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A listing to attack. `fields` are what a sound envelope of it holds beside the usual."""

    finch: Finch
    weight: int
    fields: Envelope = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One hostile request. `alone`: it may leave a connection in a state where no second request can follow."""

    name: str
    raw: bytes
    finch: Finch
    resigned: bool
    alone: bool


@dataclass(slots=True)
class Draft:
    """A request before its framing. `headers` come beside the four that prove it."""

    finch: Finch
    method: str
    target: bytes
    body: bytes
    headers: Headers
    timestamp: int
    nonce: str
    proof: Headers | None = None
    is_chunked: bool = False
    alone: bool = False

    def sign(self) -> Headers:
        return self.finch.signed(self.method, self.target, self.body, timestamp=self.timestamp, nonce=self.nonce)


class Mutations:
    """Makes mutants; `known` are identities already answered, which a mutant may use again."""

    def __init__(self, targets: Sequence[Target], seed: int, *, limit_bytes: int) -> None:
        self._targets = targets
        self._random = random.Random(seed)
        self._limit_bytes = limit_bytes
        self._count = 0
        self._sent: list[bytes] = []
        self.known: list[tuple[Finch, Envelope]] = []

    def make(self) -> Mutant:
        """Return the next hostile request."""
        self._count += 1
        draft, envelope = self._sound()
        if self._count % 2:
            return self._resigned(draft, envelope)
        return self._tampered(draft)

    # Sound requests

    def _sound(self) -> tuple[Draft, Envelope]:
        target = self._random.choices(self._targets, [target.weight for target in self._targets])[0]
        envelope = self.envelope(target)
        draft = Draft(
            target.finch,
            "POST",
            f"{target.finch.mount}/invoke".encode(),
            b"",
            [(b"Content-Type", b"application/json"), (b"Idempotency-Key", self._hex())],
            int(time.time()),
            self._hex().decode(),
        )
        if self._random.random() < 0.1:
            draft.method, draft.target, draft.headers = "GET", f"{target.finch.mount}/health".encode(), []
        else:
            draft.body = json.dumps(envelope).encode()
        return draft, envelope

    def envelope(self, target: Target) -> Envelope:
        """Return a sound envelope with ids of this seed's own."""
        ids = [self._uuid() for _ in range(3)]
        own = ids[0] if target.finch.wire_protocol == "finch_v2" else f"ivk_{ids[0].replace('-', '')}"
        return target.finch.envelope(
            f"text {self._count}", invocation_id=own, turn_id=ids[1], conversation_id=ids[2], **target.fields
        )

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128)))

    def _hex(self) -> bytes:
        return b"%032x" % self._random.getrandbits(128)

    # Damage before the signature

    def _resigned(self, draft: Draft, envelope: Envelope) -> Mutant:
        if draft.method == "POST":
            damages = [self._odd_field, self._odd_meaning, self._odd_bytes, self._repeat, self._odd_request]
            damage = self._random.choices(damages, [30, 25, 15, 8, 22])[0]
            name = damage(draft, envelope)
            if self._random.random() < 0.1:
                name += "+" + self._odd_request(draft, envelope)
        else:
            name = self._odd_request(draft, envelope)
        draft.proof = draft.sign()
        return self._mutant(name, draft, resigned=True)

    def _odd_field(self, draft: Draft, envelope: Envelope) -> str:
        """Remove, replace or add a field somewhere in the envelope."""
        place = self._pick_place(envelope)
        if isinstance(place, list) and not place:
            place.append(self._random.choice(ODD_VALUES))
        else:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = self._random.choice([*keys, "unknown"]) if isinstance(place, dict) else self._random.choice(keys)
            if self._random.random() < 0.3 and key != "unknown":
                del place[key]
            else:
                place[key] = self._random.choice(ODD_VALUES)
        draft.body = json.dumps(envelope).encode()
        return "field"

    def _pick_place(self, envelope: Envelope) -> Any:
        places: list[Any] = [envelope]
        for place in places:
            children = place.values() if isinstance(place, dict) else place
            places.extend(child for child in children if isinstance(child, dict | list) and child)
        return self._random.choice(places)

    def _odd_meaning(self, draft: Draft, envelope: Envelope) -> str:
        """Put a value of a right type and a wrong meaning into a field that decides something."""
        is_new = draft.finch.wire_protocol == "finch_v2"
        shape = envelope if is_new else envelope["agent"]
        pick = self._random.choice
        asked, limits = envelope["input"], envelope["limits"]
        priced = envelope if is_new else envelope["commercial"]
        one = {"type": "text", "text": "x"}
        damages: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
            ("mode", shape, {"interaction_mode": pick(("task", "generation", "direct", "", "conversation_turn "))}),
            ("protocol", envelope, {"protocol_version": pick(("1.0", "2", "2.00", "3.0", 2.0, 2, [], ""))}),
            ("version", envelope, {"service_version_id": self._uuid()}),
            ("deadline", limits, {"deadline_at": pick(ODD_INSTANTS)}),
            ("quantity", priced, {"quantity": pick(ODD_QUANTITIES)}),
            ("parts", asked, {"content": [one] * pick((0, 1, 100, 101))}),
            ("part", asked, {"content": [{"type": pick(("text", "image", "", 7)), "text": pick(ODD_VALUES)}]}),
            ("id", envelope, {"invocation_id": envelope["invocation_id"] + pick(("0", "\n", " ", "é", "-"))}),
            ("form", envelope, {"input": {"n": pick(ODD_VALUES)}}),
            ("deep", envelope, {"unknown": nested(pick((62, 63, 64, 65, 500)))}),
        ]
        name, place, fields = pick(damages)
        place.update(fields)
        draft.body = json.dumps(envelope).encode()
        return name

    def _odd_bytes(self, draft: Draft, envelope: Envelope) -> str:
        """Damage the body as bytes."""
        body = draft.body
        at = self._random.randrange(len(body))
        choice = self._random.randrange(8)
        if choice <= 1:
            draft.body = self._random.choice(ODD_JSON)
        elif choice == 2:
            draft.body = body[:at]
        elif choice == 3:
            draft.body = body[:at] + bytes([self._random.randrange(256)]) + body[at + 1 :]
        elif choice == 4:
            draft.body = body[:-1] + b', "protocol_version": "2.0"}'
        elif choice == 5:
            draft.body = body.decode().encode(self._random.choice(("utf-16", "utf-32", "utf-8-sig")))
        elif choice == 6:
            draft.body = body + self._random.choice((b"x", b"{}", b"\x00", b",", b"\n\n", b" "))
        else:
            # Odd to look at, the same by value.
            draft.body = (
                json.dumps(envelope, indent=self._random.choice((None, 1, 7)), ensure_ascii=True).encode() + b"\r\n"
            )
        return f"bytes {choice}"

    def _repeat(self, draft: Draft, envelope: Envelope) -> str:
        """Use an identity that has its answer: with the same input, or with another."""
        finch, before = self._random.choice(self.known)
        again = json.loads(json.dumps(before))
        draft.finch, draft.target = finch, f"{finch.mount}/invoke".encode()
        again["limits"] = envelope["limits"]
        name = "repeat"
        if self._random.random() < 0.7:
            again["input"]["content"][0]["text"] = f"another {self._count}"
            name = "conflict"
        draft.body = json.dumps(again).encode()
        return name

    def _odd_request(self, draft: Draft, envelope: Envelope) -> str:
        """Damage what surrounds the body."""
        pick, odd_nonces = self._random.choice, ("x" * 256, "x" * 257, "a b", "a:b*{c}" + draft.nonce, "é")
        encoding = (b"Content-Encoding", pick((b"gzip", b"br", b"deflate", b"GZIP", b"identity, gzip", b"x")))
        limit = self._limit_bytes
        damages: dict[str, dict[str, Any]] = {
            "suffix": {"target": draft.target + pick(ODD_SUFFIXES)},
            "path": {"target": draft.finch.mount.encode() + pick(ODD_PATHS)},
            "method": {"method": pick(ODD_METHODS)},
            "unknown method": {"method": pick(UNKNOWN_METHODS), "alone": True},
            "encoding": {"headers": [*draft.headers, encoding]},
            "header": {"headers": [*draft.headers, pick(ODD_HEADERS)]},
            "large": {"body": draft.body.ljust(pick((limit - 1, limit, limit + 1, 2 * limit)))},
            "chunked": {"is_chunked": bool(draft.body)},
            "stale": {"timestamp": draft.timestamp + pick((-400, 400, -(10**6), 10**6, 10**9))},
            "body": {"body": b"" if draft.body else b"{}"},
            "own nonce": {"nonce": "fgw-" + draft.nonce},
            "nonce": {"nonce": pick(odd_nonces)},
        }
        name = self._random.choices(list(SURROUNDINGS), list(SURROUNDINGS.values()))[0]
        for attribute, value in damages[name].items():
            setattr(draft, attribute, value)
        return name

    # Damage after the signature

    def _tampered(self, draft: Draft) -> Mutant:
        draft.proof = draft.sign()
        name = self._random.choices(list(TAMPERINGS), list(TAMPERINGS.values()))[0]
        if name == "replay" and self._sent:
            return Mutant("replay", self._random.choice(self._sent), draft.finch, resigned=False, alone=True)
        if name in ("wire", "flip"):
            raw = self._damaged_wire(self._framed(draft)) if name == "wire" else self._flipped(self._framed(draft))
            return Mutant(name, raw, draft.finch, resigned=False, alone=True)
        self._tamper(name, draft)
        return self._mutant(f"tampered {name}", draft, resigned=False)

    def _tamper(self, name: str, draft: Draft) -> None:
        pick, proof = self._random.choice, draft.proof or []
        match name:
            case "body":
                draft.body = draft.body[:-1] + b" }" if draft.body else b"{}"
            case "target":
                draft.target += pick(ODD_SUFFIXES)
            case "method":
                draft.method = pick(ODD_METHODS)
            case "key":
                ids = [*(target.finch.key_id for target in self._targets), "unknown", "x" * 300]
                proof[0] = (proof[0][0], pick(ids).encode())
            case "secret":
                stranger = replace(draft.finch, secret=b"another secret")
                draft.proof = stranger.signed(draft.method, draft.target, draft.body)
            case "harmless":
                draft.headers = [*draft.headers, pick(ODD_HEADERS)]
            case _:
                self._tamper_with_proof(name, proof)

    def _tamper_with_proof(self, name: str, proof: Headers) -> None:
        pick, at = self._random.choice, self._random.randrange(4)
        header, value = proof[at]
        if name == "header gone":
            del proof[at]
        elif name == "header twice":
            proof.insert(self._random.randrange(5), (pick((header, header.lower())), pick((value, b"other"))))
        else:
            longer = (value + b"0", value + b", " + value, b"+" + value, value * 40, b"v1=" + value)
            proof[at] = (header, pick((value[:-1], value.upper(), b"", value[:-1] + b"\xe9", *longer)))

    def _flipped(self, raw: bytes) -> bytes:
        at = self._random.randrange(raw.index(b"\r\n\r\n") + 4)
        return raw[:at] + bytes([self._random.randrange(256)]) + raw[at + 1 :]

    def _damaged_wire(self, raw: bytes) -> bytes:
        head, _, body = raw.partition(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        length = str(len(body)).encode()
        return self._random.choice(
            (
                raw.replace(b"\r\n", b"\n"),
                raw.replace(b"X-Platform-Nonce: ", b"X-Platform-Nonce:\r\n "),
                raw.replace(b"X-Platform-Key-Id:", b"X-Platform-Key-Id :"),
                raw.replace(b" HTTP/1.1", b" HTTP/9.9"),
                raw.replace(b" HTTP/1.1", b""),
                first.replace(b" ", b"\t") + b"\r\n" + rest + b"\r\n\r\n" + body,
                head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + body,
                head + b"\r\nContent-Length: " + length + b"\r\nContent-Length: " + length + b"\r\n\r\n" + body,
                head + b"\r\nContent-Length: -1\r\n\r\n" + body,
                head + b"\r\nX: a\x00b\r\n\r\n" + body,
                head + b"\r\n: empty\r\n\r\n" + body,
                b"GET " + first.split(b" ")[1] + b" HTTP/1.1\r\n\r\n",
                first.replace(b" /", b" http://gateway.test/") + b"\r\n" + rest + b"\r\n\r\n" + body,
            )
        )

    # Framing

    def _mutant(self, name: str, draft: Draft, *, resigned: bool) -> Mutant:
        raw = self._framed(draft)
        if len(self._sent) < 500:
            self._sent.append(raw)
        return Mutant(name, raw, draft.finch, resigned, draft.alone or not _is_plain(draft))

    def _framed(self, draft: Draft) -> bytes:
        headers = [*(draft.proof or []), *draft.headers]
        if not draft.is_chunked:
            return request_bytes(draft.method, draft.target, headers, draft.body)
        head = request_bytes(draft.method, draft.target, [*headers, (b"Transfer-Encoding", b"chunked")])
        size = self._random.choice((1, 7, 64, 4096))
        pieces = [draft.body[at : at + size] for at in range(0, len(draft.body), size)]
        return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def _is_plain(draft: Draft) -> bool:
    """Whether every parser surely takes the request's head as it is meant."""
    names = {name.lower() for name, _ in draft.headers}
    return draft.target.isascii() and draft.method.isalpha() and b"expect" not in names


def nested(levels: int) -> Any:
    """Return lists in lists, `levels` deep."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value
