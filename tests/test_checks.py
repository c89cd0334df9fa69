from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from unittest import mock

import pytest
from django.core import checks
from django.db import connection, connections
from django.test import override_settings

from awa_django.checks import check_jobs, check_server, check_settings
from awa_django.registry import job, registry
from awa_django.states import JobState, state_mask
from awa_django.uniqueness import Unique


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def more_databases() -> Iterator[None]:
    """An SQLite alias and a second PostgreSQL one. Nothing is opened."""
    added = {
        "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        "jobs": {"ENGINE": "django.db.backends.postgresql", "NAME": "jobs"},
    }
    configured = connections.configure_settings({"default": {}, **added})
    for name in added:
        connections.settings[name] = configured[name]
    yield
    for name in added:
        if hasattr(connections._connections, name):  # type: ignore[attr-defined]
            delattr(connections._connections, name)  # type: ignore[attr-defined]
        del connections.settings[name]


def ids(found: list[checks.CheckMessage]) -> list[str | None]:
    return [message.id for message in found]


def test_a_project_that_is_right_hears_nothing() -> None:
    found = checks.run_checks(tags=["awa"])
    assert [message for message in found if message.obj is None] == []


@override_settings(AWA={"POLL_INTERVAL": 0, "LISTEN": 1})
def test_every_wrong_setting_is_an_error_with_a_hint() -> None:
    found = check_settings()
    assert ids(found) == ["awa.E001", "awa.E001"]
    assert "POLL_INTERVAL" in found[0].msg
    assert all(message.hint for message in found)
    assert check_server(databases=["default"]) == []


@override_settings(AWA={"STALE_AFTER": 60})
def test_staleness_under_three_heartbeats_is_an_error() -> None:
    assert ids(check_settings()) == ["awa.E001"]


@override_settings(AWA={"DATABASE": "jbos"})
def test_a_database_that_is_not_there_is_an_error() -> None:
    (fault,) = check_settings()
    assert fault.id == "awa.E002"
    assert "'jbos'" in fault.msg


@pytest.mark.usefixtures("more_databases")
@override_settings(AWA={"DATABASE": "lite"})
def test_a_database_that_is_not_postgresql_is_an_error() -> None:
    (fault,) = check_settings()
    assert (fault.id, "sqlite" in fault.msg) == ("awa.E002", True)
    assert check_server(databases=["lite"]) == []


@pytest.mark.usefixtures("more_databases")
@override_settings(AWA={"DATABASE": "jobs"})
def test_a_queue_away_from_its_rows_is_a_warning() -> None:
    (warning,) = check_settings()
    assert warning.id == "awa.W002"
    assert "after the commit" in warning.msg


def test_listening_behind_a_transaction_pooler_is_a_warning() -> None:
    with mock.patch.dict(connection.settings_dict, {"DISABLE_SERVER_SIDE_CURSORS": True}):
        assert ids(check_settings()) == ["awa.W001"]
        with override_settings(AWA={"LISTEN": False}):
            assert check_settings() == []


@override_settings(AWA={"QUEUES": {"mail": 1}})
def test_a_kind_whose_queue_nobody_serves_is_a_warning() -> None:
    with registry.isolated():
        registry._kinds.clear()

        @job(queue="mail")
        def served() -> None: ...

        @job(queue="bulk")
        def unserved() -> None: ...

        (warning,) = check_jobs()
    assert (warning.id, "'bulk'" in warning.msg) == ("awa.W004", True)
    assert "--queue bulk" in str(warning.hint)


@pytest.mark.parametrize(
    ("awa", "words"),
    [
        (
            {"QUEUES": {"a": {"min_workers": 2, "weight": 3}}},
            "min_workers and weight, which mean nothing without",
        ),
        ({"QUEUES": {"a": 20, "b": {}}, "GLOBAL_MAX_WORKERS": 9}, "max_workers, which mean nothing with"),
    ],
)
def test_options_that_mean_nothing_are_a_warning(awa: dict[str, Any], words: str) -> None:
    with override_settings(AWA=awa):
        (warning,) = check_settings()
    assert warning.id == "awa.W005"
    assert words in warning.msg
    assert "['a']" in warning.msg


@override_settings(
    AWA={"QUEUES": {"a": {"min_workers": 2}, "b": {"min_workers": 1}, "c": {}}, "GLOBAL_MAX_WORKERS": 3}
)
def test_a_queue_that_can_never_run_a_job_is_a_warning() -> None:
    (warning,) = check_settings()
    assert (warning.id, "'c'" in warning.msg) == ("awa.W006", True)


@override_settings(AWA={"QUEUES": {"a": {"min_workers": 2}, "c": {}}, "GLOBAL_MAX_WORKERS": 3})
def test_queues_that_share_slots_as_they_may_are_no_matter() -> None:
    assert check_settings() == []


def test_unreadable_annotations_are_an_error() -> None:
    @job
    def unreadable(when: NowhereToBeFound) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    @job
    def readable(when: datetime) -> None: ...

    (fault,) = check_jobs()
    assert (fault.id, fault.obj) == ("awa.E003", unreadable.name)
    assert "TYPE_CHECKING" in fault.msg


def test_unique_states_that_are_left_and_taken_again_are_a_warning() -> None:
    @job(unique=Unique(states=state_mask(JobState.SCHEDULED, JobState.AVAILABLE)))
    def until_started() -> None: ...

    @job(unique=True)
    def plain() -> None: ...

    (warning,) = check_jobs()
    assert (warning.id, warning.obj) == ("awa.W003", until_started.name)


@pytest.mark.django_db
def test_the_server_is_asked_only_where_its_database_is_checked() -> None:
    assert check_server() == []
    assert check_server(databases=[]) == []
    assert check_server(databases=["other"]) == []
    with mock.patch("awa_django.checks.MINIMUM_SERVER", 990_000):
        assert check_server(databases=None) == []
        (fault,) = check_server(databases=["default"])
    assert fault.id == "awa.E004"
    assert "needs 99 or newer" in fault.msg
    assert check_server(databases=["default"]) == []


def test_checks_are_registered() -> None:
    names: set[Any] = {check.__name__ for check in checks.registry.registry.get_checks()}
    assert {"check_settings", "check_jobs"} <= names
    deployed = checks.registry.registry.get_checks(include_deployment_checks=True)
    assert check_server in deployed
