"""What a store must promise. Two keep it: `stores.sqlite` and `stores.redis`; one conformance suite holds both.

Each method is one atomic step. Instants are seconds since the epoch and are passed in; a store reads no
clock for its decisions. Every mutation carries an operation id (`op`) or an epoch, so that a repeat after a
lost answer recognises itself. Records are opaque blobs beside a short clear index, listed per class here.

Every method may raise `StoreUnavailable`: then the step happened or did not, and asking again tells.
"""

from __future__ import annotations

from typing import Protocol

from .admission import Admission, Nonce
from .operator import EventRow, KnownRevision, Operator, TaskOperator
from .outbox import Dead, Delivered, Delivery, DeliveryEnd, Outbox, RetryAt
from .tasks import (
    AdmissionVerdict,
    Admitted,
    HeldTask,
    NewEvent,
    QueueFull,
    TaskAdmission,
    TaskChange,
    TaskIndex,
    TaskRow,
    Tasks,
)
from .turns import (
    Answered,
    ClearQuestion,
    Conflict,
    Free,
    Held,
    KeepQuestion,
    Replayed,
    Running,
    TurnClaim,
    TurnEnd,
    TurnKey,
    Turns,
    Verdict,
)

__all__ = [
    "Admission",
    "AdmissionVerdict",
    "Admitted",
    "Answered",
    "ClearQuestion",
    "Conflict",
    "Dead",
    "Delivered",
    "Delivery",
    "DeliveryEnd",
    "EventRow",
    "Free",
    "Held",
    "HeldTask",
    "KeepQuestion",
    "KnownRevision",
    "NewEvent",
    "Nonce",
    "Operator",
    "Outbox",
    "QueueFull",
    "Replayed",
    "RetryAt",
    "Running",
    "Store",
    "TaskAdmission",
    "TaskChange",
    "TaskIndex",
    "TaskOperator",
    "TaskRow",
    "Tasks",
    "TurnClaim",
    "TurnEnd",
    "TurnKey",
    "Turns",
    "Verdict",
]


class Store(Admission, Turns, Tasks, Outbox, Operator, TaskOperator, Protocol):
    """The whole store, with its life: `open` before anything else, `close` last; both may be called once."""

    async def open(self) -> None:
        """Connect and check the store; raise `ConfigError` naming the setting and the remedy."""

    async def close(self) -> None:
        """Finish what was begun and let go of files and connections."""
