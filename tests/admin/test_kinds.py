"""The pages of kinds."""

from __future__ import annotations

import pytest

from tests.admin.asking import (
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
from tests.test_operations import added, in_state

pytestmark = pytest.mark.django_db


def test_the_list_shows_each_kind_with_its_figures() -> None:
    added(kind="greet", queue="mail")
    added(kind="greet", queue="other")
    in_state("failed", kind="greet")
    in_state("dead", kind="greet")
    worker("mail", kinds=("greet",))
    page = words(superuser(), list_url("kinddescriptor"))
    assert "greet 2 2 2 0 " in page
    assert "No live worker knows" not in page.replace("No live worker knows it 0", "")


def test_a_kind_that_waits_and_that_no_live_worker_knows_is_pointed_out() -> None:
    added(kind="lost")
    added(kind="known")
    worker("q", kinds=("known",))
    browser = superuser()
    page = words(browser, list_url("kinddescriptor"))
    assert "No live worker knows 1 kind whose jobs wait: lost" in page
    assert "lost no live worker knows it" in page
    assert "known no live worker" not in page
    found = words(browser, list_url("kinddescriptor"), show="orphaned", q="o")
    assert "lost no live worker knows it" in found
    assert "no live worker knows it" in words(browser, detail_url("kinddescriptor", "lost"))


def test_the_page_of_a_kind_shows_code_workers_and_schedules() -> None:
    added(kind="note", queue="mail")
    worker("mail", kinds=("note",), hostname="box", pid=4711)
    schedule("nightly", kind="note")
    page = words(superuser(), detail_url("kinddescriptor", "note"))
    assert "Live workers box:4711" in page
    assert "In this process tests.testapp.jobs.note" in page
    assert "Waiting on mail" in page
    assert "Schedules nightly 0 3 * * * UTC" in page


def test_a_kind_that_nobody_knows_leads_back_to_the_list() -> None:
    answer = superuser().get(detail_url("kinddescriptor", "nothing/of it"), follow=True)
    assert messages_of(answer) == ["There is no kind 'nothing/of it'"]
    assert "No kind yet" in text_of(answer)


def test_what_needs_other_permissions_is_left_out() -> None:
    added(kind="note")
    worker("q", kinds=("note",), hostname="box", pid=4711)
    schedule("nightly", kind="note")
    page = words(client("view_kinddescriptor"), detail_url("kinddescriptor", "note"))
    assert "box:4711" not in page
    assert "nightly" not in page
