"""The one transaction that ends attempts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg

from awa_django.planes.base import Plane, Settlement
from awa_django.transitions import Transition

__all__ = ["pipelined", "settle"]


def pipelined(connection: psycopg.Connection[Any]) -> AbstractContextManager[Any]:
    """Pipeline mode where libpq has it: statements go out without waiting for each other's results."""
    return connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()


def settle(
    connection: psycopg.Connection[Any], plane: Plane, transitions: Sequence[Transition]
) -> Settlement:
    """Commit transitions as one.

    An attempt whose lease has moved on comes back as stale and leaves no trace: stale is an answer,
    not an error. Any other failure undoes the whole batch and raises the driver's error; since the guards make it
    idempotent, the same batch may be sent again, whole or one by one. Locks attempts in key order (ADR-004).
    """
    with pipelined(connection), connection.transaction(), psycopg.Cursor(connection) as cursor:
        return plane.settle(cursor, transitions)
