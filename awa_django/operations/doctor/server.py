"""The server, the way to it, and what this role may do there."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import psycopg
from psycopg import sql

from awa_django.conf import get_settings
from awa_django.db import connect, job_cursor, pool_size, postgres
from awa_django.operations.doctor.finding import Level, Patient, Said
from awa_django.operations.rights import missing_rights
from awa_django.operations.words import count, listed, span
from awa_django.schema import install_files, private_objects
from awa_django.sql import statement

__all__ = [
    "catalogue",
    "clock",
    "connections",
    "grants",
    "locks",
    "notify",
    "settings",
    "snapshots",
    "vacuum",
]

_INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+)$", re.MULTILINE)
#: Milliseconds that a statement of the leader may need, emptying and counting what has piled up.
MAINTENANCE_MS = 30_000
#: Between host and database, when logs stop making sense, and when something is broken.
CLOCK_WARNING = timedelta(seconds=2)
CLOCK_ERROR = timedelta(seconds=60)
#: Seconds of an open transaction, and of one in which nothing happens.
OLD_TRANSACTION = 300.0
IDLE_TRANSACTION = 60.0
VERY_OLD_TRANSACTION = 3600.0
#: Transactions that a replication slot or standby may lag behind.
OLD_HORIZON = 1_000_000
DEAD_ROWS = 100_000
#: A table of which nothing is known is worth a word from this size on.
UNANALYZED_BYTES = 8 << 20
#: Seconds for which somebody may wait for a lock, and for which that holds the queue up.
LONG_WAIT = 10.0
VERY_LONG_WAIT = 60.0
#: Parts of the room that all databases share for notifications that a listener has yet to read.
NOTIFICATIONS_WARNING = 0.25
NOTIFICATIONS_ERROR = 0.75
#: Bytes of the write-ahead log that an unused replication slot may keep.
KEPT_WAL = 1 << 30
#: Sessions of a worker process beside one for each loop that claims (docs/workers.md, "Connections").
SESSIONS = 5


def settings(patient: Patient) -> Iterator[Said]:
    """Settings under which sessions of this role work badly or not at all."""
    in_recovery, version, found = patient.row("session")
    well = True
    if in_recovery:
        well = False
        yield Said(
            Level.ERROR,
            "The server is a standby, on which nothing can be written.",
            "Point the alias to the primary.",
        )
    elif found["default_transaction_read_only"] == "on":
        well = False
        yield Said(
            Level.ERROR,
            "Transactions of this role are read-only.",
            "ALTER ROLE ... RESET default_transaction_read_only, or the same for the database.",
        )
    if found["default_transaction_isolation"] != "read committed":
        well = False
        yield Said(
            Level.ERROR,
            f"Transactions of this role are {found['default_transaction_isolation']}; claims and outcomes need "
            "read committed.",
            "ALTER ROLE ... RESET default_transaction_isolation, or the same for the database.",
        )
    if found["session_replication_role"] != "origin":
        well = False
        yield Said(
            Level.ERROR,
            f"session_replication_role is {found['session_replication_role']} in sessions of this role, so triggers "
            "that keep counts and wake workers do not fire.",
            "ALTER ROLE ... RESET session_replication_role, or the same for the database.",
        )
    for name, what in (
        ("statement_timeout", "a statement"),
        ("transaction_timeout", "a transaction"),
        ("lock_timeout", "a lock"),
    ):
        limit = int(found.get(name) or 0)
        if 0 < limit < MAINTENANCE_MS:
            well = False
            yield Said(
                Level.WARNING,
                f"{name} gives {what} {span(limit / 1000)} in sessions of this role; the leader's cleaning can take "
                f"longer, up to {span(MAINTENANCE_MS / 1000)}.",
                "Set it for web processes only, in their alias's OPTIONS, or raise it for the worker's role.",
            )
    if int(found.get("idle_session_timeout") or 0):
        well = False
        yield Said(
            Level.WARNING,
            f"idle_session_timeout ends sessions of this role after {span(int(found['idle_session_timeout']) / 1000)} "
            "without a statement, such as the one that listens for new jobs.",
            "ALTER ROLE ... SET idle_session_timeout = 0 for the worker's role.",
        )
    if well:
        yield Said(Level.OK, f"PostgreSQL {version} takes changes, with no limit that is too short.")


# On connections of their own


def notify(patient: Patient) -> Iterator[Said]:
    """Whether a notification comes back, over the connections that workers make."""
    channel = f"awa_django_doctor_{uuid.uuid4().hex}"
    limit = patient.timeout.total_seconds()
    try:
        with (
            closing(connect(patient.alias, application_name="awa doctor", prepare=False)) as listener,
            closing(connect(patient.alias, application_name="awa doctor", prepare=False)) as sender,
        ):
            listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            began = time.monotonic()
            sender.execute(statement("control/doctor", "notify"), {"channel": channel})
            came = next(iter(listener.notifies(timeout=limit, stop_after=1)), None)
            took = time.monotonic() - began
            ((taken,),) = sender.execute(statement("control/doctor", "notifications")).fetchall()
    except psycopg.Error as error:
        yield Said(
            Level.ERROR,
            f"LISTEN failed: {str(error).strip()}",
            "Look at max_connections, and at the limits of this role.",
        )
        return
    if taken >= NOTIFICATIONS_WARNING:
        yield Said(
            Level.ERROR if taken >= NOTIFICATIONS_ERROR else Level.WARNING,
            f"The server's room for notifications is {taken:.0%} full; at 100% nobody can enqueue.",
            "A session that listens has a transaction open: end it (see snapshots). The log of the server names it.",
        )
    elif came is not None:
        yield Said(Level.OK, f"A notification came back within {span(took)}.")
    elif get_settings().listen:
        yield Said(
            Level.WARNING,
            f"A notification did not come back within {span(limit)}: a pooler that hands out a session for each "
            "transaction swallows it, so workers find new jobs only by polling, and session locks do not hold.",
            "Give workers an alias that goes to the server, or set AWA['LISTEN'] to False and lead elsewhere "
            "(docs/workers.md, Poolers).",
        )
    else:
        yield Said(
            Level.OK,
            "Notifications do not come back, as AWA['LISTEN'] = False expects; workers poll.",
        )


def clock(patient: Patient) -> Iterator[Said]:
    """How far this host's clock is off the database's, which decides everything."""
    with postgres(patient.alias).wrap_database_errors, job_cursor(patient.alias) as cursor:
        sent = datetime.now(UTC)
        cursor.execute(statement("control/doctor", "clock"))
        row = cursor.fetchone()
        received = datetime.now(UTC)
    assert row is not None
    offset = row[0] - (sent + (received - sent) / 2)
    apart = max(abs(offset) - (received - sent) / 2, timedelta(0))
    if apart < CLOCK_WARNING:
        yield Said(Level.OK, "This host and the database agree about the time.")
        return
    way = "ahead of" if offset < timedelta(0) else "behind"
    yield Said(
        Level.ERROR if apart >= CLOCK_ERROR else Level.WARNING,
        f"The clock of this host is {span(apart)} {way} that of the database, which decides when jobs are due.",
        "Run a time service (NTP) on both hosts.",
    )


# What the server has room for


def connections(patient: Patient) -> Iterator[Said]:
    """Whether the fleet's connections fit."""
    most, used, role_most, role_used, database_most, database_used = patient.row("connections")
    needed = sum(
        SESSIONS + sum(int(queue.config.get("claimers") or 1) for queue in runtime.queues)
        for runtime in patient.working
    )
    fleet = f"; workers hold about {needed} of them ({len(patient.working)} live)"
    well = True
    for what, have, limit in (
        ("the server", used, most),
        ("this role", role_used, role_most),
        ("this database", database_used, database_most),
    ):
        if limit is None or limit < 0 or have < 0.8 * limit:
            continue
        well = False
        yield Said(
            Level.ERROR if have >= limit - 1 else Level.WARNING,
            f"{have} of {limit} connections of {what} are in use{fleet}.",
            "Raise the limit, run fewer worker processes, or put web processes behind a pooler.",
        )
    if (size := pool_size(patient.alias)) is not None:
        slots = get_settings().global_max_workers or sum(
            queue.max_workers for queue in get_settings().queues.values()
        )
        if size < slots:
            well = False
            yield Said(
                Level.WARNING,
                f"Django's pool of alias {patient.alias!r} has {count(size, 'connection')}, and a worker process runs "
                f"up to {count(slots, 'job')} at once, which wait for one another there.",
                "Raise max_size in OPTIONS['pool'] to the jobs at once.",
            )
    if well:
        yield Said(Level.OK, f"{used} of {most} connections are in use{fleet}.")


