"""The pages of worker processes."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest

from tests.admin.asking import detail_url, list_url, messages_of, superuser, text_of, words, worker

pytestmark = pytest.mark.django_db


def test_the_list_shows_live_workers_and_on_demand_those_that_are_gone() -> None:
    worker("mail", "reports", hostname="box-1", leader=True)
    worker("mail", hostname="box-2", seen=timedelta(hours=2))
    worker("mail", hostname="box-3", seen=timedelta(hours=3), shutting_down=True)
    browser = superuser()
    live = words(browser, list_url("runtimeinstance"))
    assert "Live 1 Healthy 1 Leading 1 Stale 2 In flight 6" in live
    assert "healthy leader mail , reports 6 " in live
    assert "box-2" not in live
    every = words(browser, list_url("runtimeinstance"), show="all")
    assert "box-2" in every
    assert re.search(r"box-2:\d+ stale mail .*box-3:\d+ ended mail ", every)
    assert "mail 1 3 / 8 – the same everywhere" in every


def test_what_needs_attention_is_said_first() -> None:
    browser = superuser()
    nothing = words(browser, list_url("runtimeinstance"))
    assert "No worker is running: jobs wait until one is started." in nothing
    assert "Start one with: manage.py awa_worker" in nothing
    worker("mail", healthy=False, postgres_connected=False)
    worker("mail", config={"max_workers": 1})
    page = words(browser, list_url("runtimeinstance"))
    assert "No worker leads" in page
    assert "has lost its database" in page
    assert "Workers of queue mail are configured differently." in page


def test_a_list_of_dead_workers_points_to_them() -> None:
    worker("mail", seen=timedelta(hours=2))
    assert "No worker is live" in words(superuser(), list_url("runtimeinstance"))


def test_the_page_of_a_worker_shows_all_of_its_last_report() -> None:
    instance = worker(
        "mail",
        kinds=("greet", "note"),
        hostname="box",
        pid=4711,
        global_max_workers=16,
        transition_role="queue_storage_target",
        heartbeat_alive=False,
        healthy=False,
    )
    answer = superuser().get(detail_url("runtimeinstance", instance))
    page = text_of(answer)
    for said in (
        "box:4711",
        "By its own account it sends no heartbeats.",
        "Healthy no Database yes Looks for jobs yes Heartbeats no Maintenance yes",
        "3 in flight",
        "Rate limit 2.5 a second, bursts of 10",
        "queue_storage_target",
        "At once in all 16",
        "Queues described 1",
        "Kinds declared 2",
        "Reports every 10 s",
        str(instance),
    ):
        assert said in page


def test_rows_that_nobody_should_have_written_are_shown_all_the_same() -> None:
    odd = worker(
        queues='[{"queue": 7}, 5, {"queue": "x", "config": {"mode": ["odd"], "rate_limit": "fast"}}]'
    )
    worse = worker(queues="{}", queue_descriptor_hashes="[]", hostname=None)
    browser = superuser()
    assert "fast" in words(browser, detail_url("runtimeinstance", odd))
    assert "It serves no queue" in words(browser, detail_url("runtimeinstance", worse))
    assert "unknown host" in words(browser, list_url("runtimeinstance"))
    assert "Queue x" in words(browser, detail_url("queuemeta", "x"))


@pytest.mark.parametrize("key", [str(uuid.UUID(int=7)), "no-uuid", "a/b"])
def test_a_worker_that_is_not_there_leads_back_to_the_list(key: str) -> None:
    answer = superuser().get(detail_url("runtimeinstance", key), follow=True)
    assert "There is no worker" in messages_of(answer)[0]
