"""The pages of queues, and what operators do there."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils.html import escape

from awa_django import operations
from tests import stored
from tests.admin.asking import (
    action_url,
    client,
    detail_url,
    list_url,
    messages_of,
    schedule,
    superuser,
    text_of,
    waiting,
    words,
    worker,
)
from tests.test_operations import added, claimed, in_state, state_of

pytestmark = pytest.mark.django_db

ODD = "a/b ?#&_5F %ü\"<i>'"


def test_the_list_shows_each_queue_with_its_figures_and_marks() -> None:
    in_state("retryable", queue="mail")
    in_state("failed", queue="mail")
    in_state("dead", queue="mail")
    added(queue="mail")
    added(queue="idle")
    operations.pause("mail", "ada")
    worker("mail")
    worker("mail", config={"dlq_enabled": False}, seen=timedelta(seconds=1))
    page = words(superuser(), list_url("queuemeta"))
    assert "mail paused configured differently DLQ on 2 0 1 1 1 0 6 / 16" in page
    assert "idle no worker 1 0 0 0 0 0 – " in page
    assert "All 2 Paused 1 Late 0 No worker 1" in page


def test_queues_are_found_by_name_and_by_what_is_wrong_with_them() -> None:
    added(queue="mail-out")
    added(queue="reports")
    operations.pause("reports", None)
    browser = superuser()
    assert "reports" not in words(browser, list_url("queuemeta"), q="MAIL")
    found = words(browser, list_url("queuemeta"), show="paused")
    assert "reports" in found
    assert "mail-out" not in found
    assert "No queue matches" in words(browser, list_url("queuemeta"), q="nothing")
    assert "reports" in words(browser, list_url("queuemeta"), show="nonsense")


def test_without_queues_the_list_says_how_one_comes_to_be() -> None:
    assert "No queue yet" in words(superuser(), list_url("queuemeta"))


def test_the_page_of_a_queue_shows_settings_workers_schedules_and_states() -> None:
    added(queue="mail")
    operations.pause("mail", "ada")
    operations.set_enqueue_shards("mail", 3)
    worker("mail", "other")
    worker("mail", config={"max_workers": 2, "strange": "new"}, seen=timedelta(seconds=1))
    schedule("digest", queue="mail")
    answer = superuser().get(detail_url("queuemeta", "mail"))
    page = text_of(answer)
    assert "Paused since" in page
    assert "by ada" in page
    assert "Live workers run this queue with different settings" in page
    assert "Rate limit 2.5 a second, bursts of 10" in page
    assert "At once 2" in page
    assert "strange new" in page
    assert "Enqueue shards 3" in page
    assert "In flight 6 / 10" in page
    assert "Schedules that fill it digest" in page
    assert "Pause" not in [offer.action.label for offer in answer.context["offers"]]


def test_a_queue_needs_no_row_and_may_have_any_name() -> None:
    added(queue=ODD)
    browser = superuser()
    listed = browser.get(list_url("queuemeta"))
    assert escape(detail_url("queuemeta", ODD)) in listed.content.decode()
    assert ODD in text_of(browser.get(detail_url("queuemeta", ODD)))
    answer = browser.post(action_url("queuemeta", ODD, "pause"), {"confirmed": "1"}, follow=True)
    assert messages_of(answer) == ["1 queue paused."]
    assert [queue.paused for queue in operations.queue_overview()] == [True]


def test_a_queue_that_nobody_knows_can_be_paused_before_its_first_job() -> None:
    browser = superuser()
    assert "Nobody knows this queue yet" in words(browser, detail_url("queuemeta", "future"))
    browser.post(action_url("queuemeta", "future", "pause"), {"confirmed": "1"})
    added(queue="future")
    assert claimed("future") == []
    # What could not be the name of one leads back to the list.
    answer = browser.get(detail_url("queuemeta", "x" * 60), follow=True)
    assert messages_of(answer)[-1:] == [f"There is no queue {'x' * 60!r}"]


def test_pausing_asks_first_and_records_who_did_it() -> None:
    added(queue="mail")
    browser = client("view_queuemeta", "pause_queue", name="ada")
    asked = text_of(browser.post(action_url("queuemeta", "mail", "pause")))
    assert "queue mail" in asked
    assert not operations.queue_overview()[0].paused
    browser.post(action_url("queuemeta", "mail", "pause"), {"confirmed": "1"})
    (queue,) = operations.queue_overview()
    assert (queue.paused, queue.paused_by) == (True, "ada")
    browser.post(action_url("queuemeta", "mail", "resume"), {"confirmed": "1"})
    assert not operations.queue_overview()[0].paused


def test_draining_asks_with_the_number_and_leaves_running_jobs_alone() -> None:
    running = in_state("running", queue="mail")
    others = [in_state("retryable", queue="mail"), in_state("scheduled", queue="mail")]
    others += [waiting(queue="mail")[0], *(added(queue="mail") for _ in range(3))]
    elsewhere = added(queue="other")
    browser = client("view_queuemeta", "pause_queue", "drain_queue")
    asked = text_of(browser.post(action_url("queuemeta", "mail", "drain")))
    assert "6 jobs" in asked
    answer = browser.post(action_url("queuemeta", "mail", "drain"), {"confirmed": "1"}, follow=True)
    assert messages_of(answer) == ["6 jobs cancelled."]
    assert {state_of(job_id) for job_id in others} == {"cancelled"}
    assert (state_of(running), state_of(elsewhere)) == ("running", "available")


def test_very_many_jobs_are_drained_by_a_batch_operation_if_a_worker_runs_those(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("awa_django.admin.queues.AT_ONCE", 2)
    jobs = [added(queue="mail") for _ in range(3)]
    browser = client("view_queuemeta", "pause_queue", "drain_queue", "view_batchoperation", name="ada")
    url = action_url("queuemeta", "mail", "drain")
    worker("mail", version="0.6.9")  # another client's, which knows no such operation
    worker("mail", seen=timedelta(hours=1))
    worker("mail")
    answer = browser.post(url, {"confirmed": "1"})
    (operation,) = operations.batch_operations()
    assert answer["Location"] == detail_url("batchoperation", operation.id)
    assert operation.submitted_by == "ada"
    assert operation.description == (
        "cancel jobs, queue=mail, state=available or retryable or scheduled or waiting_external"
    )
    assert {state_of(job_id) for job_id in jobs} == {"available"}
    stored.run("DELETE FROM awa.runtime_instances WHERE version <> '0.6.9'")
    browser.post(url, {"confirmed": "1"})
    assert {state_of(job_id) for job_id in jobs} == {"cancelled"}


@pytest.mark.parametrize("given", ["pause_queue", "drain_queue"])
def test_draining_needs_both_of_its_permissions(given: str) -> None:
    job_id = added(queue="mail")
    browser = client("view_queuemeta", given)
    assert browser.post(action_url("queuemeta", "mail", "drain"), {"confirmed": "1"}).status_code == 403
    assert state_of(job_id) == "available"


def test_shards_are_asked_for_with_the_number_that_holds_now() -> None:
    added(queue="mail")
    operations.set_enqueue_shards("mail", 5)
    browser = client("view_queuemeta", "change_queue_shards")
    url = action_url("queuemeta", "mail", "set-shards")
    assert 'name="do-shards" value="5"' in browser.post(url).content.decode()
    refused = browser.post(url, {"confirmed": "1", "do-shards": "65"})
    assert "less than or equal to 64" in text_of(refused)
    browser.post(url, {"confirmed": "1", "do-shards": "8"})
    assert operations.queue_overview()[0].enqueue_shards == 8


def test_the_marks_of_descriptors_are_shown_and_their_links_are_links_to_pages_only() -> None:
    for name, url in (("mail", "https://wiki.example/mail"), ("bad", "javascript:alert(1)")):
        stored.run(
            """
            INSERT INTO awa.queue_descriptors (
                queue, display_name, description, owner, docs_url, tags, extra, descriptor_hash, sync_interval_ms,
                created_at, updated_at, last_seen_at
            )
            VALUES (%s, 'Post office', 'Mails', 'team post', %s, '{eu}', '{}', 'x', 10000, now(), now(), now() - %s)
            """,
            name,
            url,
            timedelta(days=1),
        )
    browser = superuser()
    page = browser.get(detail_url("queuemeta", "mail"))
    assert 'href="https://wiki.example/mail"' in page.content.decode()
    assert "Post office" in text_of(page)
    assert "description stale" in text_of(page)
    assert 'href="javascript' not in browser.get(detail_url("queuemeta", "bad")).content.decode()
    assert "Post office mail" in words(browser, list_url("queuemeta"))


@override_settings(AWA={"READ_ONLY": True})
def test_a_read_only_site_offers_and_does_nothing() -> None:
    job_id = added(queue="mail")
    browser = superuser()
    page = words(browser, detail_url("queuemeta", "mail"))
    assert "Read-only." in page
    assert "Drain" not in page
    assert browser.post(action_url("queuemeta", "mail", "drain"), {"confirmed": "1"}).status_code == 403
    assert state_of(job_id) == "available"
