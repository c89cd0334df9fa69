"""One row that a stranger wrote keeps no other waiting, whatever is wrong with it (DEC-18)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from psycopg.types.json import set_json_loads

from awa_django.conf import Settings
from awa_django.db import _load_json
from awa_django.maintenance import Context, promote, rescue
from awa_django.planes.canonical import CanonicalPlane
from tests.planes.world import World, job, use_canonical_tables

#: Column and value of a stored job: times beyond the calendar, documents that Python cannot hold or expect.
ODD_TIMES = ["'infinity'", "'-infinity'", "'0044-03-15 BC'", "'280000-01-01'"]
DEEP = "(repeat('[', 5000) || repeat(']', 5000))::jsonb"
ODD_PAYLOADS = [
    "'[]'",
    "'7'",
    """'{"metadata": [1], "tags": {"a": 1}, "errors": "no", "progress": null}'""",
    """'{"errors": [1, null, "text", {"error": 5}]}'""",
    "jsonb_build_object('metadata', jsonb_build_object('n', repeat('9', 5000)::numeric))",
    "jsonb_build_object('metadata', '1e9999'::numeric)",
    "jsonb_build_object('errors', jsonb_build_array('1e9999'::numeric))",
    f"jsonb_build_object('metadata', jsonb_build_object('deep', {DEEP}))",
    DEEP,
]
ODD_ARGS = ["'7'", "'null'", "'1e9999'", DEEP]


def of_queue_storage(table: str) -> Iterator[tuple[str, str, str]]:
    times = (
        ["run_at", "created_at"]
        if table == "ready_entries"
        else ["created_at", "attempted_at", "finalized_at"]
    )
    for column in times:
        for value in ODD_TIMES:
            yield table, column, value
    for value in ODD_PAYLOADS:
        yield table, "payload", value
    for value in ODD_ARGS:
        yield table, "args", value
    yield table, "max_attempts", "1"
    yield table, "max_attempts", "32767"
    if table == "deferred_jobs":
        yield table, "attempt", "32767"
        yield table, "run_lease", "9223372036854775807"
        yield table, "run_at", "'-infinity'"
        yield table, "run_at", "'0044-03-15 BC'"


def of_canonical(table: str) -> Iterator[tuple[str, str, str]]:
    for column in ("created_at", "attempted_at", "finalized_at", "run_at"):
        for value in ODD_TIMES:
            if (table, column) != ("scheduled_jobs", "run_at") or value in ("'-infinity'", "'0044-03-15 BC'"):
                yield table, column, value
    for value in ODD_ARGS:
        yield table, "args", value
    for value in ("'[]'", "'null'", f"jsonb_build_object('deep', {DEEP})", """'{"n": 1e9999}'"""):
        yield table, "metadata", value
    for value in ("ARRAY['7', 'null', '[1]']::jsonb[]", f"ARRAY[{DEEP}]", "'{{1,2},{3,4}}'"):
        yield table, "errors", value
    yield table, "progress", DEEP
    yield table, "attempt", "32767"


def wrong(world: World, table: str, column: str, value: str) -> int:
    """Make one job of three odd; its id."""
    name = "id" if table in ("jobs_hot", "scheduled_jobs") else "job_id"
    (_, odd, _) = [row[name] for row in world.rows(f"SELECT {name} FROM awa.{table} ORDER BY {name}")]
    world.run(f"UPDATE awa.{table} SET {column} = {value} WHERE {name} = {odd}")
    return int(odd)


def as_worker(context: Context) -> Context:
    """The leader's session reads JSON as a worker's does."""
    set_json_loads(_load_json, context.connection)
    return context


@pytest.mark.parametrize(("table", "column", "value"), list(of_queue_storage("ready_entries")))
def test_an_odd_attempt_is_rescued_or_passed_over_and_the_others_are_rescued(
    world: World, context: Context, table: str, column: str, value: str
) -> None:
    attempts = world.running(job(), job(), job())
    odd = wrong(world, table, column, value)
    world.age()
    for duty in rescue.duties(context.settings, world.plane):
        duty.run(as_worker(context))
    waiting = {row["job_id"] for row in world.rows("SELECT job_id FROM awa.deferred_jobs")}
    assert waiting >= {attempt.job_id for attempt in attempts if attempt.job_id != odd}
    print("ODD", odd in waiting)


@pytest.mark.parametrize(("table", "column", "value"), list(of_queue_storage("deferred_jobs")))
def test_an_odd_deferred_job_is_promoted_or_passed_over_and_the_others_are_promoted(
    world: World, context: Context, table: str, column: str, value: str
) -> None:
    world.enqueue(*[job(run_at=world.one("SELECT now() - interval '1 hour'")) for _ in range(3)])
    odd = wrong(world, table, column, value)
    for duty in promote.duties(context.settings, world.plane):
        duty.run(as_worker(context))
    ready = {row["job_id"] for row in world.rows("SELECT job_id FROM awa.ready_entries")}
    assert len(ready - {odd}) == 2
    print("ODD", odd in ready)


@pytest.fixture
def canonical(world: World) -> World:
    use_canonical_tables(world.connection)
    return replace(world, plane=CanonicalPlane())


@pytest.mark.parametrize(("table", "column", "value"), list(of_canonical("jobs_hot")))
def test_an_odd_canonical_attempt_is_rescued_and_so_are_the_others(
    canonical: World, table: str, column: str, value: str
) -> None:
    canonical.running(job(), job(), job(), deadline=timedelta(hours=1))
    odd = wrong(canonical, table, column, value)
    canonical.age()
    context = as_worker(Context(canonical.connection, Settings()))
    for duty in rescue.duties(context.settings, canonical.plane):
        duty.run(context)
    waiting = {row["id"] for row in canonical.rows("SELECT id FROM awa.scheduled_jobs")}
    assert len(waiting - {odd}) == 2
    print("ODD", odd in waiting)


@pytest.mark.parametrize(("table", "column", "value"), list(of_canonical("scheduled_jobs")))
def test_an_odd_canonical_job_is_promoted_and_so_are_the_others(
    canonical: World, table: str, column: str, value: str
) -> None:
    canonical.enqueue(*[job(run_at=canonical.one("SELECT now() - interval '1 hour'")) for _ in range(3)])
    odd = wrong(canonical, table, column, value)
    context = as_worker(Context(canonical.connection, Settings()))
    for duty in promote.duties(context.settings, canonical.plane):
        duty.run(context)
    ready = {row["id"] for row in canonical.rows("SELECT id FROM awa.jobs_hot")}
    assert len(ready - {odd}) == 2
    print("ODD", odd in ready)
