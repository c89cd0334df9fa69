"""The list of dead letters and the page of one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone

from awa_django import operations
from awa_django.operations import JobFilter
from tests import stored
from tests.admin.asking import (
    action_url,
    client,
    detail_url,
    list_url,
    messages_of,
    superuser,
    text_of,
    words,
)
from tests.admin.test_jobs import MOST_STATEMENTS, SECRET, own_code
from tests.scenarios.walking import sent
from tests.test_operations import in_state, state_of

pytestmark = pytest.mark.django_db

LETTERS = "dlqentry"


def many_url(action: str) -> str:
    return f"{list_url(LETTERS)}do/{action}/"


def ids_on(answer: Any) -> list[int]:
    return [letter.record.job.id for letter in answer.context["letters"]]


def test_the_list_has_the_newest_first_and_counts_each_queue() -> None:
    made = [
        in_state("dead", kind=kind, queue=queue) for kind, queue in (("a", "q1"), ("b", "q2"), ("c", "q1"))
    ]
    for age, job_id in enumerate(reversed(made)):
        stored.run(
            "UPDATE awa.dlq_entries SET dlq_reason = 'no luck', dlq_at = now() - %s WHERE job_id = %s",
            timedelta(hours=age),
            job_id,
        )
    in_state("failed")
    answer = superuser().get(list_url(LETTERS))
    assert ids_on(answer) == list(reversed(made))
    page = text_of(answer)
    assert "Dead letters 3" in page
    assert "all queues 3 q1 2 q2 1" in page
    assert f"c #{made[2]} q1 no luck gone 1 / 25" in page
    assert "2 h ago" in page


@pytest.mark.parametrize(
    ("parameters", "found"),
    [({"kind": "a"}, {0}), ({"queue": "r"}, {1}), ({"tag": "t"}, {1}), ({"kind": "a", "tag": "t"}, set())],
)
def test_the_list_is_filtered_by_kind_queue_and_tag(parameters: dict[str, str], found: set[int]) -> None:
    made = [in_state("dead", kind="a"), in_state("dead", queue="r", tags=("t",))]
    browser = superuser()
    answer = browser.get(list_url(LETTERS), parameters)
    assert set(ids_on(answer)) == {made[number] for number in found}
    typed = " ".join(f"{name}:{value}" for name, value in parameters.items())
    assert ids_on(browser.get(list_url(LETTERS), {"q": typed}, follow=True)) == ids_on(answer)


def test_pages_follow_each_other_where_many_died_at_one_instant() -> None:
    made = [in_state("dead") for _ in range(25)]
    stored.run("UPDATE awa.dlq_entries SET dlq_at = '2026-01-01T00:00:00Z'")
    browser = superuser()
    address: str | None = f"{list_url(LETTERS)}?size=20"
    seen: list[int] = []
    while address:
        answer = browser.get(address)
        seen += ids_on(answer)
        older = answer.context["pager"].older
        address = older and list_url(LETTERS) + older
    assert seen == sorted(made, reverse=True)


@pytest.mark.parametrize(
    "before", ["abc", "_", "2026-01-01_7", "2026-13-01T00:00Z_7", "0001-01-01T00:00Z_7", "\0_1", "x" * 99]
)
def test_addresses_that_say_nothing_begin_at_the_start(before: str) -> None:
    job_id = in_state("dead")
    assert ids_on(superuser().get(list_url(LETTERS), {"before": before})) == [job_id]


def test_a_parameter_that_cannot_be_read_finds_nothing() -> None:
    in_state("dead")
    answer = superuser().get(f"{list_url(LETTERS)}?kind=%00")
    assert ids_on(answer) == []
    assert "kind: there is none of that name" in text_of(answer)


def test_without_dead_letters_the_list_says_how_one_comes_to_be() -> None:
    browser = superuser()
    assert "No dead letters" in words(browser, list_url(LETTERS))
    assert "dlq_enabled" in words(browser, list_url(LETTERS))
    assert "No dead letter matches" in words(browser, list_url(LETTERS), kind="x")


def test_a_dead_letter_says_why_it_is_one_and_what_can_be_done() -> None:
    job_id = in_state("dead", args=SECRET)
    stored.run("UPDATE awa.dlq_entries SET dlq_reason = 'no luck <i>'")
    answer = superuser().get(detail_url(LETTERS, job_id))
    page = text_of(answer)
    assert "Reason no luck <i>" in page
    assert "Lease it failed with 1" in page
    assert [offer.action.name for offer in answer.context["offers"]] == ["redrive", "purge"]
    assert "hunter2" not in answer.content.decode()


def test_a_job_that_is_no_dead_letter_leads_to_the_list() -> None:
    browser = superuser()
    for key in (in_state("failed"), 4711, "x"):
        answer = browser.get(detail_url(LETTERS, key), follow=True)
        assert answer.redirect_chain[-1][0] == list_url(LETTERS)
        assert messages_of(answer)


def test_a_redrive_takes_a_time_a_priority_and_a_queue() -> None:
    job_id = in_state("dead")
    browser = client("view_dlqentry", "retry_dlqentry", name="ada")
    url = action_url(LETTERS, job_id, "redrive")
    assert "Run at" in text_of(browser.post(url))
    refused = browser.post(url, {"confirmed": "1", "do-priority": "9"})
    assert "Select a valid choice" in text_of(refused)
    assert state_of(job_id) == "dead"
    fields = {"do-run_at": "2999-01-01T10:00", "do-priority": "1", "do-queue": "second"}
    browser.post(url, {"confirmed": "1", **fields})
    job = operations.load_job(job_id).job
    assert (job.state, job.priority, job.queue) == ("scheduled", 1, "second")
    assert job.run_at == timezone.make_aware(datetime(2999, 1, 1, 10)).astimezone(UTC)
    (entry,) = LogEntry.objects.all()
    assert entry.user.get_username() == "ada"


def test_selected_ones_are_purged_after_a_question_with_their_number() -> None:
    made = [in_state("dead") for _ in range(3)]
    browser = client("view_dlqentry", "purge_dlqentry")
    fields = {"_selected_action": made[:2]}
    assert "2 dead letters" in text_of(browser.post(many_url("purge"), fields))
    assert len(operations.dead_letters()) == 3
    (said,) = messages_of(browser.post(many_url("purge"), {**fields, "confirmed": "1"}, follow=True))
    assert said == "2 dead letters purged."
    assert [record.job.id for record in operations.dead_letters()] == made[2:]


def test_all_matching_is_offered_with_a_filter_alone_and_refused_without_when_posted() -> None:
    in_state("dead", queue="mail")
    browser = superuser()
    assert "matching" not in words(browser, list_url(LETTERS))
    assert "All 1 matching" in words(browser, list_url(LETTERS), queue="mail")
    for fields in ({}, {"kind": "\0"}, {"state": "failed"}, {"before": "1"}):
        for action in ("purge", "redrive"):
            answer = browser.post(many_url(action), {"matching": "1", "confirmed": "1", **fields})
            assert answer.status_code == 400, (action, fields)
    assert len(operations.dead_letters()) == 1
    assert operations.batch_operations() == []


def test_all_that_match_a_filter_become_a_batch_operation() -> None:
    for queue in ("mail", "mail", "other"):
        in_state("dead", queue=queue)
    browser = client("view_dlqentry", "purge_dlqentry", "submit_batchoperation", "view_batchoperation")
    asked = browser.post(many_url("purge"), {"matching": "1", "queue": "mail"})
    assert "2 dead letters match now." in text_of(asked)
    browser.post(many_url("purge"), {"matching": "1", "queue": "mail", "confirmed": "1"})
    (operation,) = operations.batch_operations()
    assert operation.filter["queue"] == "mail"
    assert len(operations.dead_letters(JobFilter(queue="mail"))) == 2


def test_errors_and_verbs_are_for_those_who_may() -> None:
    job_id = in_state("dead")
    browser = client("view_dlqentry")
    page = browser.get(list_url(LETTERS))
    assert "gone" not in text_of(page).replace("jango", "")
    assert "_selected_action" not in page.content.decode()
    for action in ("redrive", "purge"):
        assert browser.post(action_url(LETTERS, job_id, action), {"confirmed": "1"}).status_code == 403
        assert browser.get(action_url(LETTERS, job_id, action)).status_code == 405
    assert client("view_job").get(list_url(LETTERS)).status_code == 403
    assert state_of(job_id) == "dead"


def test_pages_have_no_script_or_style_of_their_own_and_few_statements() -> None:
    job_id = in_state("dead", args={"a": 1}, tags=("<b>",))
    browser = superuser()
    for url in (list_url(LETTERS), f"{list_url(LETTERS)}?queue=q", detail_url(LETTERS, job_id)):
        browser.get(url)
        with sent() as statements:
            answer = browser.get(url)
        assert own_code(answer.content.decode()) == [], url
        assert len(statements) <= MOST_STATEMENTS, (url, [statement.text[:80] for statement in statements])
    asked = browser.post(action_url(LETTERS, job_id, "redrive"))
    assert own_code(asked.content.decode()) == []
