"""What holds for all pages alike: who is led where, in which language and zone, and what a verb leaves behind."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.test import override_settings

import awa_django
from awa_django import operations
from awa_django.admin.kept import Kept
from awa_django.operations import JobFilter, SetPriority
from awa_django.redaction import MASK
from tests import stored
from tests.admin.asking import (
    action_url,
    client,
    detail_url,
    list_url,
    schedule,
    superuser,
    text_of,
    waiting,
    words,
    worker,
)
from tests.test_operations import added, in_state, state_of

pytestmark = pytest.mark.django_db

#: Pages whose list alone there is.
KEYLESS = "storagetransitionstate"


def one_of_each() -> dict[str, object]:
    """The key of an object of each page, with links to others."""
    dead = in_state("dead", tags=("t",))
    _job, callback = waiting(tags=("t",))
    schedule("nightly", queue="q")
    return {
        "job": dead,
        "dlqentry": dead,
        "waitingcallback": callback,
        "queuemeta": "q",
        "kinddescriptor": "k",
        "cronjob": "nightly",
        "batchoperation": operations.submit_batch(
            SetPriority(1), JobFilter(queue="q"), submitted_by="ada"
        ).id,
        "runtimeinstance": worker("q", kinds=("k",), leader=True),
        KEYLESS: None,
    }


def test_whoever_sees_one_kind_of_pages_is_not_led_to_those_they_cannot_see() -> None:
    keys = one_of_each()
    own = re.compile(r"/admin/awa_django/(\w+)/")
    for model, key in keys.items():
        browser = client(f"view_{model}", "view_job_payload")
        pages = [list_url(model), "/admin/awa_django/"]
        if key is not None:
            pages.append(detail_url(model, key))
        for url in pages:
            page = browser.get(url).content.decode()
            assert set(own.findall(page)) <= {model}, url
    # Whoever may see all is led everywhere.
    page = superuser().get(detail_url("job", keys["job"])).content.decode()
    assert {"dlqentry", "queuemeta", "kinddescriptor"} <= set(own.findall(page))


def test_what_is_submitted_leads_whoever_cannot_see_batch_operations_back_to_the_list() -> None:
    in_state("failed")
    browser = client("view_job", "retry_job", "submit_batchoperation")
    url = f"{list_url('job')}do/retry/"
    answer = browser.post(url, {"matching": "1", "state": "failed", "confirmed": "1"})
    assert answer.status_code == 302
    assert answer["Location"] == list_url("job")
    assert [operation.description for operation in operations.batch_operations()]


@override_settings(LANGUAGE_CODE="de", USE_THOUSAND_SEPARATOR=True)
def test_where_numbers_are_written_with_dots_ids_are_not() -> None:
    stored.run("SELECT setval('awa.job_id_seq', 7654320)")
    dead, failed = in_state("dead"), in_state("failed")
    worker("q", pid=7654321)
    browser = superuser()
    for url in (
        list_url("job"),
        detail_url("job", failed),
        list_url("dlqentry"),
        detail_url("dlqentry", dead),
        list_url("runtimeinstance"),
        "/admin/awa_django/",
    ):
        assert "7.654.3" not in browser.get(url).content.decode(), url
    page = browser.get(list_url("job")).content.decode()
    (key,) = re.findall(rf'name="_selected_action" value="({failed})"', page)
    browser.post(f"{list_url('job')}do/retry/", {"_selected_action": key, "confirmed": "1"})
    assert state_of(failed) == "available"


@pytest.mark.parametrize(
    ("zone", "at"),
    [("Asia/Tokyo", "9999-12-31 23:00+00"), ("America/New_York", "0001-01-01 00:00+00")],
)
def test_times_at_either_end_of_the_calendar_are_shown_in_any_zone(zone: str, at: str) -> None:
    job_id = in_state("scheduled")
    stored.run("UPDATE awa.deferred_jobs SET run_at = %s", at)
    with override_settings(TIME_ZONE=zone):
        browser = superuser()
        assert f"{at[:16]}:00 UTC" in words(browser, detail_url("job", job_id))
        assert browser.get(list_url("job")).status_code == 200


@override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo")
def test_a_project_without_time_zones_has_its_local_time_in_forms() -> None:
    dead = in_state("dead")
    browser = superuser()
    run_at = {"confirmed": "1", "do-run_at": "2999-01-01T09:00"}
    browser.post(action_url("dlqentry", dead, "redrive"), run_at)
    assert operations.load_job(dead).job.run_at == datetime(2999, 1, 1, tzinfo=UTC)
    chosen = {"operation": "cancel", "queue": "q", "created_from": "2020-01-01T09:00", "confirmed": "1"}
    browser.post(f"{list_url('batchoperation')}add/", chosen)
    (operation,) = operations.batch_operations()
    assert "2020-01-01T00:00:00" in str(operation.filter)


@pytest.mark.parametrize("model", ["queuemeta", "kinddescriptor", "cronjob"])
def test_an_object_that_is_called_do_has_pages(model: str) -> None:
    schedule("do")
    added(queue="do", kind="do")
    browser = superuser()
    url = detail_url(model, "do")
    assert browser.get(url).status_code == 200
    assert browser.get(url.replace("/change/", "/history/")).status_code == 200


@pytest.mark.parametrize("model", ["queuemeta", "kinddescriptor"])
def test_a_name_of_emoji_and_markup_has_a_page_and_a_history(model: str) -> None:
    name = "😀" * 10 + "a/b%20\"<x>'"
    added(queue=name, kind=name)
    browser = superuser()
    page = browser.get(detail_url(model, name))
    assert html.escape(name).replace("&#x27;", "&#39;") in page.content.decode().replace("&#x27;", "&#39;")
    if model == "queuemeta":
        browser.post(action_url(model, name, "pause"), {"confirmed": "1"})
        assert operations.queue_overview()[0].paused
        history = browser.get(detail_url(model, name).replace("/change/", "/history/"))
        assert "1 queue paused." in text_of(history)


@override_settings(AWA={"ADMIN_STATEMENT_TIMEOUT": 0.001})
def test_a_search_that_takes_too_long_says_so() -> None:
    stored.run("INSERT INTO awa.queue_meta (queue) SELECT 'q' || n FROM generate_series(1, 5000) AS n")
    browser = superuser()
    answer = browser.get(list_url("job"), {"q": "something"})
    assert answer.status_code == 503
    assert "That took the database too long" in answer.content.decode()


def test_past_actions_say_who_and_when_and_lead_back_to_the_object() -> None:
    job_id = in_state("failed")
    browser = client("view_job", "retry_job", name="ada")
    url = detail_url("job", job_id).replace("/change/", "/history/")
    nothing = text_of(browser.get(url))
    assert "Nobody has done anything to it from here" in nothing
    browser.post(action_url("job", job_id, "retry"), {"confirmed": "1"})
    answer = browser.get(url)
    page = text_of(answer)
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC ada Retry: 1 job will run again\.", page)
    assert f'<a href="{detail_url("job", job_id)}">' in answer.content.decode()
    # With the navigation of every page.
    assert [entry["is_here"] for entry in answer.context["nav"] if entry["label"] == "Jobs"] == [True]


def test_the_question_before_an_action_stands_below_the_list_and_the_object_that_it_is_about() -> None:
    job_id = in_state("failed")
    browser = superuser()
    one = browser.post(action_url("job", job_id, "retry"), {})
    assert f"Jobs › job {job_id} › Retry" in text_of(one)
    several = browser.post(f"{list_url('job')}do/retry/", {"_selected_action": [job_id, in_state("failed")]})
    assert "Jobs › Retry" in text_of(several)


def test_all_that_match_wait_for_a_worker_and_the_question_says_so() -> None:
    in_state("failed", queue="mail")
    chosen = {"matching": "1", "queue": "mail"}
    browser = superuser()
    assert "No worker is live: it begins" in text_of(browser.post(f"{list_url('job')}do/retry/", chosen))
    worker("mail")
    assert "No worker is live" not in text_of(browser.post(f"{list_url('job')}do/retry/", chosen))


def test_what_pages_keep_is_read_anew_after_a_verb() -> None:
    reads: list[int] = []
    kept = Kept(timedelta(hours=1), lambda: reads.append(1))
    job_id = in_state("failed")
    kept()
    kept()
    assert len(reads) == 1
    superuser().post(action_url("job", job_id, "retry"), {"confirmed": "1"})
    kept()
    assert len(reads) == 2


def test_an_error_that_is_an_object_is_masked_in_the_timeline_too() -> None:
    job_id = in_state("retryable")
    entry = {"attempt": 1, "at": "2026-01-31T12:00:00Z", "error": {"password": "hunter2", "code": 7}}
    stored.run(
        "UPDATE awa.deferred_jobs SET payload = jsonb_set(payload, '{errors}', %s::jsonb) WHERE job_id = %s",
        json.dumps([entry]),
        job_id,
    )
    page = words(superuser(), detail_url("job", job_id))
    assert "Attempt 1 failed" in page
    assert MASK in page
    assert "hunter2" not in page


def test_the_timeline_says_when_the_attempt_of_a_completed_job_began() -> None:
    job_id = in_state("completed")
    assert "Attempt 1 started" in words(superuser(), detail_url("job", job_id))


def test_a_long_value_of_a_schedule_leads_to_the_whole_for_whoever_may_see_it() -> None:
    schedule("nightly", args=json.dumps({"text": "x" * 30_000, "api_key": "hunter2"}))
    url = detail_url("cronjob", "nightly").replace("change/", "part/args/")
    browser = client("view_cronjob", "view_job_payload")
    assert f'href="{url}"' in browser.get(detail_url("cronjob", "nightly")).content.decode()
    whole = browser.get(url)
    assert "x" * 30_000 in whole.content.decode()
    assert "hunter2" not in whole.content.decode()
    assert whole["Content-Type"] == "text/plain; charset=utf-8"
    assert client("view_cronjob").get(url).status_code == 403
    assert client("view_job_payload").get(url).status_code == 403
    assert browser.get(url.replace("args", "nothing")).status_code == 404
    assert browser.get(url.replace("nightly", "none")).status_code == 404


def test_a_schedules_arguments_that_are_nested_too_deep_are_no_error() -> None:
    schedule("deep", args='{"a":' * 900 + "1" + "}" * 900)
    assert superuser().get(detail_url("cronjob", "deep")).status_code == 200


def test_a_job_that_is_nested_too_deep_for_a_document_says_so() -> None:
    job_id = added()
    stored.run(
        "UPDATE awa.ready_entries SET args = %s::jsonb WHERE job_id = %s", "[" * 600 + "]" * 600, job_id
    )
    browser = superuser()
    assert browser.get(detail_url("job", job_id)).status_code == 200
    assert browser.get(f"{list_url('job')}{job_id}/dump/").status_code == 404


# Jobs of both storages, whose ids overlap


def test_a_job_of_the_other_storage_is_shown_and_changed_not_the_one_with_its_number() -> None:
    job_id = in_state("available", args={"where": "queue storage"})
    stored.run(
        """
        INSERT INTO awa.jobs_hot (id, kind, queue, args, state)
        VALUES (%s, 'k', 'q', '{"where": "canonical"}', 'available')
        """,
        job_id,
    )
    browser = superuser()
    page = browser.get(list_url("job")).content.decode()
    key = f"{job_id}.canonical"
    assert f'name="_selected_action" value="{key}"' in page
    assert f'href="{detail_url("job", key)}"' in page
    shown = words(browser, detail_url("job", key))
    assert "canonical" in shown
    assert "queue storage" not in shown.partition("Arguments")[2].partition("Metadata")[0]
    part = browser.get(f"{list_url('job')}{key}/part/args/").content.decode()
    assert json.loads(part) == {"where": "canonical"}
    assert json.loads(browser.get(f"{list_url('job')}{key}/dump/").content)["job"]["args"] == json.loads(part)
    browser.post(action_url("job", key, "cancel"), {"confirmed": "1"})
    assert operations.load_job(job_id, plane="canonical").job.state.value == "cancelled"
    assert state_of(job_id) == "available"
    entry = LogEntry.objects.get()
    assert entry.object_id == key
    again = browser.post(
        f"{list_url('job')}do/cancel/", {"_selected_action": [str(job_id), key], "confirmed": "1"}
    )
    assert again.status_code == 302
    assert state_of(job_id) == "cancelled"
    browser.post(action_url("job", key, "dead-letter"), {"confirmed": "1", "do-reason": "manual"})
    assert "the canonical tables have no dead letters" in LogEntry.objects.latest("id").change_message


# Words


@pytest.mark.parametrize(
    ("model", "action", "says"),
    [
        ("queuemeta", "pause", ""),
        ("job", "cancel", "If its state no longer fits by then, it is left as it is."),
    ],
)
def test_the_question_speaks_of_the_state_of_jobs_alone(model: str, action: str, says: str) -> None:
    key = added() if model == "job" else "q"
    page = text_of(superuser().post(action_url(model, key, action)))
    assert ("state no longer fits" in page) == bool(says)
    assert says in page
    assert "Each one's state" not in page


def test_back_from_the_form_of_batch_operations_leads_to_their_list() -> None:
    page = superuser().get(f"{list_url('batchoperation')}add/").content.decode()
    assert f'<a class="awa-button" href="{list_url("batchoperation")}">Back</a>' in page


def test_pages_load_one_style_sheet() -> None:
    folder = Path(awa_django.__file__).parent / "static" / "awa_django"
    assert sorted(path.name for path in folder.iterdir()) == ["awa.css", "awa.js"]
