"""The contract's invariants as a test runs them (contract: queue-storage/invariants section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from tests import vectors
from tests.workers import wait_until

#: These read sequences, which belong to no snapshot: under load they report jobs claimed in between.
NEEDS_REST = frozenset({"I10", "I11", "I12", "Q03"})
#: Of what holds something: of some three hundred tables a test touches a few.
ANALYZE = """
DO $$
DECLARE
    tables text;
BEGIN
    SELECT string_agg(oid::regclass::text, ', ')
    INTO tables
    FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0;
    EXECUTE 'ANALYZE ' || tables;
END
$$
"""

#: Sessions that are about something. Those of a process that was killed go on with what it sent last.
AT_WORK = """
    SELECT pid, query
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
        AND state <> 'idle'
"""


def violated(
    connection: psycopg.Connection[Any],
    *,
    quiesced: bool = False,
    drained: bool = False,
    mixed: bool = False,
    ids: Sequence[int] = (),
) -> list[str]:
    """The invariants that do not hold, with a few rows each.

    ``quiesced`` says that nobody works on the database, ``drained`` that nothing is left to claim either, and
    ``mixed`` that reference clients took part, so that what the contract tolerates of them is passed over. ``ids``
    are jobs that must be accounted for.
    """
    found = []
    connection.execute(ANALYZE)  # the queries join everything with everything
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for query in vectors.load("queue-storage/invariants")["queries"]:
            name = query["id"]
            if mixed and query["tolerate"] is not None:
                continue
            if not quiesced and (query["applies"] == "quiesced" or name in NEEDS_REST):
                continue
            if name == "Q03" and not drained:
                continue
            values = {"ids": list(ids)} if "parameters" in query else None
            rows = connection.execute(query["sql"], values).fetchmany(3)
            if rows:
                found.append(f"{name} {query['name']}: {rows}")
    return found


def assert_all_hold(url: str, *, mixed: bool = False, drained: bool = True, ids: Sequence[int] = ()) -> None:
    """Every invariant of a database on which nobody works any more."""
    with psycopg.connect(url, autocommit=True) as connection:
        wait_for_rest(connection)
        assert violated(connection, quiesced=True, drained=drained, mixed=mixed, ids=ids) == []


def wait_for_rest(connection: psycopg.Connection[Any]) -> None:
    """Wait for sessions of processes that have ended: a slot that they empty meanwhile looks like lost jobs."""
    wait_until(lambda: not connection.execute(AT_WORK).fetchall(), what="sessions that come to rest")


def is_quiet(connection: psycopg.Connection[Any]) -> bool:
    """Whether nobody holds an attempt (Q01, Q02); right also while others prune."""
    queries = {query["id"]: query["sql"] for query in vectors.load("queue-storage/invariants")["queries"]}
    return not any(connection.execute(queries[name]).fetchone() for name in ("Q01", "Q02"))
