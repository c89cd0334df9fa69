"""One row that a stranger wrote keeps no other waiting, whatever is wrong with it (DEC-18)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from awa_django.maintenance import Context, promote, rescue
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage.rings import look
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
#: Errors of two dimensions take no entry of one: the job is passed over.
CANNOT_BE_ADDED_TO = ["'{{1,2},{3,4}}'"]
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


def moved(world: World, table: str, odd: int, count: int) -> bool:
    """Whether the odd job of three is in a table; fails unless ``count`` others are."""
    name = "id" if table in ("jobs_hot", "scheduled_jobs") else "job_id"
    found = {row[name] for row in world.rows(f"SELECT {name} FROM awa.{table}")}
    assert len(found - {odd}) == count
    return odd in found


@pytest.mark.parametrize(("table", "column", "value"), list(of_queue_storage("ready_entries")))
def test_an_odd_attempt_is_rescued_like_the_others(
    world: World, context: Context, table: str, column: str, value: str
) -> None:
    world.running(job(), job(), job())
    odd = wrong(world, table, column, value)
    world.age()
    for duty in rescue.duties(context.settings, world.plane):
        duty.run(context)
    assert moved(world, "deferred_jobs", odd, 2)


@pytest.mark.parametrize(("table", "column", "value"), list(of_queue_storage("deferred_jobs")))
def test_an_odd_deferred_job_is_promoted_like_the_others(
    world: World, context: Context, table: str, column: str, value: str
) -> None:
    world.enqueue(*[job(run_at=world.one("SELECT now() - interval '1 hour'")) for _ in range(3)])
    odd = wrong(world, table, column, value)
    for duty in promote.duties(context.settings, world.plane):
        duty.run(context)
    assert moved(world, "ready_entries", odd, 2)


@pytest.fixture
def canonical(world: World) -> World:
    use_canonical_tables(world.connection)
    return replace(world, plane=CanonicalPlane())


@pytest.mark.parametrize(("table", "column", "value"), list(of_canonical("jobs_hot")))
def test_an_odd_canonical_attempt_is_rescued_like_the_others(
    canonical: World, context: Context, table: str, column: str, value: str
) -> None:
    canonical.running(job(), job(), job(), deadline=timedelta(hours=1))
    odd = wrong(canonical, table, column, value)
    canonical.age()
    for duty in rescue.duties(context.settings, canonical.plane):
        duty.run(context)
    assert moved(canonical, "scheduled_jobs", odd, 2) is (value not in CANNOT_BE_ADDED_TO)


@pytest.mark.parametrize(("table", "column", "value"), list(of_canonical("scheduled_jobs")))
def test_an_odd_canonical_job_is_promoted_like_the_others(
    canonical: World, context: Context, table: str, column: str, value: str
) -> None:
    canonical.enqueue(*[job(run_at=canonical.one("SELECT now() - interval '1 hour'")) for _ in range(3)])
    odd = wrong(canonical, table, column, value)
    for duty in promote.duties(context.settings, canonical.plane):
        duty.run(context)
    assert moved(canonical, "jobs_hot", odd, 2)


@pytest.mark.parametrize("when", ODD_TIMES)
@pytest.mark.parametrize("table", ["deferred_jobs", "scheduled_jobs"])
@pytest.mark.parametrize("state", ["scheduled", "retryable"])
def test_a_job_that_is_due_at_no_time_does_not_blind_the_leader(
    world: World, table: str, when: str, state: str
) -> None:
    name = "id" if table == "scheduled_jobs" else "job_id"
    priority = ", priority" if table == "deferred_jobs" else ""
    world.run(
        f"INSERT INTO awa.{table} ({name}, kind, queue, state, run_at{priority})"
        f" VALUES (1, 'k', 'q', '{state}', {when}{', 2' if priority else ''})"
    )
    seen = world.within(look)
    due_in = seen.due_in if table == "deferred_jobs" else seen.canonical_due_in
    assert due_in is not None
    assert (due_in < 0) == (when in ("'-infinity'", "'0044-03-15 BC'"))
