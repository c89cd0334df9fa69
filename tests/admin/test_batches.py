"""The pages of batch operations, and submitting one."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from awa_django import operations
from awa_django.operations import Cancel, JobFilter, Retry, SetPriority
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
    worker,
)
from tests.test_operations import added, in_state, state_of

pytestmark = pytest.mark.django_db

ADD = "admin:awa_django_batchoperation_add"
SUBMITTER = ("view_batchoperation", "submit_batchoperation")


def submitted(**fields: object) -> list[str]:
    """What a submission with these fields made: the descriptions of the operations there are then."""
    superuser().post(reverse(ADD), {"confirmed": "1", **fields})
    return [operation.description for operation in operations.batch_operations()]


def test_the_list_holds_both_tables_and_filters_by_state() -> None:
    operations.submit_batch(SetPriority(1), JobFilter(queue="mail"), submitted_by="ada")
    second = operations.submit_batch(Cancel(), JobFilter(kind="spam"), submitted_by="bob")
    operations.cancel_batch(second.id)
    browser = superuser()
    page = words(browser, list_url("batchoperation"))
    assert "Give jobs priority 1, queue=mail" in page
    assert "Cancel jobs, kind=spam" in page
    assert "ada" in page
    pending = words(browser, list_url("batchoperation"), state="pending")
    assert "queue=mail" in pending
    assert "kind=spam" not in pending
    assert "kind=spam" in words(browser, list_url("batchoperation"), state="nonsense")
    assert "None in this state" in words(browser, list_url("batchoperation"), state="failed")


def test_without_operations_the_list_says_what_they_are_for() -> None:
    assert "No batch operation yet" in words(superuser(), list_url("batchoperation"))


def test_the_page_of_an_operation_shows_progress_and_what_did_not_go_through() -> None:
    runner = worker("mail")
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="mail", tag="eu"), submitted_by="ada")
    stored.run(
        """
        UPDATE awa.batch_operations
        SET state = 'running', total_matched = 40, processed = 20, skipped = 9, errored = 1, started_at = now(),
            last_error = 'job_id=7: <boom>', runner_instance = %s
        WHERE id = %s
        """,
        runner,
        operation.id,
    )
    stored.run(
        "INSERT INTO awa.batch_operation_items (operation_id, job_id, state, error) VALUES (%s, 7, 'errored', 'boom')",
        operation.id,
    )
    page = words(superuser(), detail_url("batchoperation", operation.id))
    for said in (
        "Give jobs priority 1, queue=mail, tag=eu running",
        "Last error: job_id=7: <boom>",
        "Progress 30 of 40",
        "Changed 20 Skipped 9",
        "7 boom",
        "by ada",
        str(runner),
        "every awa client",
        '"tag" : "eu"',
    ):
        assert said in page
    assert "kind" not in page.partition("As stored")[2].partition("Change")[0]


def test_an_operation_of_ours_says_why_jobs_were_skipped() -> None:
    operation = operations.submit_batch(Retry(), JobFilter(queue="mail"))
    stored.run(
        """
        UPDATE awa_django_batchoperation SET state = 'completed', total_matched = 5, processed = 2, skipped = 3,
            skip_reasons = '{"wrong_state": 2, "unique_conflict": 1}', finalized_at = now()
        WHERE id = %s
        """,
        operation.id,
    )
    page = words(superuser(), detail_url("batchoperation", operation.id))
    assert "Skipped 3 2 jobs: their state does not allow it 1 job: another job holds their unique key" in page
    assert "awa_django workers only" in page
    assert "Stop" not in page.partition("Past actions")[0].rpartition("Retry jobs")[2]


def test_stopping_asks_first_and_is_not_offered_twice() -> None:
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="mail"))
    browser = client("view_batchoperation", "cancel_batchoperation")
    asked = browser.post(action_url("batchoperation", operation.id, "cancel"))
    assert "What it has changed stays changed" in text_of(asked)
    browser.post(action_url("batchoperation", operation.id, "cancel"), {"confirmed": "1"})
    assert operations.batch_operation(operation.id).state == "cancelling"
    assert browser.get(detail_url("batchoperation", operation.id)).context["offers"] == []
    again = browser.post(
        action_url("batchoperation", operation.id, "cancel"), {"confirmed": "1"}, follow=True
    )
    assert messages_of(again)[-1] == f"Batch operation {operation.id} is cancelling"


@pytest.mark.parametrize("key", [uuid.UUID(int=5), "nonsense", "a/b"])
def test_an_operation_that_is_not_there_leads_back_to_the_list(key: object) -> None:
    assert len(messages_of(superuser().get(detail_url("batchoperation", key), follow=True))) == 1


def test_submitting_shows_number_and_sample_before() -> None:
    mails = [added(queue="mail", kind="greet") for _ in range(3)]
    added(queue="other")
    browser = client(*SUBMITTER, "cancel_job", name="ada")
    form = {"operation": "cancel", "queue": "mail", "kind": "greet", "state": "available"}
    answer = browser.post(reverse(ADD), form)
    page = text_of(answer)
    assert "3 jobs match now." in page
    assert "Queue mail Kind greet State available" in page
    assert all(str(job_id) in page for job_id in mails)
    assert operations.batch_operations() == []
    hidden = dict(answer.context["hidden"])
    answer = browser.post(reverse(ADD), {**hidden, "confirmed": "1"}, follow=True)
    (operation,) = operations.batch_operations()
    assert answer.redirect_chain == [(detail_url("batchoperation", operation.id), 302)]
    assert operation.submitted_by == "ada"
    assert operation.description == "cancel jobs, queue=mail, kind=greet, state=available"
    (entry,) = LogEntry.objects.all()
    assert entry.object_id == str(operation.id)
    assert entry.change_message == "Submit: Submitted: cancel jobs, queue=mail, kind=greet, state=available."


def test_what_an_operation_needs_besides_is_asked_with_the_preview() -> None:
    browser = client(*SUBMITTER, "move_job")
    form = {"operation": "move-queue", "queue": "mail"}
    assert 'name="do-queue"' in browser.post(reverse(ADD), form).content.decode()
    refused = browser.post(reverse(ADD), {**form, "confirmed": "1", "do-queue": "x" * 60})
    assert "at most 59" in text_of(refused)
    assert operations.batch_operations() == []
    browser.post(reverse(ADD), {**form, "confirmed": "1", "do-queue": "slow", "do-priority": "4"})
    (operation,) = operations.batch_operations()
    assert operation.description == "move jobs to queue slow with priority 4, queue=mail"


def test_every_member_of_the_filter_is_kept() -> None:
    assert submitted(
        operation="retry",
        queue="q",
        kind="k",
        tag="t",
        state="failed",
        id="3, 1\n2 2",
        created_from="2026-01-31T14:30",
        created_before="2026-02-01T00:00",
    ) == [
        "retry jobs, queue=q, kind=k, state=failed, tag=t, 3 ids, created from 2026-01-31T14:30:00+00:00, "
        "created before 2026-02-01T00:00:00+00:00"
    ]


def test_all_jobs_are_meant_only_where_that_is_said() -> None:
    assert submitted(operation="cancel") == []
    refused = superuser().post(reverse(ADD), {"operation": "cancel"})
    assert "Say which jobs are meant" in text_of(refused)
    contradiction = superuser().post(reverse(ADD), {"operation": "cancel", "queue": "q", "all": "on"})
    assert "There is a filter: empty it, or untick this." in text_of(contradiction)
    assert "none: all jobs that the operation is for" in text_of(
        superuser().post(reverse(ADD), {"operation": "cancel", "all": "on"})
    )
    assert submitted(operation="cancel", all="on") == ["cancel jobs, all"]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("id", "1 x 3", "“x” is no job id"),
        ("id", str(2**63), "is no job id"),
        ("state", "nonsense", "Select a valid choice"),
        ("state", "completed", "can be changed so"),
        ("created_from", "yesterday", "Enter a valid date/time"),
        ("queue", "a\0b", "Null characters are not allowed"),
        ("operation", "explode", "Select a valid choice"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(field: str, value: str, said: str) -> None:
    form = {"operation": "cancel", "kind": "k", field: value}
    assert said in text_of(superuser().post(reverse(ADD), form))
    assert submitted(**form) == []


def test_each_operation_needs_its_own_permission_beside_that_to_submit() -> None:
    job_id = in_state("failed", queue="mail")
    browser = client(*SUBMITTER, "retry_job")
    offered = browser.get(reverse(ADD)).context["form"].fields["operation"].choices
    assert [name for _group, choices in offered for name, _label in choices] == ["retry"]
    form = {"operation": "discard", "queue": "mail", "confirmed": "1"}
    assert browser.post(reverse(ADD), form).status_code == 403
    assert client("view_batchoperation", "discard_job").post(reverse(ADD), form).status_code == 403
    assert client("view_batchoperation").get(reverse(ADD)).status_code == 403
    assert client("submit_batchoperation", "discard_job").get(reverse(ADD)).status_code == 403
    assert operations.batch_operations() == []
    assert state_of(job_id) == "failed"
    nothing = client(*SUBMITTER).get(reverse(ADD))
    assert "There is nothing you may submit" in text_of(nothing)


def test_the_form_begins_with_what_its_address_says_but_never_with_all() -> None:
    answer = superuser().get(reverse(ADD), {"operation": "purge", "queue": "mail", "id": "1 2", "all": "on"})
    form = answer.context["form"]
    assert form.initial == {"operation": "purge", "queue": "mail", "id": "1 2"}
    assert "checked" not in answer.content.decode().partition('name="all"')[2].partition(">")[0]
    back = superuser().post(
        reverse(ADD), {"operation": "purge", "queue": "mail", "edit": "1", "confirmed": "1"}
    )
    assert back.context["form"].data["queue"] == "mail"
    assert operations.batch_operations() == []


def test_forged_submissions_need_the_token() -> None:
    browser = client(*SUBMITTER, "cancel_job", csrf=True)
    assert (
        browser.post(reverse(ADD), {"operation": "cancel", "queue": "q", "confirmed": "1"}).status_code == 403
    )
    assert operations.batch_operations() == []
