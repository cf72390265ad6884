"""Hostile requests from a fixed seed: sound turns and health calls, each damaged in one or two ways.

Every second one is signed again after the damage, so that it passes the door and meets what lies behind it;
the others are damaged after they were signed. `Mutations.make` returns them as the bytes that go over the wire.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .finch import Finch, Headers, request_bytes

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


ODD_VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 1.5, -0.0, 1e308, "", " ", "0", "x", "2.0", "null",
    "é\u2028\x1b[0m", "a\r\nb", "\x00", "\U0001f600" * 40, "x" * 10_001, [], [[]], [None], {}, {"": ""}, {"type": "text"},
    "task", "generation", "conversation_turn", "../../etc/passwd", "2030-01-01T00:00:00Z", [{"type": "text", "text": 7}],
)  # fmt: skip
ODD_INSTANTS = (
    "", "now", "2030-01-01", "2030-01-01T00:00:00", "2030-13-01T00:00:00Z", "2030-01-01T24:00:00Z", "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999999-23:59", "1970-01-01T00:00:00Z", "2030-01-01t00:00:00z", "٢٠٣٠-01-01T00:00:00Z", 1893456000, None,
)  # fmt: skip
ODD_QUANTITIES = (
    "1e3",
    "-1",
    "+1",
    "1.",
    ".5",
    "１",
    "0x10",
    " 1",
    "1" * 31,
    "NaN",
    -1,
    1e60,
    1e-300,
    True,
    [],
    "1.000",
    0,
)
ODD_SUFFIXES = (
    b"/", b"//", b"/.", b"/..", b"?", b"??", b"?a=1", b"?a=%00&a=%ff", b"#", b"#x", b"%2f", b"%00", b";a=b", b"/tasks/x", b"|", b"\\",
    b"{x}", b"?%", b"?a=1#b", b"/\xc3\xa9", b"?" + b"q" * 3000, b"*", b"?http://x/", b":", b"@", b'"', b"^", b"<", b"`",
)  # fmt: skip
ODD_METHODS = ("PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "GET", "POST", "PROPFIND")
UNKNOWN_METHODS = ("post", "Post", "POSTS", "FOO", "CONNECT", "PRI", "M-SEARCH", "P\x7fST", "")
ODD_HEADERS: Headers = [
    (b"Content-Type", b"text/xml"), (b"Content-Type", b""), (b"Idempotency-Key", b"a\x1b[31m\xe2\x80\xa8"), (b"Accept", b"*/*"),
    (b"traceparent", b"00-" + b"0" * 32), (b"X-Forwarded-Prefix", b"/finch"), (b"X-HTTP-Method-Override", b"DELETE"),
    (b"X-Original-URL", b"/finch/v2/health"), (b"Cookie", b"a=b; " * 200), (b"Expect", b"100-continue"), (b"TE", b"trailers"),
    (b"X-Agent-Key-Id", b"x"), (b"X-Agent-Signature", b"v1=" + b"0" * 64), (b"Content-Encoding", b"identity"), (b"Range", b"bytes=0-1"),
]  # fmt: skip
ODD_JSON = (
    b"", b" ", b"null", b"[]", b'"x"', b"1", b"{", b"}", b"{}{}", b"{},", b"{'a':1}", b"{a:1}", b"{\"a\":NaN}", b"{\"a\":-Infinity}",
    b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"{\"a\":\"\xff\"}", b"{\"a\":\"\xed\xa0\x80\"}", b'{"a":"\\ud800"}', b'{"a":1e400}',
    b'{"a":"\x01"}', b'{"a":01}', b'{"a":1,"a":2}', b"[" * 9_000, b'{"a":' * 9_000, b"//\n{}", b"{\"a\":.5}", b"\x00", b"{}\x00",
)  # fmt: skip


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
        ids = [str(uuid.UUID(int=self._random.getrandbits(128))) for _ in range(3)]
        own = ids[0] if target.finch.wire_protocol == "finch_v2" else f"ivk_{ids[0].replace('-', '')}"
        return target.finch.envelope(
            f"text {self._count}", invocation_id=own, turn_id=ids[1], conversation_id=ids[2], **target.fields
        )

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
        damages: list[tuple[str, Callable[[], Any]]] = [
            ("mode", lambda: shape.update(interaction_mode=pick(("task", "generation", "direct", "", "conversation_turn ")))),
            ("protocol", lambda: envelope.update(protocol_version=pick(("1.0", "2", "2.00", "3.0", 2.0, 2, [], "")))),
            ("version", lambda: envelope.update(service_version_id=str(uuid.UUID(int=self._random.getrandbits(128))))),
            ("deadline", lambda: envelope["limits"].update(deadline_at=pick(ODD_INSTANTS))),
            ("quantity", lambda: (envelope if is_new else envelope["commercial"]).update(quantity=pick(ODD_QUANTITIES))),
            ("parts", lambda: envelope["input"].update(content=[{"type": "text", "text": "x"}] * pick((0, 1, 100, 101)))),
            ("part", lambda: envelope["input"].update(content=[{"type": pick(("text", "image", "", 7)), "text": pick(ODD_VALUES)}])),
            ("invocation", lambda: envelope.update(invocation_id=envelope["invocation_id"] + pick(("0", "\n", " ", "é", "-")))),
            ("form", lambda: envelope.update(input={"n": pick(ODD_VALUES)})),
            ("deep", lambda: envelope.update(unknown=nested(pick((62, 63, 64, 65, 500))))),
        ]  # fmt: skip
        name, damage = pick(damages)
        damage()
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
        pick = self._random.choice
        name = self._random.choices(
            ["suffix", "path", "method", "unknown method", "encoding", "header", "large", "chunked", "stale", "body", "own nonce", "nonce"],
            [14, 10, 12, 3, 10, 10, 8, 10, 5, 3, 2, 4],
        )[0]  # fmt: skip
        mount = draft.finch.mount.encode()
        if name == "suffix":
            draft.target += pick(ODD_SUFFIXES)
        elif name == "path":
            draft.target = mount + pick(
                (b"", b"/", b"/HEALTH", b"/Invoke", b"/%69nvoke", b"/invoke/../health", b"//invoke", b"x", b"/tasks")
            )
        elif name == "method":
            draft.method = pick(ODD_METHODS)
        elif name == "unknown method":
            draft.method, draft.alone = pick(UNKNOWN_METHODS), True
        elif name == "encoding":
            draft.headers = [
                *draft.headers,
                (b"Content-Encoding", pick((b"gzip", b"br", b"deflate", b"GZIP", b"identity, gzip", b"x"))),
            ]
        elif name == "header":
            draft.headers = [*draft.headers, pick(ODD_HEADERS)]
        elif name == "large":
            size = pick((self._limit_bytes - 1, self._limit_bytes, self._limit_bytes + 1, 2 * self._limit_bytes))
            draft.body = draft.body.ljust(size)
        elif name == "chunked":
            draft.is_chunked = bool(draft.body)
        elif name == "stale":
            draft.timestamp += pick((-400, 400, -(10**6), 10**6, 10**9))
        elif name == "body":
            draft.body = b"" if draft.body else b"{}"
        else:
            draft.nonce = (
                "fgw-" + draft.nonce
                if name == "own nonce"
                else pick(("x" * 256, "x" * 257, "a b", "a:b*{c}" + draft.nonce, "é"))
            )
        return name

    # Damage after the signature

    def _tampered(self, draft: Draft) -> Mutant:
        draft.proof = draft.sign()
        names = [
            "body",
            "target",
            "method",
            "header gone",
            "header twice",
            "header changed",
            "key",
            "secret",
            "replay",
            "wire",
            "flip",
            "harmless",
        ]
        name = self._random.choices(names, [12, 12, 6, 8, 8, 14, 6, 8, 8, 8, 5, 5])[0]
        if name == "replay" and self._sent:
            return Mutant("replay", self._random.choice(self._sent), draft.finch, resigned=False, alone=True)
        if name in ("wire", "flip"):
            raw = self._damaged_wire(self._framed(draft)) if name == "wire" else self._flipped(self._framed(draft))
            return Mutant(name, raw, draft.finch, resigned=False, alone=True)
        self._tamper(name, draft)
        return self._mutant(f"tampered {name}", draft, resigned=False)

    def _tamper(self, name: str, draft: Draft) -> None:
        pick, proof = self._random.choice, draft.proof or []
        at = self._random.randrange(4)
        header, value = proof[at]
        if name == "body":
            draft.body = draft.body[:-1] + b" }" if draft.body else b"{}"
        elif name == "target":
            draft.target += pick(ODD_SUFFIXES)
        elif name == "method":
            draft.method = pick(ODD_METHODS)
        elif name == "header gone":
            proof[at : at + 1] = []
        elif name == "header twice":
            proof.insert(self._random.randrange(5), (pick((header, header.lower())), pick((value, b"other"))))
        elif name == "header changed":
            changes = (
                value[:-1],
                value + b"0",
                value.upper(),
                b"",
                value[:-1] + b"\xe9",
                value + b", " + value,
                b"+" + value,
                value * 40,
                b"v1=" + value,
            )
            proof[at] = (header, pick(changes))
        elif name == "key":
            proof[0] = (
                proof[0][0],
                pick([target.finch.key_id for target in self._targets] + ["unknown", "x" * 300]).encode(),
            )
        elif name == "secret":
            draft.proof = replace(draft.finch, secret=b"another secret").signed(draft.method, draft.target, draft.body)
        elif name == "harmless":
            draft.headers = [*draft.headers, pick(ODD_HEADERS)]

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
