"""Scenario B12: the admin on a large queue, at a tenth of its size; ``make large`` has the full size, and figures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse

from awa_django import operations
from awa_django.operations import BatchState, JobFilter
from tests import databases, invariants
from tests.otherdefault import default_database
from tests.scenarios import desk
from tests.scenarios.desk import MOST_QUERIES, MOST_SECONDS, STATEMENT_TIMEOUT
from tests.scenarios.seeding import TENTH, Seeded, Size, seed
from tests.scenarios.walking import Visit, forbidden, most_rows
from tests.workers import wait_until

pytestmark = [pytest.mark.worker, pytest.mark.timeout(400), pytest.mark.xdist_group("large")]

#: A page counts by the quickest of five visits; other tests run beside it on the same cores, so it may take this many
#: times what it may on a machine of its own. ``make large`` allows nothing.
LOAD = float(os.environ.get("AWA_LOAD_FACTOR", "4"))


@dataclass
class Large:
    """The queue, and the database that it is in."""

    url: str
    seeded: Seeded
    size: Size


@pytest.fixture(scope="module")
def large(server_url: str, awa_template: str, django_db_blocker: Any) -> Iterator[Large]:
    """The seeded database as Django's default, with the statement timeout of the admin's role."""
    timeout = round(STATEMENT_TIMEOUT.total_seconds() * 1000)
    with (
        databases.scratch(server_url, "large", template=awa_template) as url,
        django_db_blocker.unblock(),
    ):
        seeded = seed(url, TENTH)
        with (
            default_database(url, options=f"-c statement_timeout={timeout}"),
            override_settings(AWA={"ADMIN_STATEMENT_TIMEOUT": STATEMENT_TIMEOUT}),
        ):
            yield Large(url, seeded, TENTH)


@pytest.fixture(scope="module")
def visits(large: Large) -> list[Visit]:
    """Every page of the admin, visited before anything is changed."""
    return list(desk.pages(desk.operator(), large.seeded, thorough=False))


@pytest.fixture
def client(large: Large) -> Client:
    return desk.operator()


@pytest.mark.parametrize(
    "size", [Size(finished=3_000, waiting=600, failed=50, dead=20, scheduled=20, retryable=20)]
)
def test_what_is_seeded_is_a_queue_in_which_every_invariant_holds(
    size: Size, server_url: str, awa_template: str
) -> None:
    with databases.scratch(server_url, "seeded", template=awa_template) as url:
        seeded = seed(url, size)
        with psycopg.connect(url, autocommit=True) as session:
            assert invariants.violated(session) == []
            states = dict(session.execute("SELECT state::text, count(*) FROM awa.jobs GROUP BY 1").fetchall())
            ids = list(seeded.one_of_each.values())
            known = session.execute(
                "SELECT count(DISTINCT id) FROM awa.jobs WHERE id = ANY(%s)", [ids]
            ).fetchone()
    assert states["available"] == size.waiting
    assert states["failed"] == size.failed + size.dead
    assert states["completed"] + states["cancelled"] == size.finished
    assert (states["scheduled"], states["retryable"]) == (size.scheduled, size.retryable)
    assert (states["running"], states["waiting_external"]) == (size.running, size.callbacks)
    assert known == (len(ids),)


def test_every_page_and_every_filter_answers_in_time_with_few_statements(
    visits: list[Visit], capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [visit for visit in visits if visit.seconds > MOST_SECONDS * LOAD]
    assert [f"{visit.url}: {visit.seconds:.2f} s" for visit in slow] == []
    many = [visit for visit in visits if visit.queries > MOST_QUERIES]
    assert [f"{visit.url}: {visit.queries} statements" for visit in many] == []
    wrong = [visit for visit in visits if visit.status not in (200, 302)]
    assert [f"{visit.url}: {visit.status}" for visit in wrong] == []
    with capsys.disabled():
        slowest = max(visits, key=lambda visit: visit.seconds)
        print(
            f"\n  {len(visits)} pages; the slowest {slowest.seconds * 1000:.0f} ms ({slowest.url}), "
            f"at most {max(visit.queries for visit in visits)} statements"
        )


def test_the_walk_reaches_pages_of_every_sort(visits: list[Visit]) -> None:
    seen = {visit.url for visit in visits if visit.status == 200}
    for model in ("job", "dlqentry", "waitingcallback", "queuemeta", "kinddescriptor", "cronjob"):
        start = reverse(f"admin:awa_django_{model}_changelist")
        assert start in seen
        assert [url for url in seen if url.startswith(start) and url.endswith("/change/")], model
    for model in ("runtimeinstance", "batchoperation", "storagetransitionstate"):
        assert reverse(f"admin:awa_django_{model}_changelist") in seen
    jobs = reverse("admin:awa_django_job_changelist")
    for wanted in ("?state=failed", "?state=completed", "?queue=", "?kind=", "?tag=", "?id="):
        assert [url for url in seen if url.startswith(jobs + wanted)], wanted
    assert [url for url in seen if re.search(r"before=60\b", url)], "the last page of a list"


def test_no_page_counts_a_table_or_reads_one_through(visits: list[Visit], large: Large) -> None:
    """By what statements go through when they run again: none goes through as much as half of the history."""
    statements = {
        statement.text: (statement, visit.url)
        for visit in visits
        for statement in visit.statements
        if "awa" in statement.text
    }
    assert [text for visit in visits for text in forbidden(visit.statements)] == []
    assert len(statements) > 20
    connection.ensure_connection()
    limit = large.size.waiting + large.size.finished // 2
    greedy = [
        f"{url}: {rows} rows by {statement.text[:60]!r}"
        for statement, url in statements.values()
        if (rows := most_rows(connection.connection, statement)) > limit
    ]
    assert greedy == []


def test_a_plan_that_counts_the_history_would_be_noticed(large: Large) -> None:
    from tests.scenarios.walking import Statement

    counting = Statement("SELECT count(*) FROM awa.ready_entries", None, 0.0, "")
    assert most_rows(connection.connection, counting) > large.size.waiting + large.size.finished // 2
    assert forbidden([Statement('SELECT COUNT(*) AS "__count" FROM "awa"."jobs"', None, 0.0, "")])


# Who may not ---------------------------------------------------------------------------------------------------


def test_who_has_no_permission_sees_no_verb_and_is_refused(large: Large) -> None:
    jobs = reverse("admin:awa_django_job_changelist") + "?state=failed"
    assert b"/do/retry/" in desk.operator().get(jobs).content
    nobody, looking = desk.operator("nora", may=()), desk.operator("otto", may=("view_job", "view_dlqentry"))
    assert nobody.get(jobs).status_code == 403
    seen = looking.get(jobs)
    assert seen.status_code == 200
    assert b"/do/" not in seen.content
    for client in (nobody, looking):
        for model, verb in (("job", "retry"), ("job", "cancel"), ("dlqentry", "purge")):
            url = reverse(f"admin:awa_django_{model}_action_many", args=[verb])
            answer = client.post(url, {"matching": "1", "confirmed": "1", "state": "failed"})
            assert answer.status_code == 403


# Changes of all that match ------------------------------------------------------------------------------------


def test_all_failed_jobs_are_retried_in_the_background(large: Large, client: Client) -> None:
    entries = desk.log_entries(large.url)
    submitted = desk.submit(client, "job", "retry", state="failed")
    assert submitted.seconds < MOST_SECONDS * LOAD
    assert operations.batch_operation(submitted.operation.id).processed == 0, "nothing is done by the request"
    with desk.leading():
        ended, seen = desk.watch(submitted.operation, seconds=120)
    assert ended.state is BatchState.COMPLETED
    assert (ended.total_matched, ended.processed) == (large.size.failed, large.size.failed)
    after = operations.state_counts()
    assert (after.failed, after.dead) == (0, large.size.dead), "dead letters are redriven, not retried"
    assert desk.log_entries(large.url) == entries + 1, "one entry, whatever it changed"
    assert submitted.operation.submitted_by == "maria"
    assert b"completed" in client.get(submitted.url).content
    assert seen[-1] == ended.total_matched


def test_cancelling_all_that_wait_shows_how_far_it_is_and_can_be_stopped(
    large: Large, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It rests for long enough to be met and stopped on its way, however late that is.
    monkeypatch.setattr("awa_django.maintenance.bulk.PAUSE", 5)
    waiting = operations.state_counts().available
    submitted = desk.submit(client, "job", "cancel", state="available")
    assert submitted.seconds < MOST_SECONDS * LOAD

    def begun() -> bool:
        found = operations.batch_operation(submitted.operation.id)
        return 0 < found.processed < (found.total_matched or 0)

    with desk.leading():
        wait_until(begun, seconds=60, what="some of the jobs to be cancelled")
        matched = operations.batch_operation(submitted.operation.id).total_matched
        # Attempts whose workers are gone may be rescued at any time, and wait then as well.
        assert matched in range(waiting, waiting + large.size.running + 1)
        assert f"{matched:,}".encode() in client.get(submitted.url).content
        stop = submitted.url.replace("/change/", "/do/cancel/")
        answer = client.post(stop, {"confirmed": "1"})
        assert answer.status_code == 302
        ended, seen = desk.watch(submitted.operation, seconds=60)
    assert ended.state is BatchState.CANCELLED
    assert 0 < ended.processed < waiting
    assert ended.processed + ended.skipped == matched
    left = operations.state_counts().available - (matched - ended.processed)
    assert left in range(large.size.running + 1), "what it did not come to waits as before"
    assert seen == sorted(seen)


# Forgetting ---------------------------------------------------------------------------------------------------


def test_history_is_forgotten_without_a_long_statement_and_without_slowing_producers(large: Large) -> None:
    """The last: nothing is left for the tests before."""
    before = operations.state_counts().completed
    pruning = desk.prune(large.size.finished * 8 // 10, seconds=120)
    assert pruning.slowest.seconds < STATEMENT_TIMEOUT.total_seconds(), pruning.slowest.text[:80]
    assert pruning.p95 < 0.05 * LOAD
    assert len(pruning.enqueues) > 20
    assert operations.state_counts().completed < before
    assert operations.list_jobs(JobFilter(queue="produced")).jobs, "what was stored meanwhile is there"