def grants(patient: Patient) -> Iterator[Said]:
    """What this role lacks to enqueue, work and lead."""
    role, lacks = missing_rights(patient.at.cursor)
    for lack in lacks:
        yield Said(Level.ERROR if lack.stops_jobs else Level.WARNING, lack.sentence, lack.hint)
    if not lacks:
        yield Said(Level.OK, f"Role {role!r} may enqueue, work and lead.")


@cache
def index_names() -> list[str]:
    """Indexes that the installation makes, save those of the children of a ring."""
    return [name for _, text in install_files() for name in _INDEX.findall(text)]


def catalogue(patient: Patient) -> Iterator[Said]:
    """What somebody changed about the schema that endangers jobs."""
    missing, invalid, triggers, cached, unlogged, unvacuumed = patient.row("catalogue", indexes=index_names())
    patient.at.cursor.execute(statement("schema", "private_objects"))
    present = {row[0] for row in patient.at.cursor.fetchall()}
    lacking = [name for name, _ in private_objects() if name not in present]
    problems = (
        (
            Level.ERROR,
            missing,
            "index is missing, without which statements read whole tables or unique keys do not hold",
            "indexes are missing, without which statements read whole tables or unique keys do not hold",
            "Make it as `manage.py awa_sql` prints it.",
        ),
        (Level.ERROR, invalid, "index is not valid", "indexes are not valid", "REINDEX them."),
        (Level.ERROR, triggers, "trigger is off", "triggers are off", "ALTER TABLE ... ENABLE TRIGGER ..."),
        (
            Level.ERROR,
            cached,
            "lane sequence hands numbers out in blocks, which breaks the order of jobs and can hide them",
            "lane sequences hand numbers out in blocks, which breaks the order of jobs and can hide them",
            "ALTER SEQUENCE ... CACHE 1.",
        ),
        (
            Level.ERROR,
            unlogged,
            "table is unlogged: a crash of the server empties it",
            "tables are unlogged: a crash of the server empties them",
            "ALTER TABLE ... SET LOGGED.",
        ),
        (
            Level.WARNING,
            unvacuumed,
            "table is left out by autovacuum",
            "tables are left out by autovacuum",
            "ALTER TABLE ... RESET (autovacuum_enabled).",
        ),
        (
            Level.WARNING,
            lacking,
            "helper of this release is missing in a schema that another client installed",
            "helpers of this release are missing in a schema that another client installed",
            "GRANT CREATE ON SCHEMA awa, then run `manage.py migrate` again.",
        ),
    )
    well = True
    for level, names, one, many, hint in problems:
        if names:
            well = False
            yield Said(level, f"{count(len(names), one, many)}: {listed(names)}.", hint)
    if well:
        yield Said(Level.OK, "Indexes, triggers and sequences are as they should be.")


