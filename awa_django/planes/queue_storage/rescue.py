"""Taking attempts away that went quiet, ran out of time or got no answer (contract: queue-storage/rescue).

An attempt lives in a lease if it registered a callback, else in its receipt alone. Leases come first: the
statement that removes one closes its receipt, so the scan of receipts that follows cannot find the same
attempt again (H-02). Everything is guarded twice: the attempt key is tried and evidence locked by others
is left for the next pass, and the condition is asked again under the locks. The database's clock judges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from awa_django.jobs import Taken
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, PastDeadline, Stale, Unanswered
from awa_django.planes.queue_storage.take import Receipt, take_leases, take_receipts
from awa_django.sql import statement

__all__ = ["take_past_deadline", "take_quiet_leases", "take_quiet_receipts", "take_stale", "take_unanswered"]

Pair = tuple[int, int]


def take_stale(cursor: Cursor, guard: Stale) -> list[Taken]:
    """Lift running attempts without a sign of life: those with a lease, or those with a receipt alone."""
    return take_quiet_receipts(cursor, guard) if guard.receipts else take_quiet_leases(cursor, guard)


def take_quiet_leases(cursor: Cursor, guard: Stale) -> list[Taken]:
    """Lift running attempts that have a lease and gave no sign of life, longest silence first.

    Closes their receipts as ``rescue`` and removes lease and attempt state. Attempts on which anybody else
    is at work are left alone.
    """
    found = _receipts(
        cursor,
        "quiet_leases",
        silence=guard.silence,
        limit=guard.limit,
        passed_over=ints(guard.passed_over),
    )
    return _take_leases(cursor, found, "hold_quiet_leases", silence=guard.silence)


def take_quiet_receipts(cursor: Cursor, guard: Stale) -> list[Taken]:
    """Lift running attempts without a lease whose claim and last heartbeat are both too long ago.

    Closes their receipts as ``rescued``. At most 10 000 open receipts of a claim slot are looked at in one
    call; the slot's cursor remembers where to go on.
    """
    taken: list[Taken] = []
    for slot in _slots(cursor):
        if len(taken) >= guard.limit:
            break
        taken += _take_receipts(
            cursor,
            slot,
            guard.limit - len(taken),
            scan="old_receipts",
            move="move_stale_cursor",
            label="rescued",
            passed_over=guard.passed_over,
            silence=guard.silence,
        )
    return taken


def take_past_deadline(cursor: Cursor, guard: PastDeadline) -> list[Taken]:
    """Lift running attempts that outlived their deadline: leases, closed as ``rescue``, then row receipts, closed
    as ``deadline_expired``. Compact receipts have no deadline."""
    found = _receipts(cursor, "expired_leases", limit=guard.limit, passed_over=ints(guard.passed_over))
    taken = _take_leases(cursor, found, "hold_expired_leases")
    for slot in _slots(cursor):
        if len(taken) >= guard.limit:
            break
        taken += _take_receipts(
            cursor,
            slot,
            guard.limit - len(taken),
            scan="overdue_receipts",
            move="move_deadline_cursor",
            label="deadline_expired",
            passed_over=guard.passed_over,
        )
    return taken


def take_unanswered(cursor: Cursor, guard: Unanswered) -> list[Taken]:
    """Lift attempts whose callback did not come in time, earliest first; their receipts are closed as ``rescue``.

    Only parked ones: a callback that was registered and not waited for yet has no effect when its time is up.
    """
    found = _receipts(cursor, "unanswered_leases", limit=guard.limit, passed_over=ints(guard.passed_over))
    return _take_leases(cursor, found, "hold_unanswered_leases")


def _execute(cursor: Cursor, name: str, *, child: int | None = None, **values: Any) -> None:
    slots = {} if child is None else {"slot": child}
    cursor.execute(statement("queue_storage/rescue", name, **slots), values)


def _receipts(cursor: Cursor, name: str, **values: Any) -> list[Receipt]:
    """Where the receipts of the leases lie that a statement finds."""
    _execute(cursor, name, **values)
    found: list[Pair] = cursor.fetchall()
    if not found:
        return []
    _execute(
        cursor,
        "receipts_of_leases",
        job_ids=ints(job_id for job_id, _ in found),
        run_leases=ints(run_lease for _, run_lease in found),
    )
    return [Receipt(*row) for row in cursor.fetchall()]


def _slots(cursor: Cursor) -> list[int]:
    _execute(cursor, "claim_slots_in_use")
    return [slot for (slot,) in cursor.fetchall()]


def _pairs(cursor: Cursor, name: str, receipts: Iterable[Receipt], **values: Any) -> set[Pair]:
    """The attempts that a statement over pairs answers with."""
    receipts = list(receipts)
    if not receipts:
        return set()
    _execute(
        cursor,
        name,
        job_ids=ints(receipt.job_id for receipt in receipts),
        run_leases=ints(receipt.run_lease for receipt in receipts),
        **values,
    )
    return {(job_id, run_lease) for job_id, run_lease in cursor.fetchall()}


def _hold(cursor: Cursor, receipts: Sequence[Receipt]) -> list[Receipt]:
    """Those whose attempt key and evidence we hold now; a lease without a receipt has no evidence to hold."""
    keyed = _pairs(cursor, "try_attempts", receipts)
    held = [receipt for receipt in receipts if receipt.pair in keyed]
    evident = [receipt for receipt in held if receipt.claim_slot is not None]
    locked = _pairs(
        cursor,
        "hold_evidence",
        evident,
        claim_slots=ints(receipt.claim_slot for receipt in evident),
        batch_ids=ints(receipt.batch_id for receipt in evident),
    )
    return [receipt for receipt in held if receipt.claim_slot is None or receipt.pair in locked]


def _take_leases(cursor: Cursor, found: Sequence[Receipt], recheck: str, **values: Any) -> list[Taken]:
    """Lift those of the leases found that nobody else is at and that still are as they were found."""
    held = _hold(cursor, found)
    still = _pairs(cursor, recheck, held, **values)
    held = [receipt for receipt in held if receipt.pair in still]
    if not held:
        return []
    return take_leases(cursor, held, ["rescue"] * len(held))


def _close(cursor: Cursor, receipts: Sequence[Receipt], label: str) -> list[Taken]:
    """Close open receipts of attempts without a lease, by the statement that settling uses."""
    return take_receipts(cursor, receipts, [label] * len(receipts)) if receipts else []


def _take_receipts(
    cursor: Cursor,
    slot: int,
    limit: int,
    *,
    scan: str,
    move: str,
    label: str,
    passed_over: Collection[int],
    **values: Any,
) -> list[Taken]:
    """Scan one claim slot from its cursor, close what is to be taken, and move the cursor.

    The cursor stops before the first attempt that was to be taken and could not be had, so the next pass
    begins with it.
    """
    _execute(cursor, scan, child=slot, slot=slot, passed_over=ints(passed_over), **values)
    rows: list[tuple[datetime, int, int, int, int | None, bool]] = cursor.fetchall()
    if not rows:
        return []
    wanted = [
        Receipt(job_id, run_lease, slot, receipt_id, batch_id)
        for _, job_id, run_lease, receipt_id, batch_id, overdue in rows
        if overdue
    ][:limit]
    held = _hold(cursor, wanted)
    if values:
        # Asked after the locks were obtained: a worker may have come back to life meanwhile.
        still = _pairs(cursor, "still_quiet", held, **values)
        held = [receipt for receipt in held if receipt.pair in still]
    taken = _close(cursor, held, label)
    had = {(job.job_id, job.run_lease) for job in taken}
    passed = None
    for at, job_id, run_lease, _, _, overdue in rows:
        if overdue and (job_id, run_lease) not in had:
            break
        passed = at, job_id, run_lease
    if passed is not None:
        at, job_id, run_lease = passed
        _execute(cursor, move, slot=slot, at=at, job_id=job_id, run_lease=run_lease)
    return taken
