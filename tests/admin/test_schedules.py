"""The pages of schedules, and what operators do there."""

from __future__ import annotations

import pytest

from awa_django import operations, periodic
from awa_django.redaction import MASK
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
    words,
    worker,
)

pytestmark = pytest.mark.django_db


def names() -> list[str]:
    return [status.name for status in periodic.schedules()]


def test_the_list_shows_each_schedule_with_its_marks() -> None:
    schedule("nightly", queue="mail")
    schedule("broken", cron_expr="0 25 * * *")
    periodic.pause("nightly", "ada")
    operations.pause("mail", None)
    page = words(superuser(), list_url("cronjob"))
    assert "1 schedule cannot be evaluated" in page
    assert "broken never fires" in page
    assert "nightly paused its queue is paused no live worker knows the kind 0 3 * * * UTC k mail in" in page


def test_a_schedule_whose_date_never_comes_is_marked_as_one_that_cannot_be_read() -> None:
    schedule("leap", cron_expr="0 0 30 2 *")
    schedule("broken", cron_expr="every day")
    worker("q", kinds=("k",))
    browser = superuser()
    page = words(browser, list_url("cronjob"))
    assert "leap never fires 0 0 30 2 *" in page
    assert "None: no date matches the expression." in words(browser, detail_url("cronjob", "leap"))
    assert "no date matches" not in words(browser, detail_url("cronjob", "broken")), "that is not why"


def test_without_schedules_the_list_says_how_one_comes_to_be() -> None:
    assert "Declare one with cron(...)" in words(superuser(), list_url("cronjob"))


def test_the_page_of_a_schedule_tells_the_next_ten_fires() -> None:
    schedule("hourly", cron_expr="0 * * * *", tags=["eu"], missed_fire_policy="catch_up")
    worker("q", kinds=("k",))
    before = periodic.next_fires("hourly", 10)
    answer = superuser().get(detail_url("cronjob", "hourly"))
    page = text_of(answer)
    # Unless the hour has turned meanwhile, these are the same.
    assert answer.context["fires"] in (before, periodic.next_fires("hourly", 10))
    assert "all of them fire late, in order catch_up" in page
    assert "not by the code of this process" in page
    assert "no live worker knows the kind" not in page


def test_arguments_are_redacted_and_need_their_permission() -> None:
    schedule("nightly", args='{"region": "nz-north", "api_key": "hunter2"}')
    page = words(superuser(), detail_url("cronjob", "nightly"))
    assert "nz-north" in page
    assert MASK in page
    assert "hunter2" not in page
    hidden = words(client("view_cronjob"), detail_url("cronjob", "nightly"))
    assert "Arguments and metadata are hidden" in hidden
    assert "nz-north" not in hidden
    assert "shop" not in hidden


def test_a_schedule_that_the_leader_does_not_declare_is_orphaned() -> None:
    schedule("gone")
    schedule("kept")
    stored.run("UPDATE awa.cron_jobs SET updated_at = now() - interval '1 hour'")
    browser = superuser()
    # Without a leader nobody can tell.
    worker("q")
    assert "orphaned" not in words(browser, list_url("cronjob"))
    worker("q", leader=True)
    stored.run("UPDATE awa.cron_jobs SET updated_at = now() WHERE name = 'kept'")
    assert words(browser, list_url("cronjob")).count("orphaned") == 1
    assert "The worker that leads does not declare it" in words(browser, detail_url("cronjob", "gone"))
    # What this process declares has not gone from the code, whoever leads.
    with periodic.declared.isolated():
        periodic.cron("gone", "0 3 * * *", "k")
        assert "orphaned" not in words(browser, list_url("cronjob"))
        assert "tests.admin.test_schedules" in words(browser, detail_url("cronjob", "gone"))


def test_pausing_and_resuming_record_who_did_it() -> None:
    schedule()
    browser = client("view_cronjob", "pause_cronjob", name="ada")
    browser.post(action_url("cronjob", "nightly", "pause"), {"confirmed": "1"})
    (status,) = periodic.schedules()
    assert (status.is_paused, status.paused_by) == (True, "ada")
    assert "by ada" in words(browser, detail_url("cronjob", "nightly"))
    browser.post(action_url("cronjob", "nightly", "resume"), {"confirmed": "1"})
    assert not periodic.schedules()[0].is_paused


def test_triggering_leads_to_the_new_job() -> None:
    schedule(queue="mail")
    periodic.pause("nightly")
    answer = client("view_cronjob", "trigger_cronjob", "view_job").post(
        action_url("cronjob", "nightly", "trigger"), {"confirmed": "1"}
    )
    (record,) = operations.list_jobs().jobs
    assert answer["Location"] == detail_url("job", record.job.id)
    assert record.job.metadata == {"team": "shop", "cron_name": "nightly", "triggered_manually": True}
    # Whoever may not see jobs is told its number.
    answer = client("view_cronjob", "trigger_cronjob").post(
        action_url("cronjob", "nightly", "trigger"), {"confirmed": "1"}, follow=True
    )
    newest = operations.list_jobs().jobs[0].job.id
    assert messages_of(answer) == [f"Enqueued: job {newest}."]


def test_deleting_warns_that_a_worker_brings_it_back() -> None:
    schedule()
    browser = client("view_cronjob", "delete_cronjob")
    asked = text_of(browser.post(action_url("cronjob", "nightly", "delete")))
    assert "A running worker whose code declares it stores it again" in asked
    assert names() == ["nightly"]
    answer = browser.post(action_url("cronjob", "nightly", "delete"), {"confirmed": "1"}, follow=True)
    assert messages_of(answer) == ["1 schedule deleted."]
    assert names() == []
    again = browser.post(action_url("cronjob", "nightly", "delete"), {"confirmed": "1"}, follow=True)
    assert (
        messages_of(again) == ["There is no such schedule any more."]
        or "not changed" in messages_of(again)[0]
    )


def test_names_of_any_kind_have_pages() -> None:
    for name in ("a/b", "50%", "ümlaut _2F ?", "<script>"):
        schedule(name)
    browser = superuser()
    for name in names():
        assert name in text_of(browser.get(detail_url("cronjob", name)))
    assert "<script>" not in browser.get(list_url("cronjob")).content.decode().partition('id="content')[2]


def test_rows_that_nobody_should_have_written_are_shown_all_the_same() -> None:
    schedule("odd", args="[1, 2]", metadata="7", timezone="Mars/Base")
    schedule("far", last_enqueued_at="infinity")
    schedule("huge", args='{"n": ' + "9" * 5000 + "}")
    stored.run("UPDATE awa.cron_jobs SET paused_at = now(), paused_by = NULL WHERE name = 'far'")
    browser = superuser()
    assert "never fires" in words(browser, list_url("cronjob"))
    assert "Mars/Base" in words(browser, detail_url("cronjob", "odd"))
    assert "Paused since" in words(browser, detail_url("cronjob", "far"))
    assert MASK in words(browser, detail_url("cronjob", "huge"))
