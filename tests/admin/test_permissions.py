"""Who may do what: every action of every page, found by what is registered, so that none is forgotten."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
from django.contrib.admin import AdminSite, site
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.core import mail
from django.db import connection, connections
from django.test import Client, override_settings
from django.urls import path, reverse

from awa_django import operations, periodic, storage
from awa_django.admin import ADMINS, frame, register
from awa_django.operations import JobFilter, SetPriority
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
    worker,
)
from tests.admin.test_storage import not_begun
from tests.test_operations import added, in_state

pytestmark = pytest.mark.django_db

#: What whoever may do everything has.
EVERYTHING = [permission for model in ADMINS for permission in (f"view_{model._meta.model_name}",)] + sorted(
    {name for pages in ADMINS.values() for action in pages.offered for name in action.permissions}
    | {"view_job_payload", "submit_batchoperation"}
)


# Something that each action can be done to


def _paused_queue() -> str:
    added(queue="mail")
    operations.pause("mail", "ada")
    return "mail"


def _queue() -> str:
    added(queue="mail")
    return "mail"


def _schedule() -> str:
    schedule("nightly")
    return "nightly"


def _paused_schedule() -> str:
    schedule("nightly")
    periodic.pause("nightly")
    return "nightly"


def _callback() -> str:
    return str(waiting()[1])


def _batch() -> str:
    return str(operations.submit_batch(SetPriority(1), JobFilter(queue="mail")).id)


def _canonical() -> str:
    not_begun()
    return "storage"


def _prepared() -> str:
    not_begun()
    storage.prepare()
    worker("q", transition_role="queue_storage_target")
    return "storage"


def _mixed() -> str:
    _prepared()
    storage.enter_mixed()
    return "storage"


def _job(state: str) -> Callable[[], int]:
    return lambda: in_state(state)


WORLDS: Mapping[tuple[str, str], tuple[Callable[[], object], Mapping[str, str]]] = {
    ("job", "retry"): (_job("failed"), {}),
    ("job", "run-now"): (_job("scheduled"), {}),
    ("job", "cancel"): (_job("available"), {}),
    ("job", "set-priority"): (_job("available"), {"do-priority": "1"}),
    ("job", "move-queue"): (_job("available"), {"do-queue": "other"}),
    ("job", "dead-letter"): (_job("failed"), {"do-reason": "manual"}),
    ("job", "discard"): (_job("failed"), {}),
    ("dlqentry", "redrive"): (_job("dead"), {}),
    ("dlqentry", "purge"): (_job("dead"), {}),
    ("queuemeta", "pause"): (_queue, {}),
    ("queuemeta", "resume"): (_paused_queue, {}),
    ("queuemeta", "set-shards"): (_queue, {"do-shards": "4"}),
    ("queuemeta", "drain"): (_queue, {}),
    ("cronjob", "trigger"): (_schedule, {}),
    ("cronjob", "pause"): (_schedule, {}),
    ("cronjob", "resume"): (_paused_schedule, {}),
    ("cronjob", "delete"): (_schedule, {}),
    ("waitingcallback", "complete"): (_callback, {}),
    ("waitingcallback", "fail"): (_callback, {"do-error": "no"}),
    ("waitingcallback", "retry"): (_callback, {}),
    ("waitingcallback", "resolve"): (_callback, {"do-payload": "{}", "do-default": "complete"}),
    ("waitingcallback", "resume"): (_callback, {"do-payload": "7"}),
    ("waitingcallback", "heartbeat"): (_callback, {"do-seconds": "7200"}),
    ("batchoperation", "cancel"): (_batch, {}),
    ("storagetransitionstate", "prepare"): (_canonical, {}),
    ("storagetransitionstate", "enter-mixed"): (_prepared, {}),
    ("storagetransitionstate", "finalize"): (_mixed, {}),
    ("storagetransitionstate", "abort"): (_prepared, {}),
}
ACTIONS = [
    pytest.param(str(model._meta.model_name), action, id=f"{model._meta.model_name}-{action.name}")
    for model, pages in ADMINS.items()
    for action in pages.offered
]
MODELS = [str(model._meta.model_name) for model in ADMINS]


def everything_stored() -> str:
    """A digest of every row of the queue."""
    tables = stored.rows(
        """
        SELECT oid::regclass::text AS name FROM pg_class
        WHERE (relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition)
            OR relname = 'awa_django_batchoperation' AND relkind = 'r'
        ORDER BY 1
        """
    )
    parts = [
        f"(SELECT string_agg(row::text, ';' ORDER BY row::text) FROM {table['name']} AS row)"
        for table in tables
    ]
    (found,) = stored.rows(f"SELECT md5(concat_ws('|', {', '.join(parts)})) AS digest")
    return str(found["digest"])


@pytest.mark.parametrize(("model", "action"), ACTIONS)
def test_an_action_needs_its_permissions_and_no_others(model: str, action: Any) -> None:
    make, form = WORLDS[model, action.name]
    key = make()
    url = action_url(model, key, action.name)
    before = everything_stored()
    confirmed = {"confirmed": "1", **form}
    for missing in (*action.permissions, f"view_{model}"):
        browser = client(*(name for name in EVERYTHING if name != missing))
        assert browser.post(url, confirmed).status_code == 403, missing
        assert browser.post(url).status_code == 403, missing
    assert Client().post(url, confirmed).status_code == 302
    permitted = (f"view_{model}", *action.permissions)
    assert client(*permitted).get(url, confirmed).status_code == 405
    assert client(*permitted, csrf=True).post(url, confirmed).status_code == 403
    asking = client(*permitted)
    # It asks first, by name, and says how many.
    asked = asking.post(url)
    assert 'name="confirmed" value="1"' in asked.content.decode()
    assert asked.context["count"] == 1
    assert everything_stored() == before
    assert not LogEntry.objects.exists()
    assert asking.post(url, confirmed).status_code == 302
    assert everything_stored() != before
    (entry,) = LogEntry.objects.all()
    assert entry.user_id == int(asking.session["_auth_user_id"])
    assert entry.object_id == str(key)
    assert entry.change_message.startswith(f"{action.label}: ")


@pytest.mark.parametrize(("model", "action"), ACTIONS)
def test_an_action_that_does_not_fit_changes_nothing_and_says_so(model: str, action: Any) -> None:
    browser = superuser()
    before = everything_stored()
    form = {"confirmed": "1", **WORLDS[model, action.name][1]}
    for key in ("no/such %_thing", "0", "9" * 30, "x" * 300):
        if model == "queuemeta" and action.name != "drain" and key in ("no/such %_thing", "0", "9" * 30):
            continue  # names that a queue may have
        answer = browser.post(action_url(model, key, action.name), form, follow=True)
        assert [str(message) for message in answer.context["messages"]] or answer.context["form"].errors
    assert browser.post(action_url(model, "a\0b", action.name), form).status_code == 404
    nothing = browser.post(
        reverse(f"admin:awa_django_{model}_action_many", args=[action.name]), form, follow=True
    )
    assert [str(message) for message in nothing.context["messages"]] == [
        "Nothing was selected, and nothing was changed."
    ]
    if model != "storagetransitionstate":
        assert everything_stored() == before


@pytest.mark.parametrize(("model", "action"), ACTIONS)
def test_all_that_match_no_filter_at_all_is_refused(model: str, action: Any) -> None:
    WORLDS[model, action.name][0]()
    before = everything_stored()
    url = reverse(f"admin:awa_django_{model}_action_many", args=[action.name])
    form = {"matching": "1", **WORLDS[model, action.name][1]}
    for more in ({}, {"confirmed": "1"}):
        assert superuser().post(url, {**form, **more}).status_code in (400, 404)
    assert everything_stored() == before


def test_all_that_match_a_filter_that_an_action_is_not_for_is_refused_with_the_reason() -> None:
    in_state("completed")
    url = reverse("admin:awa_django_job_action_many", args=["retry"])
    for more in ({}, {"confirmed": "1"}):
        for given, words in (({"state": "completed"}, "failed"), ({"id": "9" * 19}, "matches nothing")):
            asked = {"matching": "1", "next": f"{list_url('job')}?size=20", **given, **more}
            answer = superuser().post(url, asked, follow=True)
            assert answer.redirect_chain == [(f"{list_url('job')}?size=20", 302)]
            (message,) = answer.context["messages"]
            assert words in str(message)


def test_keys_that_no_page_has_sent_are_not_passed_over_in_silence() -> None:
    for model, action in (("job", "retry"), ("dlqentry", "purge")):
        url = reverse(f"admin:awa_django_{model}_action_many", args=[action])
        chosen = {"confirmed": "1", "_selected_action": ["-1", "1e3", "7.elsewhere"]}
        answer = superuser().post(url, chosen, follow=True)
        (message,) = answer.context["messages"]
        assert str(message) == "3 not changed: that is no job's key."


def test_who_finds_it_held_by_another_transaction_is_told_so_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame, "statement", lambda subject, name: "SET LOCAL lock_timeout = '100ms'")
    browser = superuser()
    url = action_url("queuemeta", "mail", "pause")
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO awa.queue_meta (queue) VALUES ('mail')")
        answer = browser.post(url, {"confirmed": "1"}, follow=True)
        cursor.execute("ROLLBACK")
    other.close()
    (message,) = answer.context["messages"]
    assert str(message).startswith("Another transaction is at work on this, and nothing was changed.")
    assert not LogEntry.objects.exists()
    assert browser.post(url, {"confirmed": "1"}).status_code == 302
    assert LogEntry.objects.get().object_id == "mail"


def test_the_report_of_an_error_has_no_payload() -> None:
    browser = superuser()
    browser.raise_request_exception = False
    url = action_url("waitingcallback", _callback(), "resume")
    form = {"confirmed": "1", "do-payload": '"hunter2"'}
    with (
        override_settings(ADMINS=[("Ann", "ann@example.com")]),
        mock.patch("awa_django.callbacks._found", side_effect=ZeroDivisionError("boom")),
    ):
        assert browser.post(url, form).status_code == 500
    (report,) = mail.outbox
    assert "do-payload" in report.body
    assert "hunter2" not in report.body


def test_an_unknown_action_is_no_page() -> None:
    for model in MODELS:
        assert superuser().post(action_url(model, "1", "explode")).status_code == 404


# A database that takes no changes


def test_in_a_read_only_database_all_pages_show_and_nothing_can_be_done() -> None:
    worker("mail", kinds=("k",), leader=True)
    keys: dict[str, object] = {
        "job": in_state("failed"),
        "dlqentry": in_state("dead"),
        "waitingcallback": _callback(),
        "queuemeta": _queue(),
        "kinddescriptor": "k",
        "cronjob": _schedule(),
        "runtimeinstance": worker("mail"),
        "batchoperation": _batch(),
    }
    browser = superuser()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL transaction_read_only = on")
    for model in MODELS:
        page = browser.get(list_url(model))
        assert "Read-only. The database takes no changes" in text_of(page)
        buttons = page.content.decode().partition('class="awa"')[2]
        if model in keys:
            page = browser.get(detail_url(model, keys[model]))
            assert "Read-only. The database takes no changes" in text_of(page)
            buttons += page.content.decode().partition('class="awa"')[2]
        assert 'method="post" action=' not in buttons
        assert "/do/" not in buttons
    for shown, pages in ADMINS.items():
        name = str(shown._meta.model_name)
        for action in pages.offered:
            url = action_url(name, keys.get(name, "storage"), action.name)
            for form in ({}, {"confirmed": "1", **WORLDS[name, action.name][1]}):
                assert browser.post(url, form).status_code == 403, url
    submit = reverse("admin:awa_django_batchoperation_add")
    for form in ({}, {"confirmed": "1"}):
        assert browser.post(submit, {"operation": "cancel", "queue": "q", **form}).status_code == 403


# Looking


@pytest.mark.parametrize("model", MODELS)
def test_a_page_needs_the_permission_to_see_it(model: str) -> None:
    others = [name for name in EVERYTHING if name != f"view_{model}"]
    for url in (list_url(model), detail_url(model, "1")):
        assert client(*others).get(url).status_code == 403 or model == "storagetransitionstate"
    assert client(f"view_{model}").get(list_url(model)).status_code == 200
    assert Client().get(list_url(model)).status_code == 302


NASTY = ["", "\0", '"><script>', "a\0' %☃", "-1", "9" * 50, "[]", "a" * 1000, "infinity", "0001-01-01"]
NAMES = (
    "q", "show", "state", "queue", "kind", "tag", "id", "size", "before", "after", "created_from", "created_before",
    "plane", "all", "p", "o",
)  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_no_parameter_and_no_key_breaks_a_page(model: str) -> None:
    browser = superuser()
    # Each name gets each value, all names together.
    for shift in range(len(NASTY)):
        values = {name: NASTY[(place + shift) % len(NASTY)] for place, name in enumerate(NAMES)}
        if shift % 2:
            del values["q"]  # which may lead to another address
        answer = browser.get(list_url(model), values, follow=True)
        assert answer.status_code == 200, values
        assert '"><script>' not in answer.content.decode()
    for key in NASTY[1:6]:
        answer = browser.get(detail_url(model, key), follow=True)
        assert answer.status_code == 200, key
        assert '"><script>' not in answer.content.decode()
    history = detail_url(model, "a\0' %").replace("/change/", "/history/")
    assert browser.get(history, follow=True).status_code == 200


def test_no_page_asks_the_database_often_or_has_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    worker("mail", kinds=("k",), leader=True)
    pages = {
        "queuemeta": _queue(),
        "kinddescriptor": "k",
        "cronjob": _schedule(),
        "runtimeinstance": worker("mail"),
        "batchoperation": _batch(),
        "waitingcallback": _callback(),
        "storagetransitionstate": None,
    }
    browser = superuser()
    asked: list[str] = []
    run = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        text = query if isinstance(query, str) else str(query)
        if not text.startswith(("SAVEPOINT", "RELEASE")):
            asked.append(text)
        return run(self, query, *args, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    for model, key in pages.items():
        for url in (list_url(model), *([] if key is None else [detail_url(model, key)])):
            asked.clear()
            page = browser.get(url)
            assert page.status_code == 200
            assert len(asked) <= 15, (url, asked)
            # A strict content security policy lets nothing of this through.
            assert not re.findall(
                r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page.content.decode()
            ), url


def test_the_page_for_operators_lists_every_permission_that_means_something() -> None:
    page = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()
    assert sorted(
        re.findall(r"^\| `(\w+)` \|", page.partition("| Permission |")[2].partition("## What")[0], re.M)
    ) == (sorted(EVERYTHING))


def test_every_permission_of_the_pages_exists() -> None:
    known = set(
        Permission.objects.filter(content_type__app_label="awa_django").values_list("codename", flat=True)
    )
    assert set(EVERYTHING) <= known


# A site of the project's own

operators = AdminSite("operators")
register(operators)
urlpatterns = [path("admin/", site.urls), path("ops/", operators.urls)]


@pytest.mark.urls(__name__)
def test_the_pages_of_another_site_lead_to_each_other() -> None:
    schedule("nightly")
    _batch()
    _queue()
    browser = superuser()
    for model in MODELS:
        page = browser.get(f"/ops/awa_django/{model}/").content.decode()
        assert f'href="/ops/awa_django/{model}/"' in page
        assert "/admin/awa_django/" not in page
    answer = browser.post("/ops/awa_django/cronjob/nightly/do/trigger/", {"confirmed": "1"})
    assert answer["Location"].startswith("/ops/awa_django/job/")
    answer = browser.post(
        "/ops/awa_django/batchoperation/add/", {"operation": "retry", "queue": "q", "confirmed": "1"}
    )
    assert answer["Location"].startswith("/ops/awa_django/batchoperation/")