# What keeps old rows


def snapshots(patient: Patient) -> Iterator[Said]:
    """Who keeps vacuum, counters and the rings back."""
    well = True
    for pid, user, application, state, age, idle in patient.rows("old_sessions", age=IDLE_TRANSACTION):
        if idle is not None and idle > IDLE_TRANSACTION:
            what = f"has been idle in a transaction for {span(idle)}"
        elif age > OLD_TRANSACTION:
            what = f"has had a transaction open for {span(age)}"
        else:
            continue
        well = False
        yield Said(
            Level.ERROR if age > VERY_OLD_TRANSACTION else Level.WARNING,
            f"Session {pid} ({application}, role {user}, {state}) {what}; until it ends, rows that nobody needs stay.",
            f"End it: SELECT pg_terminate_backend({pid}). An idle_in_transaction_session_timeout prevents it.",
        )
    for gid, owner, age in patient.rows("prepared", age=OLD_TRANSACTION):
        well = False
        yield Said(
            Level.ERROR if age > VERY_OLD_TRANSACTION else Level.WARNING,
            f"Prepared transaction {gid!r} of {owner} has waited for {span(age)} for somebody to end it.",
            "COMMIT PREPARED or ROLLBACK PREPARED it.",
        )
    for sort, name, active, lag in patient.rows("horizons", transactions=OLD_HORIZON):
        well = False
        unused = "" if active else ", which nobody uses,"
        yield Said(
            Level.WARNING,
            f"The {sort} {name!r}{unused} holds rows that are {lag:,} transactions old.",
            "Drop the slot if it is not needed." if not active else "Look why it lags behind.",
        )
    for name, kept in patient.rows("kept_wal", bytes=KEPT_WAL):
        well = False
        yield Said(
            Level.WARNING,
            f"The replication slot {name!r}, which nobody uses, keeps {kept / 2**30:,.1f} GiB of the server's log; "
            "that grows until the disk is full.",
            f"SELECT pg_drop_replication_slot({name!r}), if it is not needed.",
        )
    (sees,) = patient.row("sees_sessions")
    if not sees:
        yield Said(
            Level.SKIPPED,
            "Transactions of other roles cannot be seen.",
            "GRANT pg_read_all_stats TO this role to have them looked at.",
        )
    elif well:
        yield Said(Level.OK, "No old transaction, prepared transaction or replication slot holds rows.")


