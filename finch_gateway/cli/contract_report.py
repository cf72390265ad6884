"""What a contract test says on a terminal: one line per check, a block for each that failed, and a summary."""

from __future__ import annotations

import click

from ..emulator.checks import CheckResult
from .advice import advice_for
from .evidence import Evidence, ListingEvidence
from .screen import WIDTH, cut, mark, paragraph, plain

_GOT_CHARS = 50
_MARGIN = 6
_SHOWN_REQUESTS = 3


class Report:
    """Prints the results of one listing as they come.

    While no answer could be proven it holds them back: where none ever is, they all fail for one reason, which the
    summary tells.
    """

    def __init__(self, name: str, wire_protocol: str, mount: str) -> None:
        self._held: list[CheckResult] = []
        self._is_believed = False
        click.echo(click.style(f"\n{name}", bold=True) + f"  {wire_protocol} at {mount}")

    def end(self, listing: ListingEvidence) -> None:
        """Print what is still held back, unless one reason stands for all of it."""
        if not listing.is_stranger:
            self._flush()

    def add(self, result: CheckResult) -> None:
        """Take the next result."""
        self._held.append(result)
        self._is_believed = self._is_believed or any(not trace.distrust for trace in result.exchanges)
        if self._is_believed:
            self._flush()

    def _flush(self) -> None:
        for held in self._held:
            _print_result(held)
        self._held.clear()


def print_summary(evidence: Evidence) -> None:
    """Print each listing's counts, what failed, and what can be done about it."""
    click.echo()
    for listing in evidence.listings:
        click.echo(f"{mark(listing.ok)} {listing.name}: {_counts(listing)}")
        if listing.failed and not listing.is_stranger:
            click.echo(paragraph(f"failed: {'; '.join(listing.failed)}", 2))
        if listing.fell_back:
            names = "; ".join(listing.fell_back)
            click.echo(paragraph(f"by polling, as nothing can reach this tester: {names}", 2))
        for words in advice_for(listing, evidence):
            click.echo(paragraph(words, 2))


def _counts(listing: ListingEvidence) -> str:
    failed, untried = len(listing.failed), len(listing.untried)
    counts = [f"{listing.passed} passed", *([f"{failed} failed"] if failed else [])]
    return ", ".join([*counts, *([f"{untried} not tried"] if untried else [])])


def _print_result(result: CheckResult) -> None:
    rules = click.style(f"wire {', '.join(result.rules)}", dim=True)
    got = cut(result.got, _GOT_CHARS) if result.tried else "not tried"
    sign = mark(result.ok, result.tried)
    click.echo(f"  {sign} {result.name:<30} {got:<{_GOT_CHARS}} {result.elapsed_ms:>6} ms  {rules}")
    if result.remark:
        click.echo(paragraph(result.remark.removeprefix("not tried: "), _MARGIN))
    for asked in result.dialogue:
        for question in asked.questions:
            _detail(f"asked: {plain(question)}")
        if asked.answer:
            _detail(f"answered: {asked.answer}")
    if not result.ok:
        _print_failure(result, was_cut=got != result.got)


def _print_failure(result: CheckResult, was_cut: bool) -> None:
    click.echo(paragraph(f"expected: {result.expected}", _MARGIN))
    if was_cut:
        click.echo(paragraph(f"got: {result.got}", _MARGIN))
    for fault in result.faults:
        click.secho(paragraph(fault, _MARGIN), fg="red")
    sent = dict.fromkeys(f"{trace.method} {trace.target}, {trace.request_body}" for trace in result.exchanges)
    for request in list(sent)[:_SHOWN_REQUESTS]:
        _detail(f"sent: {request}", dim=True)


def _detail(text: str, *, dim: bool = False) -> None:
    """Print one line of a check, cut where the terminal would break it; the evidence has it whole."""
    click.secho(" " * _MARGIN + cut(text.replace("\n", " "), WIDTH - _MARGIN), dim=dim)
