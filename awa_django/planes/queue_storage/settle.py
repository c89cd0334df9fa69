"""Ending attempts (contract: queue-storage/complete, attempts)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from awa_django.jobs import Attempt
from awa_django.outcomes import Completed
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, Leases, Settlement, send
from awa_django.planes.queue_storage.place import place
from awa_django.planes.queue_storage.take import lock_attempts, take_attempts
from awa_django.sql import statement
from awa_django.transitions import Transition, land

__all__ = ["finish", "is_compact"]

#: Provenance that a compact completion may carry, since readers find it in the ready row.
_PROVENANCE = frozenset({"_awa_original_priority", "_awa_original_queue"})


def is_compact(transition: Transition) -> bool:
    """Whether a success may be recorded as an item of a completion batch.

    Readers take everything else of such a job from its ready row, so the row must not need anything
    more than that: no key, tags, errors or metadata. (contract: queue-storage/complete section 1)
    """
    attempt = transition.attempt
    if not isinstance(transition.outcome, Completed) or attempt.batch_id is None or transition.has_lease:
        return False
    if attempt.unique_key is not None or transition.metadata:
        return False
    payload = attempt.payload
    if not payload:
        return True
    metadata = payload.get("metadata")
    return (
        not payload.get("tags")
        and not payload.get("errors")
        and (not metadata or (isinstance(metadata, dict) and metadata.keys() <= _PROVENANCE))
    )


def finish(cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
    """Write the ends of attempts in the caller's transaction.

    Successes of plain jobs go in one statement for all; whatever that one misses, and everything else, is
    taken and placed. Takes attempt keys ascending, then claim evidence, then unique claims.
    """
    compact: list[Transition] = []
    rest: list[Transition] = []
    for item in transitions:
        (compact if is_compact(item) else rest).append(item)
    finalized_at = None
    groups = _by_slots(compact)
    if len(groups) + bool(rest) > 1:
        # One ascending run over all keys, so that two settlers cannot deadlock.
        lock_attempts(cursor, [(item.attempt.job_id, item.attempt.run_lease) for item in transitions])
    completed: list[Transition] = []
    for group in groups:
        _lock(cursor, group)
    _forget_state(cursor, [item.attempt for item in compact if item.left_state])
    for group in groups:
        missed, finalized_at = _complete(cursor, group)
        for item in group:
            (rest if item.attempt.receipt_id in missed else completed).append(item)
    if not rest:
        return Settlement(completed, finalized_at)
    taken = take_attempts(cursor, Leases([item.attempt for item in rest], [item.closes for item in rest]))
    landed = place(cursor, land(taken, rest))
    by_pair = {item.pair: item for item in rest}
    ended = [by_pair.pop(item.landing.taken.pair) for item in landed]
    return Settlement(completed, finalized_at, landed, ended, list(by_pair.values()))


def _by_slots(transitions: Sequence[Transition]) -> list[list[Transition]]:
    """Transitions by the claim slot and the ready slot of their attempts; nearly always one group."""
    groups: dict[tuple[int, int], list[Transition]] = {}
    for item in transitions:
        groups.setdefault((item.attempt.claim_slot, item.attempt.ready_slot), []).append(item)
    return [group for _, group in sorted(groups.items())]


def _parameters(transitions: Sequence[Transition]) -> dict[str, Any]:
    first = transitions[0].attempt
    return {
        "claim_slot": first.claim_slot,
        "ready_slot": first.ready_slot,
        "job_ids": ints([item.attempt.job_id for item in transitions]),
        "run_leases": ints([item.attempt.run_lease for item in transitions]),
    }


def _lock(cursor: Cursor, transitions: Sequence[Transition]) -> None:
    """Take the keys and the claim batches of one group; what is judged after it is judged for good."""
    send(
        cursor,
        statement("queue_storage/settle", "lock_compact", claim=transitions[0].attempt.claim_slot),
        {**_parameters(transitions), "batch_ids": ints({item.attempt.batch_id for item in transitions})},
    )


def _forget_state(cursor: Cursor, attempts: Sequence[Attempt]) -> None:
    """Drop heartbeats and progress; a success keeps neither."""
    if attempts:
        send(
            cursor,
            statement("queue_storage/settle", "forget_state"),
            {
                "job_ids": ints(attempt.job_id for attempt in attempts),
                "run_leases": ints(attempt.run_lease for attempt in attempts),
            },
        )


def _complete(cursor: Cursor, transitions: Sequence[Transition]) -> tuple[Collection[int], datetime]:
    """Record successes of one claim slot and one ready slot compactly.

    Returns the receipts that were not open, and the time written.
    """
    attempts = [item.attempt for item in transitions]
    first = attempts[0]
    cursor.execute(
        statement("queue_storage/settle", "complete_compact", claim=first.claim_slot, ready=first.ready_slot),
        {
            **_parameters(transitions),
            "item_batch_ids": ints([attempt.batch_id for attempt in attempts]),
            "receipt_ids": ints([attempt.receipt_id for attempt in attempts]),
            "lane_seqs": ints([attempt.lane_seq for attempt in attempts]),
            "attempts": ints([attempt.attempt for attempt in attempts]),
        },
    )
    row = cursor.fetchone()
    assert row is not None
    finalized_at, missed = row
    return frozenset(missed), finalized_at
