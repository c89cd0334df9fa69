"""The list of jobs and the page of one."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.http import QueryDict
from django.test import override_settings

from awa_django import operations
from awa_django.admin.search import search_of, terms_of
from awa_django.encoding import encode
from awa_django.jobs import Callback
from awa_django.states import JobState
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
from tests.scenarios.walking import sent
from tests.test_operations import STATES, added, claimed, in_state, state_of

pytestmark = pytest.mark.django_db

JOBS = "job"
SECRET = {"user": {"Password": "hunter2"}, "items": [{"api_key": "hunter2"}]}
#: Fifteen, and three since a test is in a transaction: a savepoint, its release, and settings given back.
MOST_STATEMENTS = 15 + 3


def many_url(action: str) -> str:
    return f"{list_url(JOBS)}do/{action}/"


def own_code(page: str) -> list[str]:
    """Scripts, styles and handlers within a page, which a strict content security policy refuses."""
    return re.findall(r"<style\b|<script\b(?![^>]*\bsrc=)|<[^>]+\s(?:style|on[a-z]+)\s*=|javascript:", page)


def ids_on(answer: Any) -> list[int]:
    """The jobs of a list, in its order."""
    return [row.record.job.id for row in answer.context["rows"]]


# The list


def test_jobs_of_every_state_are_listed_newest_first_with_their_counts() -> None:
    made = {state: in_state(state, queue=f"q-{state}") for state in STATES}
    answer = superuser().get(list_url(JOBS))
    assert ids_on(answer) == sorted(made.values(), reverse=True)
    page = text_of(answer)
    for label in (
        "scheduled",
        "available",
        "running",
        "completed",
        "retryable",
        "cancelled",
        "waiting for callback",
    ):
        assert f"{label} 1" in page, label
    assert "all 9" in page
    assert "failed 2" in page
    assert "dead letter" in page


def test_a_running_job_that_holds_only_a_receipt_is_listed_and_counted() -> None:
    running = in_state("running")
    assert not stored.rows("SELECT 1 AS one FROM awa.leases")
    answer = superuser().get(list_url(JOBS), {"state": "running"})
    assert ids_on(answer) == [running]
    assert "running 1" in text_of(answer)


def test_a_row_says_what_the_job_is() -> None:
    added(kind="send_mail", queue="mail", priority=3, tags=("a", "b", "c", "d", "e"), max_attempts=7)
    operations.set_priority(operations.JobFilter(queue="mail"), 1)
    page = words(superuser(), list_url(JOBS))
    job_id = operations.list_jobs().jobs[0].job.id
    assert f"send_mail # {job_id} available mail 1 (was 3) 0 / 7 a b c +2".replace("# ", "#") in page


def test_people_see_the_names_that_a_description_gives() -> None:
    added(kind="send_mail", queue="mail")
    stored.run(
        "INSERT INTO awa.job_kind_descriptors (kind, display_name, descriptor_hash) "
        "VALUES ('send_mail', 'Mail out', 'h')"
    )
    stored.run(
        "INSERT INTO awa.queue_descriptors (queue, display_name, descriptor_hash) VALUES ('mail', 'The post', 'h')"
    )
    page = words(superuser(), list_url(JOBS))
    assert "Mail out send_mail #" in page
    assert "The post" in page


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"state": "scheduled"}, {"later"}),
        ({"kind": "k2"}, {"other"}),
        ({"queue": "r"}, {"other"}),
        ({"tag": "t2"}, {"tagged"}),
        ({"queue": "q", "tag": "t2", "state": "available"}, {"tagged"}),
        ({"queue": "r", "tag": "t2"}, set()),
        ({"created_before": "2020-01-01"}, set()),
        ({"created_from": "2020-01-01T00:00"}, {"later", "other", "tagged"}),
    ],
)
def test_the_list_is_filtered_by_each_of_its_fields(parameters: dict[str, str], found: set[str]) -> None:
    made = {
        "later": in_state("scheduled"),
        "other": added(kind="k2", queue="r"),
        "tagged": added(tags=("t1", "t2")),
    }
    answer = superuser().get(list_url(JOBS), parameters)
    assert set(ids_on(answer)) == {made[name] for name in found}


def test_typed_chips_become_the_address_of_the_list() -> None:
    job_id = added(kind="send_mail", queue="mail", tags=("two words",))
    browser = superuser()
    answer = browser.get(
        list_url(JOBS), {"q": 'queue:mail tag:"two words" send_mail', "size": "20"}, follow=True
    )
    assert answer.request["QUERY_STRING"] == "size=20&queue=mail&tag=two+words&kind=send_mail"
    assert ids_on(answer) == [job_id]
    answer = browser.get(list_url(JOBS), {"q": str(job_id), "queue": "mail"}, follow=True)
    assert ids_on(answer) == [job_id], "beside a filter, a number narrows it"


def test_a_job_of_very_many_attempts_tells_how_it_began_and_the_latest_of_them() -> None:
    errors = [
        json.dumps({"error": f"no {n}", "attempt": n, "at": f"2026-01-01T00:00:{n:02}Z"})
        for n in range(1, 41)
    ]
    stored.run(
        """
        INSERT INTO awa.jobs_hot (
            id, kind, queue, state, attempt, max_attempts, errors, created_at, attempted_at, finalized_at
        )
        VALUES (4711, 'k', 'q', 'failed', 40, 40, %s::jsonb[], '2025-12-31 12:00Z', now(), now())
        """,
        errors,
    )
    answer = superuser().get(detail_url(JOBS, 4711))
    told = text_of(answer).partition("Timeline")[2]
    assert len(answer.context["steps"]) > 40
    assert "Created 2025-12-31 12:00:00 UTC" in told
    assert f"… and {len(answer.context['steps']) - 21} steps between" in told
    assert "Attempt 2 failed" not in told
    assert "Attempt 40 failed" in told


def test_a_number_by_itself_leads_to_the_page_of_the_job() -> None:
    job_id, letter = added(kind="send_mail"), in_state("dead")
    browser = client("view_job")
    for number in (job_id, letter):
        answer = browser.get(list_url(JOBS), {"q": str(number)})
        assert answer["Location"] == detail_url(JOBS, number)
    nothing = browser.get(list_url(JOBS), {"q": "4711000"}, follow=True)
    assert nothing.request["QUERY_STRING"] == "id=4711000"
    assert "No job matches" in text_of(nothing)


def test_the_id_of_a_callback_leads_to_the_callback_for_whoever_may_see_it() -> None:
    _, token = waiting()
    typed = {"q": str(token)}
    answer = superuser().get(list_url(JOBS), typed)
    assert answer["Location"] == f"{list_url('waitingcallback')}?q={token}"
    assert "No job matches" in text_of(client("view_job").get(list_url(JOBS), typed, follow=True))


def test_a_word_is_a_state_a_kind_or_a_queue_and_else_a_kind_that_there_is_not() -> None:
    known = (["send_mail"], ["mail"])
    assert terms_of("mail", *known) == {"queue": "mail"}
    assert terms_of("send_mail", *known) == {"kind": "send_mail"}
    assert terms_of("failed", *known) == {"state": "failed"}
    assert terms_of("mial", *known) == {"kind": "mial"}
    assert terms_of("7, 8 id:9,10", *known) == {"id": "7 8 9 10"}
    assert terms_of('kind:"a b" state:running', *known) == {"kind": "a b", "state": "running"}
    assert terms_of("colour:red", *known) == {"kind": "colour:red"}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("state=nope", "“nope” is no state"),
        ("queue=%00", "queue: there is none of that name"),
        ("id=12x", "“12x” is no job id"),
        ("id=" + "9" * 30, "is no job id"),
        ("id=" + "1," * 1001, "1,001 ids are too many"),
        ("created_from=yesterday", "“yesterday” is no time"),
        ("created_before=2026-13-45", "is no time"),
        ("created_from=9999-12-31T23:59", "is no time"),
    ],
)
def test_a_parameter_that_cannot_be_read_finds_nothing_and_says_why(query: str, said: str) -> None:
    added()
    answer = superuser().get(f"{list_url(JOBS)}?{query}")
    page = text_of(answer)
    assert said in page
    assert "Until that is put right, no job is meant" in page
    assert ids_on(answer) == []
    assert "matching" not in page


@pytest.mark.parametrize(
    "query", ["before=abc", "before=%00", "before=" + "9" * 40, "size=7", "e=1", "o=1", "p=0", "page=x"]
)
def test_other_nonsense_is_ignored(query: str) -> None:
    job_id = added()
    assert ids_on(superuser().get(f"{list_url(JOBS)}?{query}")) == [job_id]


def test_an_id_beyond_the_databases_integers_finds_nothing() -> None:
    added()
    assert ids_on(superuser().get(list_url(JOBS), {"id": str(2**63)})) == []


def test_pages_follow_each_other_without_gaps_and_keep_the_filter() -> None:
    made = [added(queue="mail") for _ in range(45)]
    added(queue="other")
    browser = superuser()
    address: str | None = f"{list_url(JOBS)}?queue=mail&size=20"
    seen: list[int] = []
    pages = 0
    while address:
        answer = browser.get(address)
        seen += ids_on(answer)
        pages += 1
        older = answer.context["pager"].older
        if pages > 1:
            assert (
                ids_on(browser.get(list_url(JOBS) + answer.context["pager"].newest)) == sorted(made)[:-21:-1]
            )
        address = older and list_url(JOBS) + older
    assert (pages, seen) == (3, sorted(made, reverse=True))


def test_a_list_without_jobs_says_so() -> None:
    browser = superuser()
    assert "No jobs yet" in words(browser, list_url(JOBS))
    assert "No job matches" in words(browser, list_url(JOBS), queue="none")


def test_with_one_queue_in_the_filter_its_state_and_what_can_be_done_to_it_are_shown() -> None:
    in_state("running", queue="mail")
    added(queue="mail")
    operations.pause("mail", "ada")
    page = words(superuser(), list_url(JOBS), queue="mail")
    assert "Queue mail is paused" in page
    assert "by ada . Nobody claims from it. 2 not finished, 1 running. Resume" in page.replace(
        "ada.", "ada ."
    )
    assert "Drain" in page
    assert "is paused" not in words(client("view_job"), list_url(JOBS), queue="mail")


def test_a_popup_hands_the_chosen_id_back() -> None:
    job_id = added()
    answer = superuser().get(list_url(JOBS), {"_popup": "1", "_to_field": "id"})
    page = answer.content.decode()
    assert f'data-popup-opener="{job_id}"' in page
    assert "RelatedObjectLookups.js" in page
    assert 'name="_selected_action"' not in page
    assert "data-awa-live" not in page
    assert "_popup=1" in answer.context["pills"][1].url


# Many jobs at once


def test_a_verb_on_a_selection_changes_the_part_that_it_fits_and_reports_the_rest() -> None:
    made = [in_state("failed"), in_state("running"), in_state("completed")]
    browser = client("view_job", "retry_job")
    asked = browser.post(many_url("retry"), {"_selected_action": made, "next": list_url(JOBS)})
    assert "3 jobs" in text_of(asked)
    assert [state_of(job_id) for job_id in made] == ["failed", "running", "completed"]
    done = browser.post(
        many_url("retry"), {"_selected_action": made, "next": list_url(JOBS), "confirmed": "1"}, follow=True
    )
    (said,) = messages_of(done)
    assert said.startswith("1 job will run again. 2 not changed")
    assert [state_of(job_id) for job_id in made] == ["available", "running", "completed"]
    assert LogEntry.objects.count() == 1


def test_the_list_offers_the_verbs_that_whoever_asks_may_do() -> None:
    added()
    page = client("view_job", "cancel_job").get(list_url(JOBS)).content.decode()
    assert re.findall(r'formaction="[^"]*/do/([a-z-]+)/"', page) == ["cancel"]
    assert "_selected_action" not in client("view_job").get(list_url(JOBS)).content.decode()


def test_all_that_match_a_filter_become_a_batch_operation_with_its_number() -> None:
    made = [added(queue="mail") for _ in range(3)]
    other = added(queue="other")
    browser = client("view_job", "cancel_job", "submit_batchoperation", "view_batchoperation")
    page = browser.get(list_url(JOBS), {"queue": "mail", "state": "available"})
    assert "All 3 matching" in text_of(page)
    fields = {"matching": "1", "queue": "mail", "state": "available"}
    asked = browser.post(many_url("cancel"), fields)
    assert "3 jobs match now." in text_of(asked)
    done = browser.post(many_url("cancel"), {**fields, "confirmed": "1"})
    assert "/batchoperation/" in done["Location"]
    (operation,) = operations.batch_operations()
    assert operation.filter["queue"] == "mail"
    assert [state_of(job_id) for job_id in (*made, other)] == ["available"] * 4


def test_all_matching_is_not_offered_without_a_filter_and_refused_when_posted() -> None:
    job_id = added()
    browser = superuser()
    assert "matching" not in text_of(browser.get(list_url(JOBS)))
    for fields in ({}, {"state": "nope"}, {"queue": "\0"}, {"before": "7"}):
        answer = browser.post(many_url("cancel"), {"matching": "1", "confirmed": "1", **fields})
        assert answer.status_code == 400, fields
    assert state_of(job_id) == "available"
    assert operations.batch_operations() == []


def test_all_matching_needs_the_permission_to_submit_batches() -> None:
    added(queue="mail")
    browser = client("view_job", "cancel_job")
    assert "matching" not in text_of(browser.get(list_url(JOBS), {"queue": "mail"}))
    assert browser.post(many_url("cancel"), {"matching": "1", "queue": "mail"}).status_code == 403


# The page of one


@pytest.mark.parametrize("state", STATES)
def test_every_job_has_a_page_with_the_verbs_of_its_state(state: str) -> None:
    job_id = in_state(state, tags=("t",), metadata={"m": 1}, args={"a": 1})
    answer = superuser().get(detail_url(JOBS, job_id))
    page = text_of(answer)
    assert f"#{job_id}" in page
    offered = {offer.action.name for offer in answer.context["offers"]}
    assert (
        offered
        == {
            "scheduled": {"run-now", "cancel", "set-priority", "move-queue"},
            "available": {"cancel", "set-priority", "move-queue"},
            "running": {"cancel"},
            "completed": set(),
            "retryable": {"run-now", "cancel"},
            "failed": {"retry", "dead-letter", "discard"},
            "cancelled": {"retry"},
            "waiting_external": {"retry", "cancel"},
            "dead": set(),
        }[state]
    )
    assert '"a" : 1' in page
    assert '"m" : 1' in page
    assert re.search("Timeline .*Created", page)


def test_a_dead_lettered_job_leads_to_its_dead_letter() -> None:
    job_id = in_state("dead")
    answer = superuser().get(detail_url(JOBS, job_id))
    assert "A dead letter since" in text_of(answer)
    assert detail_url("dlqentry", job_id) in answer.content.decode()


def test_the_page_says_why_a_job_is_not_running() -> None:
    job_id = in_state("scheduled")
    page = words(superuser(), detail_url(JOBS, job_id))
    assert operations.why(job_id).sentence.replace("`", "") in page


def test_the_page_has_the_errors_the_newest_first() -> None:
    job_id = in_state("failed")
    stored.run(
        """
        UPDATE awa.done_entries SET payload = jsonb_build_object('errors', jsonb_build_array(
            jsonb_build_object('attempt', 1, 'error', 'first', 'at', '2026-01-01T00:00:00Z'),
            jsonb_build_object(
                'attempt', 2, 'error', E'second\\nmore of it', 'at', '2026-01-02T00:00:00Z', 'terminal', true
            ),
            to_jsonb('not an object'::text), to_jsonb(7)
        )) WHERE job_id = %s
        """,
        job_id,
    )
    page = words(superuser(), detail_url(JOBS, job_id))
    assert "Errors (4)" in page
    assert (
        page.index("not an object") < page.index("Attempt 2 terminal second") < page.index("Attempt 1 first")
    )
    assert "more of it" in page


def test_the_page_shows_progress_as_a_bar_and_in_words() -> None:
    job_id = in_state("running")
    stored.run(
        "INSERT INTO awa.attempt_state (job_id, run_lease, progress) VALUES (%s, 1, %s)",
        job_id,
        json.dumps({"percent": 40, "message": "4 of 10 <files>", "metadata": {"shard": 7}}),
    )
    answer = superuser().get(detail_url(JOBS, job_id))
    assert '<progress class="awa-progress" max="100" value="40"' in answer.content.decode()
    page = text_of(answer)
    assert "Progress 40 %" in page
    assert "4 of 10 <files>" in page
    assert '"shard" : 7' in page


def test_a_waiting_job_shows_its_callback_with_the_four_expressions() -> None:
    judges = Callback(None, None, "payload.a == 1", "payload.b == 2", "payload.c == 3", "payload.d")
    job_id, token = waiting(judges=judges)
    page = words(superuser(), detail_url(JOBS, job_id))
    assert str(token) in page
    assert (
        "Filter payload.a == 1 On complete payload.b == 2 On fail payload.c == 3 Transform payload.d" in page
    )
    assert "expired" not in page
    late, _token = waiting(timedelta(seconds=-5))
    assert "Callback expired" in words(superuser(), detail_url(JOBS, late))


def test_the_page_says_where_a_job_came_from() -> None:
    schedule("nightly")
    job_id = added(queue="a", metadata={"cron_name": "nightly"})
    operations.move_queue(job_id, "b")
    answer = superuser().get(detail_url(JOBS, job_id))
    assert "Schedule nightly" in text_of(answer)
    assert "moved from a" in text_of(answer)
    assert detail_url("cronjob", "nightly") in answer.content.decode()


def test_a_job_that_there_is_not_leads_to_the_list() -> None:
    browser = superuser()
    for key in (4711, "abc", "-1", 2**70, "1/2"):
        answer = browser.get(detail_url(JOBS, key), follow=True)
        assert answer.redirect_chain[-1][0] == list_url(JOBS), key
        assert "There is no job" in messages_of(answer)[0], key


def test_a_verb_on_one_job_is_asked_done_logged_and_leads_back() -> None:
    job_id = in_state("failed")
    browser = client("view_job", "retry_job", name="ada")
    url = action_url(JOBS, job_id, "retry")
    assert f"job {job_id}" in text_of(browser.post(url, {"next": detail_url(JOBS, job_id)}))
    done = browser.post(url, {"confirmed": "1", "next": detail_url(JOBS, job_id)}, follow=True)
    assert done.redirect_chain[-1][0] == detail_url(JOBS, job_id)
    assert state_of(job_id) == "available"
    (entry,) = LogEntry.objects.all()
    assert (entry.user.get_username(), entry.object_id) == ("ada", str(job_id))


# What may be seen


def test_nothing_of_a_jobs_values_is_seen_without_the_permission() -> None:
    judges = Callback(None, None, "payload.hush == 1")
    parked, _token = waiting(judges=judges, args={"k": "hush"}, metadata={"m": "hush", "cron_name": "hush"})
    failed = in_state("failed", args={"k": "hush"}, metadata={"m": "hush"})
    stored.run(
        "UPDATE awa.done_entries SET payload = %s WHERE job_id = %s",
        json.dumps(
            {
                "errors": [{"attempt": 1, "error": "hush", "at": "2026-01-01T00:00:00Z"}],
                "metadata": {"m": "hush"},
            }
        ),
        failed,
    )
    dead = in_state("dead", args={"k": "hush"})
    retryable = in_state("retryable")
    stored.run(
        "UPDATE awa.deferred_jobs SET payload = %s WHERE job_id = %s",
        json.dumps({"errors": [{"attempt": 1, "error": "hush", "at": "2026-01-01T00:00:00Z"}]}),
        retryable,
    )
    browser = client("view_job", "view_dlqentry")
    for job_id in (parked, failed, dead, retryable):
        page = browser.get(detail_url(JOBS, job_id))
        assert "hush" not in page.content.decode()
        assert "Arguments, metadata, errors and progress are hidden" in text_of(page)
        for url in (
            f"{job_id}/dump/",
            f"{job_id}/dump/1/",
            *(f"{job_id}/part/{part}/" for part in ("args", "errors")),
        ):
            assert browser.get(list_url(JOBS) + url).status_code == 403, url
    for url in (list_url(JOBS), f"{list_url(JOBS)}?state=failed"):
        assert "hush" not in browser.get(url).content.decode()
    seen = client("view_job", "view_job_payload").get(detail_url(JOBS, failed))
    assert seen.content.decode().count("hush") >= 3


def test_values_under_names_that_look_secret_are_masked_everywhere() -> None:
    job_id = in_state("failed", args=SECRET, metadata=SECRET)
    browser = superuser()
    for url in (
        detail_url(JOBS, job_id),
        *(list_url(JOBS) + f"{job_id}/{rest}" for rest in ("dump/", "dump/1/", "part/args/")),
    ):
        answer = browser.get(url)
        assert answer.status_code == 200, url
        assert "hunter2" not in answer.content.decode(), url
    assert "••••••" in text_of(browser.get(detail_url(JOBS, job_id)))
    assert operations.load_job(job_id).job.args == SECRET


def _shout(kind: str, part: str, value: Any) -> Any:
    return f"{kind} {part} redacted"


@override_settings(AWA={"REDACT": _shout})
def test_the_projects_own_redaction_is_asked() -> None:
    job_id = in_state("failed", args={"a": "open"})
    page = words(superuser(), detail_url(JOBS, job_id))
    assert "k args redacted" in page
    assert "open" not in page.replace("opener", "")


def test_what_a_job_holds_is_escaped_and_a_long_value_shortened_with_a_way_to_the_whole() -> None:
    script = "<script>alert(1)</script>"
    job_id = in_state(
        "failed", kind=script, queue=script, args={"x": script, "long": "y" * 1_000_000}, tags=(script,)
    )
    browser = superuser()
    answer = browser.get(detail_url(JOBS, job_id))
    page = answer.content.decode()
    assert script not in page
    assert len(page) < 200_000
    assert "Shortened: 1,000," in text_of(answer)
    whole = browser.get(f"{list_url(JOBS)}{job_id}/part/args/")
    assert whole["Content-Type"] == "text/plain; charset=utf-8"
    assert whole["X-Content-Type-Options"] == "nosniff"
    assert len(whole.content) > 1_000_000
    for url in (list_url(JOBS), f"{list_url(JOBS)}?kind={script}&queue={script}&tag={script}"):
        listed = browser.get(url)
        assert script not in listed.content.decode()
        assert ids_on(listed) == [job_id]


def test_a_job_and_a_run_of_it_can_be_taken_along_as_json() -> None:
    job_id = in_state("failed", args={"a": "ü"})
    browser = superuser()
    document = browser.get(f"{list_url(JOBS)}{job_id}/dump/")
    assert document["Content-Type"] == "application/json"
    assert document["Content-Disposition"] == f'attachment; filename="job-{job_id}.json"'
    assert document.json()["job"]["args"] == {"a": "ü"}
    run = browser.get(f"{list_url(JOBS)}{job_id}/dump/1/").json()
    assert (run["selected_attempt"], run["error"]) == (1, "gone")
    for wrong in (f"{job_id}/dump/2/", f"{job_id}/part/nothing/", "4711/dump/", "x/dump/"):
        assert browser.get(list_url(JOBS) + wrong).status_code == 404, wrong
    assert browser.post(f"{list_url(JOBS)}{job_id}/dump/").status_code == 405


def test_rows_that_hold_what_python_cannot_are_shown_without_it() -> None:
    job_id = added()
    deep = "[" * 3000 + "]" * 3000
    stored.run(
        "UPDATE awa.ready_entries SET args = %s::jsonb, queue = %s WHERE job_id = %s", deep, "q" * 100, job_id
    )
    broken = in_state("scheduled")
    stored.run(
        "UPDATE awa.deferred_jobs SET payload = %s WHERE job_id = %s",
        json.dumps({"metadata": [], "tags": {"no": "list"}, "errors": "none", "progress": 7}),
        broken,
    )
    nested = added(args=encode({"a": _nested(60)}, "args"))
    browser = superuser()
    assert browser.get(list_url(JOBS)).status_code == 200
    for each in (job_id, broken, nested):
        assert browser.get(detail_url(JOBS, each)).status_code in (200, 302), each


def _nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


# The frame


def test_pages_are_for_those_who_may_view_them() -> None:
    job_id = added()
    stranger = client("view_queuemeta")
    for url in (list_url(JOBS), detail_url(JOBS, job_id)):
        assert stranger.get(url).status_code == 403
    assert stranger.get(f"{list_url(JOBS)}{job_id}/dump/").status_code == 403


@override_settings(AWA={"READ_ONLY": True})
def test_a_site_that_only_shows_offers_nothing_and_says_so() -> None:
    job_id = in_state("failed")
    browser = superuser()
    for url in (list_url(JOBS), detail_url(JOBS, job_id), f"{list_url(JOBS)}?queue=q"):
        page = browser.get(url)
        assert "Read-only." in text_of(page)
        assert "/do/" not in page.content.decode()
    assert browser.post(action_url(JOBS, job_id, "retry"), {"confirmed": "1"}).status_code == 403
    assert state_of(job_id) == "failed"


def test_pages_have_no_script_or_style_of_their_own_and_few_statements() -> None:
    worker("q")
    made = {state: in_state(state, args={"a": [1, "two", None]}, tags=("t",)) for state in STATES}
    browser = superuser()
    urls = [list_url(JOBS), f"{list_url(JOBS)}?state=failed&queue=q", f"{list_url(JOBS)}?_popup=1"]
    urls += [detail_url(JOBS, job_id) for job_id in made.values()]
    for url in urls:
        browser.get(url)
        with sent() as statements:
            answer = browser.get(url)
        assert own_code(answer.content.decode()) == [], url
        assert len(statements) <= MOST_STATEMENTS, (
            url,
            [re.sub(r"\s+", " ", statement.text)[:60] for statement in statements],
        )


def test_the_address_of_a_page_is_made_of_what_it_shows() -> None:
    search = search_of(QueryDict("queue=a&kind=b&size=20&before=7&junk=1&_popup=1"))
    assert search.link(state="failed") == "?size=20&_popup=1&kind=b&queue=a&state=failed"
    assert search.page_link("9") == "?size=20&_popup=1&kind=b&queue=a&before=9"
    assert [chip.without for chip in search.chips] == [
        "?size=20&_popup=1&queue=a",
        "?size=20&_popup=1&kind=b",
    ]
    assert search.filter is not None
    assert search.filter.wanted == frozenset(JobState)
    local = search_of(QueryDict("created_from=2026-01-31"))
    assert local.filter is not None
    assert local.filter.created_from == datetime(2026, 1, 31, tzinfo=UTC)


def test_a_claim_between_two_looks_moves_a_job_and_not_its_place() -> None:
    job_id = added()
    browser = superuser()
    assert ids_on(browser.get(list_url(JOBS))) == [job_id]
    claimed()
    assert ids_on(browser.get(list_url(JOBS))) == [job_id]
    assert "running" in words(browser, detail_url(JOBS, job_id))
