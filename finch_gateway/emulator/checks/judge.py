"""What a check is, what it finds, and the faults that any answer under a mount can have (wire 2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..envelopes import Call
from ..exchange import Exchange, Trace, trace_of
from ..following import Asked, FollowedTask, Patience
from ..platform import NoAnswer, Platform
from ..receiver import Receiver
from ..replies import NotJson, read_json
from ..timeline import Arrival, CallbackTrace, callback_trace

_T = TypeVar("_T")

_SHOWN_FAULTS = 5
_KEPT_AT_AN_END = 20


@dataclass(slots=True)
class Bench:
    """What the checks of one listing share: Finch's side, the listing's bounds, and what earlier checks left.

    `receiver` is None where no callback can arrive; `neighbour` is another listing of the same provider.
    """

    platform: Platform
    deadline_s: float
    max_body_bytes: int
    modes: tuple[str, ...] = ("conversation_turn",)
    receiver: Receiver | None = None
    neighbour: Platform | None = None
    patience: Patience = field(default_factory=Patience)
    repeated: tuple[Call, Exchange] | None = None
    walked: FollowedTask | None = None
    doubled: FollowedTask | None = None
    hurried: FollowedTask | None = None

    def new_task(self, *, deadline_s: float = 0.0, query: str = "") -> FollowedTask:
        """Return a contract-test task that is not dispatched yet, in the bench's own time unless told otherwise."""
        call = self.platform.new_call(deadline_s=deadline_s or self.deadline_s, mode="task", contract_test=True)
        return FollowedTask.prepare(self.platform, call, self.receiver, self.patience, query)


