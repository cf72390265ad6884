"""Which secret signs a callback (wire 7.1)."""

from __future__ import annotations

from collections.abc import Sequence

from ..listing import Listing, Revision
from ..observe import Log
from ..store import Delivery
from .attempts import CallbackSigner


class CallbackKeys:
    """Knows every listing's revisions by key id."""

    def __init__(self, listings: Sequence[Listing], log: Log) -> None:
        self._revisions = {listing.name: listing.revisions for listing in listings}
        self._log = log

    def signer(self, delivery: Delivery) -> CallbackSigner | None:
        """Return the callback secret of the revision that the dispatch named, else of the dispatching one.

        Paid work is never refused over a key id we do not know. None where neither is in the file any more.
        """
        revisions = self._revisions.get(delivery.listing, {})
        named: Revision | None = revisions.get(delivery.callback_key_id)
        if named is None:
            named = revisions.get(delivery.key_id)
            self._log.warning(
                "callback.key_unknown",
                listing=delivery.listing,
                merchant_task_id=delivery.task_id,
                callback_key_id=delivery.callback_key_id,
                key_id=delivery.key_id,
            )
        return CallbackSigner(delivery.callback_key_id, named.callback_key) if named else None