def locks(patient: Patient) -> Iterator[Said]:
    """Who holds locks for which others wait, such as that of a lane."""
    well = True
    for pid, application, state, waiting, longest, table in patient.rows("blockers", wait=LONG_WAIT):
        well = False
        who = f"Session {pid} ({application}, {state})" if pid else "A prepared transaction"
        yield Said(
            Level.ERROR if longest > VERY_LONG_WAIT else Level.WARNING,
            f"{who} holds a lock for which {count(waiting, 'session waits', 'sessions wait')}, the longest for "
            f"{span(longest)}" + (f", on {table}." if table else "."),
            f"End it, unless it should be there: SELECT pg_terminate_backend({pid})."
            if pid
            else "Look for it in pg_prepared_xacts; COMMIT PREPARED or ROLLBACK PREPARED it.",
        )
    if well:
        yield Said(Level.OK, f"Nobody has waited for a lock for more than {span(LONG_WAIT)}.")


def vacuum(patient: Patient) -> Iterator[Said]:
    """Whether dead rows are cleared away."""
    _, _, found = patient.row("session")
    well = True
    for name in ("autovacuum", "track_counts"):
        if found[name] != "on":
            well = False
            yield Said(Level.ERROR, f"{name} is off, so nobody clears dead rows away.", f"Set {name} = on.")
    for name, dead, live, last in patient.rows("dead_rows", dead=DEAD_ROWS):
        well = False
        yield Said(
            Level.WARNING,
            f"Table awa.{name} has {dead:,} dead rows beside {live:,} live ones, {_vacuumed(last)}.",
            f"Look for old transactions above; VACUUM awa.{name}.",
        )
    for number, name in patient.rows("unanalyzed", bytes=UNANALYZED_BYTES):
        well = False
        yield Said(
            Level.WARNING,
            f"{count(number, 'large table')} of the schema {'was' if number == 1 else 'were'} never analyzed since the "
            f"database was made or restored, awa.{name} for one: plans are guesses, and the admin may be slow.",
            "ANALYZE; autovacuum does it by itself in time, where it is on.",
        )
    age, limit = patient.row("wraparound")
    if age > 2 * limit:
        well = False
        yield Said(
            Level.ERROR if age > 1_500_000_000 else Level.WARNING,
            f"The oldest row of the database is {age:,} transactions old, and should have been frozen at {limit:,}.",
            "Look for old transactions above; VACUUM (FREEZE) the database.",
        )
    if well:
        yield Said(Level.OK, "Vacuum keeps up.")


def _vacuumed(last: Any) -> str:
    return "and was never vacuumed" if last is None else f"vacuumed last {span(datetime.now(UTC) - last)} ago"