@dataclass(frozen=True, slots=True)
class Findings:
    """What a check saw: its exchanges and callbacks, every fault in them, and a remark that is no fault.

    `untried` says why what the check is there for could not be tried. `fell_back` says that polling had to stand
    in for callbacks. `took_s` is how long it took where that is not the time of the slowest answer. `dialogue` is
    what the agent asked and was told.
    """

    exchanges: tuple[Exchange, ...]
    faults: tuple[str, ...] = ()
    remark: str = ""
    arrivals: tuple[Arrival, ...] = ()
    fell_back: bool = False
    took_s: float | None = None
    untried: str = ""
    dialogue: tuple[Asked, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is tried: its name, the rules it rests on, what must happen, and how it is tried."""

    name: str
    rules: tuple[str, ...]
    expected: str
    run: Callable[[Bench], Awaitable[Findings]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The evidence of one check; nothing in it is secret.

    One that was not `tried` has nothing against it, and proves nothing. `dialogue` is for the eye alone: it holds
    the agent's own words, and is no part of the evidence that is kept.
    """

    name: str
    rules: tuple[str, ...]
    expected: str
    ok: bool
    got: str
    faults: tuple[str, ...]
    remark: str
    elapsed_ms: int
    exchanges: tuple[Trace, ...]
    callbacks: tuple[CallbackTrace, ...] = ()
    fell_back: bool = False
    tried: bool = True
    dialogue: tuple[Asked, ...] = ()

    @property
    def passed(self) -> bool:
        return self.ok and self.tried


async def run_check(check: Check, bench: Bench) -> CheckResult:
    """Try one check and return its evidence; a request that gets no answer is a fault like any other."""
    try:
        findings = await check.run(bench)
    except NoAnswer as error:
        fault = f"{error.request.method} {error.request.path}: {error}"
        return CheckResult(check.name, check.rules, check.expected, False, "no answer", (fault,), "", 0, ())
    tried = not findings.untried or bool(findings.faults)
    return CheckResult(
        name=check.name,
        rules=check.rules,
        expected=check.expected,
        ok=not findings.faults,
        got=_what_came(findings),
        faults=tuple(dict.fromkeys(findings.faults))[:_SHOWN_FAULTS],
        remark="; ".join(filter(None, (findings.untried and f"not tried: {findings.untried}", findings.remark))),
        elapsed_ms=round(1000 * (_slowest_s(findings) if findings.took_s is None else findings.took_s)),
        exchanges=tuple(trace_of(exchange) for exchange in _ends(findings.exchanges)),
        callbacks=tuple(callback_trace(arrival) for arrival in _ends(findings.arrivals)),
        fell_back=findings.fell_back and tried,
        tried=tried,
        dialogue=findings.dialogue,
    )


def _slowest_s(findings: Findings) -> float:
    return max((exchange.answer.elapsed_s for exchange in findings.exchanges), default=0)


def _ends(seen: tuple[_T, ...]) -> tuple[_T, ...]:
    """Return the first and the last of a long row: evidence, not a protocol of every poll."""
    return seen if len(seen) <= 2 * _KEPT_AT_AN_END else seen[:_KEPT_AT_AN_END] + seen[-_KEPT_AT_AN_END:]


def _what_came(findings: Findings) -> str:
    """Return the answers and callbacks in a few words, such as `4 x 401 auth_failed, signed`."""
    counts: dict[str, int] = {}
    for exchange in findings.exchanges:
        code = error_code(exchange)
        words = f"{exchange.answer.status}{' ' + code if code else ''}, {'signed' if exchange.proven else 'not proven'}"
        counts[words] = counts.get(words, 0) + 1
    came = [words if count == 1 else f"{count} x {words}" for words, count in counts.items()]
    if findings.arrivals:
        accepted = sum(arrival.is_accepted for arrival in findings.arrivals)
        came.append(f"{accepted} of {len(findings.arrivals)} callbacks accepted")
    return "; ".join(came) or ("nothing" if findings.faults else "not tried")


def error_code(exchange: Exchange) -> str:
    """Return the code of an error body, or an empty text where the answer is none."""
    try:
        body = read_json(exchange.answer.body)
    except NotJson:
        return ""
    code = body.get("code") if isinstance(body, dict) else None
    return code if isinstance(code, str) else ""


def answer_faults(exchange: Exchange, status: int) -> list[str]:
    """Return what is wrong with an answer as an answer: proof, status and headers (wire 2.1, 2.2)."""
    answer = exchange.answer
    faults = [exchange.distrust] if exchange.distrust else []
    if answer.status != status:
        faults.append(f"status {answer.status} instead of {status}")
    if 300 <= answer.status < 400 or answer.value("Location"):
        faults.append("the answer redirects")
    if answer.value("Content-Encoding"):
        faults.append("the answer carries a Content-Encoding")
    directives = {word.strip().lower() for word in answer.value("Cache-Control").split(",")}
    if not {"no-store", "no-transform"} <= directives:
        faults.append("Cache-Control is not no-store, no-transform")
    if exchange.request.method == "HEAD":
        return faults
    if answer.value("Content-Type").partition(";")[0].strip().lower() != "application/json":
        faults.append("Content-Type is not application/json")
    if answer.values("Content-Length") != (str(len(answer.body)),):
        faults.append("Content-Length is not there once with the body's length")
    return faults


def refusal_faults(exchange: Exchange, status: int, *codes: str) -> list[str]:
    """Return what is wrong with a refusal: the answer's own faults, or a body of none of the `codes` (wire 2.3)."""
    faults = answer_faults(exchange, status)
    try:
        body = read_json(exchange.answer.body)
    except NotJson as error:
        return [*faults, str(error)]
    if not isinstance(body, dict) or set(body) != {"code", "message"} or not isinstance(body["message"], str):
        return [*faults, "the error body is not exactly code and message"]
    if body["code"] not in codes:
        faults.append(f"code {body['code']!r} instead of {' or '.join(codes)}")
    return faults


def refused(exchanges: Sequence[Exchange], status: int, *codes: str) -> Findings:
    """Return the findings where every exchange must have been refused in one way."""
    return Findings(
        tuple(exchanges),
        tuple(fault for exchange in exchanges for fault in refusal_faults(exchange, status, *codes)),
    )


def unauthenticated(exchanges: Sequence[Exchange]) -> Findings:
    """Return the findings where every exchange must be the 401 that gives no reason away (wire 2.3)."""
    findings = refused(exchanges, 401, "auth_failed")
    if len({exchange.answer.body for exchange in exchanges}) > 1:
        return Findings(findings.exchanges, (*findings.faults, "401 bodies differ and so tell reasons apart"))
    return findings
