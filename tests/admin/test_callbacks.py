"""The pages of callbacks, and answering them by hand."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry

from awa_django import operations
from awa_django.admin.callbacks import PayloadField
from awa_django.jobs import Callback
from awa_django.redaction import MASK
from tests import stored
from tests.admin.asking import (
    action_url,
    client,
    detail_url,
    list_url,
    messages_of,
    superuser,
    text_of,
    waiting,
    words,
)
from tests.test_operations import added, state_of

pytestmark = pytest.mark.django_db

JUDGES = Callback(
    None,
    None,
    "has(payload.status)",
    "payload.status == 'paid'",
    "payload.status == 'declined'",
    "payload.tx",
)


def answered(callback_id: UUID, verb: str, **fields: object) -> list[str]:
    """Answer as somebody who may do that and see jobs; what the next page says."""
    given = {f"do-{name}": value for name, value in fields.items()}
    answer = client("view_waitingcallback", "resolve_callback", "view_job", "view_job_payload").post(
        action_url("waitingcallback", callback_id, verb), {"confirmed": "1", **given}, follow=True
    )
    return messages_of(answer)


def test_the_list_begins_with_the_one_whose_time_is_up_first() -> None:
    late, late_token = waiting(timedelta(hours=5))
    soon, soon_token = waiting(timedelta(minutes=5))
    over, over_token = waiting(timedelta(minutes=-5))
    waiting(parked=False)
    page = words(superuser(), list_url("waitingcallback"))
    assert page.index(str(over_token)) < page.index(str(soon_token)) < page.index(str(late_token))
    assert page.count("expired") == 1
    assert all(f"k #{job_id}" in page for job_id in (late, soon, over))


def test_pages_follow_each_other_and_their_addresses_say_where() -> None:
    tokens = [str(waiting(timedelta(hours=number + 1))[1]) for number in range(53)]
    browser = superuser()
    first = browser.get(list_url("waitingcallback"))
    shown = [str(item.record.job.callback_id) for item, _ in first.context["items"]]
    assert shown == tokens[:50]
    second = browser.get(list_url("waitingcallback") + first.context["older"])
    assert [str(item.record.job.callback_id) for item, _ in second.context["items"]] == tokens[50:]
    assert second.context["older"] is None
    assert second.context["newest"] == "?"
    narrowed = browser.get(list_url("waitingcallback"), {"queue": "other"})
    assert "No callback matches" in text_of(narrowed)


@pytest.mark.parametrize("after", ["nonsense", "~", "2026-01-01~7~q", "~99999999999999999999~x", "\0~1~q"])
def test_addresses_that_say_nothing_begin_at_the_start(after: str) -> None:
    _job_id, token = waiting()
    assert str(token) in words(superuser(), list_url("waitingcallback"), after=after)


def test_a_callback_is_found_by_its_id_and_by_that_of_its_job() -> None:
    job_id, token = waiting()
    waiting()
    _running, held = waiting(parked=False)
    plain = added()
    browser = superuser()
    for text in (str(token), str(token).upper(), f"urn:uuid:{token}", str(job_id)):
        found = browser.get(list_url("waitingcallback"), {"q": text}).context["items"]
        assert [item.record.job.callback_id for item, _ in found] == [token]
    assert str(held) in words(browser, list_url("waitingcallback"), q=str(held))
    assert f"Job {plain} waits for no callback" in words(browser, list_url("waitingcallback"), q=str(plain))
    assert "There is no job 4711" in words(browser, list_url("waitingcallback"), q="4711")
    assert "No job waits for callback what" in words(browser, list_url("waitingcallback"), q="what")
    # Its page is reached by either too, and speaks of the callback.
    assert str(token) in words(browser, detail_url("waitingcallback", job_id))


def test_expressions_and_arguments_are_redacted_and_need_their_permission() -> None:
    _job_id, token = waiting(judges=JUDGES, args={"order": "A-77", "token": "hunter2"})
    page = words(superuser(), detail_url("waitingcallback", token))
    assert "Filter has(payload.status) On complete payload.status == 'paid'" in page
    assert "A-77" in page
    assert MASK in page
    assert "hunter2" not in page
    hidden = words(client("view_waitingcallback"), detail_url("waitingcallback", token))
    assert "Hidden, as are the arguments" in hidden
    assert "payload.status" not in hidden
    assert "A-77" not in hidden


def test_completing_ends_the_job_and_leads_to_it() -> None:
    job_id, token = waiting()
    browser = client("view_waitingcallback", "resolve_callback", "view_job")
    assert "A payload is not asked for" in text_of(
        browser.post(action_url("waitingcallback", token, "complete"))
    )
    answer = browser.post(action_url("waitingcallback", token, "complete"), {"confirmed": "1"})
    assert answer["Location"] == detail_url("job", job_id)
    assert state_of(job_id) == "completed"
    again = browser.post(action_url("waitingcallback", token, "complete"), {"confirmed": "1"}, follow=True)
    assert any("callback not found" in said.lower() for said in messages_of(again))


def test_failing_needs_an_error_which_the_log_does_not_repeat() -> None:
    job_id, token = waiting()
    browser = client("view_waitingcallback", "resolve_callback")
    url = action_url("waitingcallback", token, "fail")
    assert "This field is required" in text_of(browser.post(url, {"confirmed": "1", "do-error": " "}))
    browser.post(url, {"confirmed": "1", "do-error": "card 4111 declined"})
    assert state_of(job_id) == "failed"
    assert operations.load_job(job_id).job.errors[-1]["error"] == "card 4111 declined"
    (entry,) = LogEntry.objects.all()
    assert entry.object_id == str(token)
    assert "4111" not in entry.change_message


def test_retrying_runs_the_job_again() -> None:
    job_id, token = waiting()
    assert f"Job {job_id} is available." in answered(token, "retry")
    assert state_of(job_id) == "available"


def test_resuming_hands_the_payload_over_with_a_warning_before() -> None:
    job_id, token = waiting()
    asked = client("view_waitingcallback", "resolve_callback").post(
        action_url("waitingcallback", token, "resume")
    )
    assert "has nobody to run on" in text_of(asked)
    answered(token, "resume", payload='{"step": [1, null]}')
    assert state_of(job_id) == "running"
    (row,) = stored.rows(
        "SELECT callback_result::text AS result FROM awa.attempt_state WHERE job_id = %s", job_id
    )
    assert json.loads(row["result"]) == {"step": [1, None]}


def test_giving_more_time_keeps_the_callback_and_its_page() -> None:
    _job_id, token = waiting(timedelta(minutes=-5))
    browser = client("view_waitingcallback", "resolve_callback")
    url = action_url("waitingcallback", token, "heartbeat")
    for wrong in ("-1", "nan", "1e99", ""):
        refused = browser.post(url, {"confirmed": "1", "do-seconds": wrong})
        assert refused.context["form"].errors
    answer = browser.post(url, {"confirmed": "1", "do-seconds": "7200"})
    assert answer["Location"] == detail_url("waitingcallback", token)
    ((item, _suffix),) = browser.get(list_url("waitingcallback")).context["items"]
    assert not item.overdue


@pytest.mark.parametrize(
    ("payload", "default", "state", "said"),
    [
        ('{"status": "paid", "tx": 7}', "ignore", "completed", "is completed"),
        ('{"status": "declined"}', "ignore", "failed", "is failed"),
        ('{"status": "later"}', "ignore", "waiting_external", "The answer was ignored"),
        ('{"status": "later"}', "complete", "completed", "is completed"),
        ('{"kind": "ping"}', "fail", "waiting_external", "The answer was ignored"),
    ],
)
def test_resolving_lets_the_expressions_judge(payload: str, default: str, state: str, said: str) -> None:
    job_id, token = waiting(judges=JUDGES)
    messages = " ".join(answered(token, "resolve", payload=payload, default=default))
    assert said in messages
    assert state_of(job_id) == state


def test_a_job_that_still_runs_can_be_answered_but_neither_retried_nor_given_time() -> None:
    job_id, token = waiting(parked=False)
    answer = superuser().get(detail_url("waitingcallback", token))
    assert "Its handler still runs" in text_of(answer)
    assert [offer.action.name for offer in answer.context["offers"]] == [
        "complete",
        "fail",
        "resolve",
        "resume",
    ]
    assert any("callback not found" in said.lower() for said in answered(token, "retry"))
    assert state_of(job_id) == "running"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,\n "b": ]}', "Line 2, column 7: this is not JSON: Expecting value."),
        ("{", "Line 1, column 2"),
        ("nope", "Line 1, column 1"),
        ("[NaN]", "NaN is no JSON number"),
        ("[1e999]", "inf"),
        ("9" * 5000, "This cannot be taken"),
        ('[{"a": 1, "a": 2}]', 'the name "a" comes twice in one object'),
        ("[" * 100 + "]" * 100, "nested deeper than 64 levels"),
        ("[" * 100_000, "nested too deep"),
        ('"\\u0000"', "U+0000"),
        ('{"a": "\\ud800"}', "lone surrogate"),
    ],
)
def test_a_payload_that_is_no_json_is_refused_with_the_place(text: str, said: str) -> None:
    job_id, token = waiting()
    answer = client("view_waitingcallback", "resolve_callback").post(
        action_url("waitingcallback", token, "resume"), {"confirmed": "1", "do-payload": text}
    )
    assert said in text_of(answer)
    assert state_of(job_id) == "waiting_external"


def test_an_empty_payload_is_none() -> None:
    field = PayloadField()
    assert [field.clean(text) for text in ("", "  ", "null", "0", '""')] == [None, None, None, 0, ""]


@pytest.mark.parametrize(
    "key", ["7dab07eb-1158-44e9-83a8-42e71da190da", "nonsense", "a/b", "99999999999999999999999"]
)
def test_a_callback_that_is_not_there_leads_back_to_the_list(key: str) -> None:
    browser = superuser()
    answer = browser.get(detail_url("waitingcallback", key), follow=True)
    assert "No job waits for a callback" in text_of(answer)
    assert len(messages_of(answer)) == 1
    posted = browser.post(action_url("waitingcallback", key, "complete"), {"confirmed": "1"}, follow=True)
    assert len(messages_of(posted)) == 1


def test_what_was_done_to_a_callback_can_be_read_after_it_is_gone() -> None:
    _job_id, token = waiting()
    answered(token, "complete")
    history = superuser().get(detail_url("waitingcallback", token).replace("/change/", "/history/"))
    assert "Complete: Job" in text_of(history)
