"""What a role lacks to enqueue, work and lead, for workers that start and for who looks for a fault."""

from __future__ import annotations

from typing import NamedTuple

from psycopg import sql

from awa_django.operations.words import count, listed
from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = ["Lack", "missing_rights"]

_SCRIPT = "`manage.py awa_sql --grants-only --grant-to ROLE` prints all of them."


class Lack(NamedTuple):
    """A right that is missing: what does not work without it, and how to grant it."""

    sentence: str
    hint: str
    #: Whether jobs stay undone, or only a convenience is gone.
    stops_jobs: bool = True


def missing_rights(cursor: Cursor, *, leads: bool = True) -> tuple[str, list[Lack]]:
    """The current role, and what it may not do that a producer, a worker and, with ``leads``, a leader does.

    One statement, which reads catalogs only. Expects a schema that this release can use. (contract: api/security
    section 2)
    """
    cursor.execute(statement("control/doctor", "rights"), {})
    row = cursor.fetchone()
    assert row is not None
    role, may_make_lanes, sequences, tables, untruncatable, functions, may_run_batches = row
    to = f"TO {sql.Identifier(role).as_string()}. {_SCRIPT}"
    lacks = []
    if not may_make_lanes:
        lacks.append(
            Lack(
                f"Role {role!r} may not create in schema awa, so here it can enqueue nothing that is due at once.",
                f"GRANT CREATE ON SCHEMA awa {to}",
            )
        )
    if sequences:
        lacks.append(
            Lack(
                f"Role {role!r} may not use {count(len(sequences), 'sequence')} of another role: {listed(sequences)}. "
                "Their lanes are closed to it.",
                f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA awa {to} Let all processes work as one role.",
            )
        )
    if tables:
        lacks.append(
            Lack(
                f"Role {role!r} may not write to {listed(tables)} of schema awa.",
                f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA awa {to}",
            )
        )
    elif untruncatable and leads:
        lacks.append(
            Lack(
                f"Role {role!r} may not empty {listed(untruncatable)}: where it leads, history piles up.",
                f"GRANT TRUNCATE ON ALL TABLES IN SCHEMA awa {to}",
            )
        )
    if functions:
        lacks.append(
            Lack(
                f"Role {role!r} may not call {listed(functions)} of schema awa.",
                f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA awa {to}",
            )
        )
    if may_run_batches is False:
        lacks.append(
            Lack(
                f"Role {role!r} may not read and write table awa_django_batchoperation, so it leaves batch operations "
                "alone that only awa_django knows.",
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE awa_django_batchoperation {to}",
                stops_jobs=False,
            )
        )
    return role, lacks
