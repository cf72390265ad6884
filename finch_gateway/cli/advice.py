"""What to do about what a contract test found, where the cause lies in how it was set up and not in a check."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ..emulator.checks import NO_CALLBACK
from .evidence import Evidence, ListingEvidence

_LOCAL = (
    'for local work only, set [outbound] allow_hosts = ["127.0.0.1"] and allow_private = true in the configuration, '
    "and restart a gateway that runs."
)
_UNANSWERED = (
    "The agent could not use the tester's answer. `capabilities` in the listing answers the test without the agent; "
    "or the agent looks at job.contract_test, and asks nothing then."
)
_CAUSES = {
    "unsigned": "Another program answers there, or its configuration has no listing at this mount.",
    "X-Agent-Key-Id": "The gateway there runs with another key id: another configuration, or not restarted since.",
    "X-Agent-Timestamp": "The clock there and the clock here are too far apart.",
    "": "The gateway there runs with another secret, or not restarted since it changed; or another program answers.",
}
"""Why no answer at all can be proven, by how the first reason begins."""


def advice_for(listing: ListingEvidence, evidence: Evidence) -> Iterator[str]:
    """Yield what a person can do, each thing as one paragraph; nothing where there is nothing to do."""
    yield from _about_the_url(listing, evidence.base_url)
    if listing.is_stranger:
        reason = next(trace.distrust for result in listing.results for trace in result.exchanges)
        cause = next(cause for beginning, cause in _CAUSES.items() if reason.startswith(beginning))
        yield f"Not one answer is signed as this listing signs. {cause} (The first answer: {reason}.)"
        return
    if any(asked.answer and not result.ok for result in listing.results for asked in result.dialogue):
        yield _UNANSWERED
    yield from _about_callbacks(listing, evidence.receiver)


def _about_the_url(listing: ListingEvidence, base_url: str) -> Iterator[str]:
    own_mount = listing.mount[len(urlsplit(base_url).path.rstrip("/")) :]
    if not listing.ok and own_mount and base_url.rstrip("/").endswith(own_mount):
        shorter = base_url.rstrip("/").removesuffix(own_mount)
        yield f"--base-url ends with the mount {own_mount}, which is added to it: try --base-url {shorter}"


def _about_callbacks(listing: ListingEvidence, receiver: str) -> Iterator[str]:
    if listing.fell_back:
        yield f"To let callbacks come, name the way here with --receiver-url URL; or, {_LOCAL}"
        return
    walked = next((result for result in listing.results if result.name == "contract-test task"), None)
    if walked is not None and "422 envelope_invalid" in walked.got:
        yield f"The dispatch was refused, probably as the gateway may not call {receiver}. To let it, {_LOCAL}"
    elif any(NO_CALLBACK in result.faults for result in listing.results):
        yield f"No callback came to {receiver}. To let the gateway call there, {_LOCAL}"
