"""Whether the queue is well, as the site says it to load balancers and monitors."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, connections
from django.test import AsyncClient, Client, override_settings
from django.urls import reverse

from awa_django import operations
from awa_django.enqueue import enqueue
from awa_django.jobs import JobInsert
from awa_django.views import status
from awa_django.views.status import _looks
from tests.stored import run

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _site() -> Iterator[None]:
    with override_settings(ROOT_URLCONF="tests.receiving_urls", AWA={}):
        for looks in _looks.values():
            looks.forget()
        yield
        for looks in _looks.values():
            looks.forget()


def ask(query: str = "", path: str = "/awa/health/", method: str = "GET") -> tuple[int, Any]:
    """What is said now, with no look of before."""
    for looks in _looks.values():
        looks.forget()
    response = Client().generic(method, f"{path}{query}")
    assert response["Cache-Control"] == "no-store"
    return response.status_code, response.json() if response.content else None


def report(
    *, healthy: bool = True, leader: bool = False, silent: str = "0 s", stopping: bool = False
) -> None:
    """A worker says how it does, or did some time ago."""
    run(
        """
        INSERT INTO awa.runtime_instances (
            instance_id, hostname, pid, version, started_at, last_seen_at, snapshot_interval_ms, healthy,
            postgres_connected, poll_loop_alive, heartbeat_alive, maintenance_alive, shutting_down, leader,
            queues, queue_descriptor_hashes, job_kind_descriptor_hashes, storage_capability, transition_role
        )
        VALUES (
            %s, 'host', 1, '0.6.9', now(), now() - %s::interval, 10000, %s, true, true, true, true, %s, %s,
            '[]', '{}', '{}', 'queue_storage', 'auto'
        )
        """,
        uuid.uuid4(),
        silent,
        healthy,
        stopping,
        leader,
    )


def test_a_site_that_can_enqueue_is_well_whoever_works() -> None:
    assert ask() == (
        200,
        {
            "status": "ok",
            "missing": [],
            "database": True,
            "schema_version": 40,
            "expected_schema_version": 40,
            "schema_compatible": True,
            "workers": 0,
            "leader": False,
        },
    )
    assert ask(method="HEAD")[0] == 200


def test_addresses_with_and_without_the_slash_answer_at_once() -> None:
    assert reverse("awa_django:health") == "/awa/health/"
    for path in ("/awa/health", "/awa/health/", "/async/health", "/async/health/"):
        assert ask(path=path)[0] == 200


def test_workers_and_a_leader_are_asked_for() -> None:
    assert ask("?require=workers")[1]["missing"] == ["no worker reports that it is well"]
    report(silent="40 s", leader=True)
    report(healthy=False, stopping=True)
    status, body = ask("?require=workers,leader")
    assert (status, body["status"], len(body["missing"])) == (503, "failing", 2)
    report()
    status, body = ask("?require=workers")
    assert (status, body["workers"], body["leader"]) == (200, 1, False)
    assert ask("?require=workers&require=leader")[1]["missing"] == ["no worker leads"]
    report(leader=True)
    status, body = ask("?require=workers&require=leader")
    assert (status, body["workers"], body["leader"]) == (200, 2, True)


def test_a_lag_may_be_limited_and_paused_queues_do_not_count() -> None:
    assert ask("?max_lag=60") == (200, {**ask()[1], "lag_seconds": 0.0})
    enqueue(JobInsert(kind="k", args={}, queue="slow"))
    run("UPDATE awa.ready_entries SET run_at = run_at - interval '90 s'")
    status, body = ask("?max_lag=60")
    assert (status, body["missing"]) == (503, ["a job has been due for over 60 seconds"])
    assert 90 <= body["lag_seconds"] < 100
    assert "lag_seconds" not in ask()[1]
    assert ask("?max_lag=100.5")[0] == 200
    operations.pause("slow")
    assert ask("?max_lag=60")[0] == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?require=worker", "'worker' is not known; workers and leader are"),
        ("?max_lag=soon", "not 'soon'"),
        ("?max_lag=-1", "not '-1'"),
        ("?max_lag=inf", "not 'inf'"),
        ("?max_lag=nan", "not 'nan'"),
        ("?max_lag=", "not ''"),
    ],
)
def test_a_question_that_nobody_understands_is_refused(
    query: str, words: str, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0):
        for path in ("/awa/health/", "/async/health/"):
            status, body = ask(query, path)
            assert status == 400
            assert words in body["error"]


def test_nothing_is_changed_this_way() -> None:
    for path in ("/awa/health/", "/async/health/"):
        for method in ("POST", "DELETE", "OPTIONS"):
            assert ask(path=path, method=method)[0] == 405
        assert Client().post(path)["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("prefix", ["/awa", "/async"])
def test_a_database_that_is_away_is_no_server_error(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    away = OperationalError("connection refused by db.internal")
    with (
        mock.patch("awa_django.views.status.transaction.atomic", side_effect=away),
        caplog.at_level(logging.INFO),
    ):
        status, body = ask(path=f"{prefix}/health/", query="?require=workers&max_lag=5")
    assert (status, body["missing"]) == (503, ["the database does not answer"])
    assert (body["database"], body["workers"], body["schema_version"], body["lag_seconds"]) == (
        False,
        None,
        None,
        None,
    )
    assert "db.internal" not in str(body), "that is for the log"
    assert "db.internal" in caplog.text
    said = [(record.name, record.levelname) for record in caplog.records]
    assert said == [("awa_django.health", "WARNING"), ("awa_django.health", "INFO")], "nobody is mailed"


@pytest.mark.django_db(transaction=True)
def test_a_session_that_the_server_broke_off_is_told_from_an_answer() -> None:
    with connection.cursor() as cursor:
        pid = cursor.connection.info.backend_pid
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 30000)", [pid])
    other.close()
    assert ask()[1]["database"] is False
    assert ask()[0] == 200, "Django opened another at the end of the request"


def test_a_schema_that_cannot_be_used_is_said_and_no_further_looked_at() -> None:
    run("DELETE FROM awa.schema_version WHERE version >= 40")
    status, body = ask("?require=workers")
    assert (status, body["database"], body["schema_compatible"], body["workers"]) == (503, True, False, None)
    assert body["missing"] == ["the schema of the queue is not one that this release can use"]
    run("DROP SCHEMA awa CASCADE")
    status, body = ask()
    assert (status, body["database"], body["schema_version"]) == (503, True, None)


def test_it_looks_once_a_second_however_often_it_is_asked(django_assert_num_queries: Any) -> None:
    assert status.FRESH_SECONDS == 1
    ask()
    # However long the test takes for it.
    with mock.patch("awa_django.views.status.FRESH_SECONDS", 60), django_assert_num_queries(0):
        for path in ("/awa/health/", "/async/health/"):
            assert Client().get(path).status_code == 200
        assert async_to_sync(AsyncClient().get)("/async/health/").status_code == 200
        with mock.patch("awa_django.views.status.sync_to_async") as threads:
            assert async_to_sync(AsyncClient().get)("/async/health/?require=leader").status_code == 503
        threads.assert_not_called()
    with mock.patch("awa_django.views.status.FRESH_SECONDS", 0):
        report()
        assert Client().get("/awa/health/").json()["workers"] == 1


def test_while_one_looks_others_get_what_was_found_before() -> None:
    ask()
    looking, release = threading.Event(), threading.Event()
    looks = _looks[False]
    before = looks.last(60)
    assert before is not None

    def slow(*, with_lag: bool) -> Any:
        looking.set()
        assert release.wait(10)
        return before

    with (
        mock.patch("awa_django.views.status._look", slow),
        mock.patch("awa_django.views.status.FRESH_SECONDS", 0),
        ThreadPoolExecutor(4) as threads,
    ):
        first = threads.submit(looks.look)
        assert looking.wait(10)
        others = [threads.submit(looks.look) for _ in range(3)]
        assert [other.result(10) for other in others] == [before] * 3
        assert not first.done()
        release.set()
        assert first.result(10) == before


def test_nobody_waits_longer_than_seconds_for_a_look_that_hangs() -> None:
    looks = _looks[False]
    assert looks.last(60) is None
    for ago, tries in ((status.WAIT_SECONDS + 1, 1), (status.WAIT_SECONDS - 0.2, None)):
        with (
            mock.patch.object(looks, "_taking") as taking,
            mock.patch.object(looks, "_began", time.monotonic() - ago),
        ):
            taking.acquire.side_effect = lambda timeout: time.sleep(timeout)
            assert Client().get("/awa/health/").json()["missing"] == ["the database does not answer"]
            assert tries is None or taking.acquire.call_count == tries, "nobody waits for what hangs already"


@pytest.mark.django_db(transaction=True)
def test_a_look_that_meets_a_lock_ends_by_itself() -> None:
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE awa.runtime_instances")
        with mock.patch.object(status, "WAIT_SECONDS", 0.2):
            assert ask()[1]["missing"] == ["the database does not answer"]
        cursor.execute("ROLLBACK")
    other.close()
    assert ask()[0] == 200


def test_it_needs_neither_login_nor_atomic_requests() -> None:
    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    with (
        override_settings(MIDDLEWARE=middleware),
        mock.patch.dict(connection.settings_dict, {"ATOMIC_REQUESTS": True}),
    ):
        for path in ("/awa/health/", "/async/health/"):
            assert ask(path=path)[0] == 200
