"""What the scripts for callbacks are told, and what their replies mean."""

from __future__ import annotations

from ...store import Dead, Delivered, Delivery, DeliveryEnd, EventRow, RetryAt
from .reading import Reply
from .replies import instant, nonsense, number, raw, rows, text
from .scripts import Fact, Told


def settle(delivery: Delivery, end: DeliveryEnd) -> Told:
    """Tell how a delivery ended."""
    how: tuple[Fact, ...]
    match end:
        case Delivered():
            how = ("delivered",)
        case RetryAt(at):
            how = ("retry", at)
        case Dead(reason):
            how = ("dead", reason)
    return (delivery.task_id, delivery.sequence, delivery.op, *how), ()


def deliveries(reply: Reply, op: str) -> list[Delivery]:
    """Return what was claimed under `op`."""
    return [_delivery(one, op) for one in rows(reply)]


def _delivery(reply: Reply, op: str) -> Delivery:
    match reply:
        case [task_id, sequence, listing, key_id, body, url, callback_key_id, host, attempts, created_at]:
            return Delivery(
                task_id=text(task_id),
                sequence=number(sequence),
                op=op,
                listing=text(listing),
                key_id=text(key_id),
                body=raw(body),
                url=text(url),
                callback_key_id=text(callback_key_id),
                host=text(host),
                attempts=number(attempts),
                created_at=instant(created_at),
            )
    raise nonsense()


def events(reply: Reply) -> list[EventRow]:
    """Return events as an operator sees them."""
    return [_event(one) for one in rows(reply)]


def _event(reply: Reply) -> EventRow:
    match reply:
        case [task_id, sequence, listing, host, attempts, created_at, due_at, is_dead, reason, body]:
            return EventRow(
                task_id=text(task_id),
                sequence=number(sequence),
                listing=text(listing),
                host=text(host),
                attempts=number(attempts),
                created_at=instant(created_at),
                due_at=instant(due_at),
                is_dead=is_dead == 1,
                reason=text(reason),
                body=raw(body),
            )
    raise nonsense()
