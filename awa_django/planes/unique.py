"""Unique keys: which job holds which, on either plane (contract: control-functions section 4).

Canonical rows have triggers that follow every change of state; taking and letting go of a key here first is what
makes their errors impossible, for they accept a key that its own job already holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from awa_django.errors import UniqueConflict
from awa_django.jobs import Taken
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, send
from awa_django.sql import statement

__all__ = ["Keys", "acquire", "conflict", "release"]

#: Pairs of a unique key and the job that holds it or wants it.
Keys = Iterable[tuple[bytes | None, int]]


def release(cursor: Cursor, keys: Keys) -> None:
    """Let go of unique keys that these jobs hold."""
    pairs = list(keys)
    if pairs:
        send(cursor, statement("control/unique", "release_claims"), _parameters(pairs))


def acquire(cursor: Cursor, keys: Keys) -> set[int]:
    """Take unique keys; returns the jobs that did not get theirs.

    Of several jobs that want one key here the first gets it. Waits for other transactions that take one.
    """
    wanted: dict[bytes | None, int] = {}
    lost: set[int] = set()
    for key, job_id in keys:
        if wanted.setdefault(key, job_id) != job_id:
            lost.add(job_id)
    if not wanted:
        return lost
    cursor.execute(statement("control/unique", "acquire_claims"), _parameters(list(wanted.items())))
    held = {job_id for (job_id,) in cursor.fetchall()}
    return lost | (set(wanted.values()) - held)


def conflict(cursor: Cursor, taken: Taken) -> UniqueConflict:
    """The error to raise for a job that another one keeps from entering a state, with who that is now."""
    assert taken.unique_key is not None
    cursor.execute(statement("control/enqueue", "holders"), {"unique_keys": [taken.unique_key]})
    row = cursor.fetchone()
    return UniqueConflict(bytes(taken.unique_key), None if row is None else row[1], taken.kind)


def _parameters(pairs: Sequence[tuple[bytes | None, int]]) -> dict[str, Any]:
    return {"unique_keys": [key for key, _ in pairs], "job_ids": ints(job_id for _, job_id in pairs)}
