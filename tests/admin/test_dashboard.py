"""The dashboard, and the tags that all pages are made of."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.db import connection
from django.test import override_settings
from django.urls import path, reverse

from awa_django import operations
from awa_django.admin import ADMINS, register
from awa_django.states import JobState
from awa_django.templatetags import awa, awa_charts
from awa_django.unreadable import Unreadable
from tests import stored
from tests.admin.asking import client, detail_url, list_url, superuser, text_of, waiting, words, worker
from tests.admin.test_jobs import MOST_STATEMENTS, own_code
from tests.scenarios.walking import sent
from tests.test_operations import added, in_state

own_site = AdminSite(name="own")
register(own_site)
urlpatterns = [path("own/", own_site.urls), path("admin/", admin.site.urls)]

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def dashboard_url() -> str:
    return reverse("admin:app_list", args=["awa_django"])


# The page


@pytest.mark.django_db
def test_the_figures_are_those_of_the_queue_and_lead_to_the_jobs() -> None:
    for state, number in (
        ("available", 3),
        ("running", 2),
        ("failed", 1),
        ("scheduled", 2),
        ("completed", 4),
    ):
        for _ in range(number):
            in_state(state, queue=state)
    in_state("dead", queue="dead")
    waiting(queue="parked")
    answer = superuser().get(dashboard_url())
    figures = {stat.state: stat.value for stat in answer.context["stats"]} if answer.context else {}
    page = text_of(answer)
    shown = re.findall(
        r'class="awa-stat awa-state-(\w+)" href="([^"]+)">.*?awa-stat-figure">(?:<[^>]+>)?([\d,]+)',
        answer.content.decode(),
        re.DOTALL,
    )
    assert [(state, int(value)) for state, _url, value in shown] == [
        ("available", 3),
        ("running", 2),
        ("failed", 2),
        ("scheduled", 2),
        ("waiting_external", 1),
        ("completed", 4),
    ]
    assert shown[2][1] == f"{list_url('job')}?state=failed"
    assert answer.content.decode().count('class="awa-spark"') == 6
    assert "1 dead letter " in page
    assert "1 dead letter." in page
    assert figures in ({}, {state: int(value) for state, _url, value in shown})


@pytest.mark.django_db
def test_queues_workers_and_failures_are_shown_with_their_marks() -> None:
    in_state("retryable", queue="mail")
    failed = in_state("failed", queue="mail")
    added(queue="idle")
    operations.pause("mail", "ada")
    live = worker("mail", leader=True)
    worker("mail", seen=timedelta(hours=2), hostname="gone")
    page = words(superuser(), dashboard_url())
    assert "mail paused 1 0 –" in page
    assert "idle no worker 1 0 0 ms 0" in page or re.search(r"idle no worker 1 0 \d+(\.\d)? (ms|s) 0", page)
    assert "1 live · 1 healthy · 1 leading · 1 stale" in page
    assert re.search(r"web-1:\d+ leader 3 ", page)
    assert re.search(r"gone:\d+ stale – 2 h ago", page)
    assert f"k #{failed} failed mail gone 1 / 25" in page
    assert detail_url("runtimeinstance", live) in superuser().get(dashboard_url()).content.decode()


@pytest.mark.django_db
def test_the_queue_with_most_to_do_is_the_first_and_only_what_could_run_misses_a_worker() -> None:
    in_state("running", queue="alone")
    for _ in range(3):
        added(queue="crowded")
    waiting(queue="parked")
    page = words(superuser(), dashboard_url()).partition("Busiest queues")[2]
    assert re.search(r"crowded no worker 3 0 .* alone 1 1 ", page)
    assert "parked no worker" not in page, "an answer from outside is what it waits for"


@pytest.mark.django_db
def test_an_empty_queue_says_what_to_do() -> None:
    page = words(superuser(), dashboard_url())
    assert "No live worker · queue storage" in page
    assert "No worker is running" in page
    assert "Start one with: manage.py awa_worker" in page
    assert "No queue yet" in page
    assert "Nothing failed" in page


@pytest.mark.django_db
def test_each_part_is_for_those_who_may_see_it() -> None:
    failed = in_state("failed", queue="mail")
    worker("mail")
    jobs_only = words(client("view_job"), dashboard_url())
    assert f"#{failed}" in jobs_only
    assert "hidden: needs the permission to see payloads" in jobs_only
    assert "gone" not in jobs_only
    assert "Busiest queues" not in jobs_only
    assert "web-1" not in jobs_only
    workers_only = words(client("view_runtimeinstance"), dashboard_url())
    assert "web-1" in workers_only
    assert "Latest failures" not in workers_only
    assert client().get(dashboard_url()).status_code == 404


@pytest.mark.django_db
def test_the_page_has_no_script_or_style_of_its_own_and_few_statements() -> None:
    for state in (*(state.value for state in JobState), "dead"):
        in_state(state)
    worker("q")
    browser = superuser()
    browser.get(dashboard_url())
    with sent() as statements:
        answer = browser.get(dashboard_url())
    assert own_code(answer.content.decode()) == []
    assert len(statements) <= MOST_STATEMENTS, [statement.text[:80] for statement in statements]
    assert not [statement for statement in statements if re.search(r"awa\.jobs\b", statement.text)]


@pytest.mark.django_db
def test_the_page_works_on_canonical_storage() -> None:
    stored.use_canonical()
    added(queue="old")
    page = words(superuser(), dashboard_url())
    assert "canonical" in page
    assert "old no worker 1" in page


@pytest.mark.django_db
@override_settings(AWA={"ADMIN_STATEMENT_TIMEOUT": 0.001})
def test_a_page_that_takes_too_long_says_so() -> None:
    stored.run("INSERT INTO awa.queue_meta (queue) SELECT 'q' || n FROM generate_series(1, 5000) AS n")
    assert "That took the database too long" in words(superuser(), dashboard_url())


@pytest.mark.django_db
@override_settings(ROOT_URLCONF="tests.admin.test_dashboard")
def test_a_site_of_the_projects_own_has_the_dashboard_too() -> None:
    page = text_of(superuser().get("/own/awa_django/"))
    assert "Available 0" in page
    assert "Dashboard" in page


BESIDE = """
import django
django.setup()
from awa_django.admin import ADMINS
from django.db import connection, transaction
from tests.admin.asking import detail_url, list_url, superuser
from tests.test_operations import in_state
from django.urls import reverse

connection.settings_dict["NAME"] = NAME
with transaction.atomic():
    browser = superuser()
    job, dead = in_state("failed"), in_state("dead")
    urls = [reverse("admin:app_list", args=["awa_django"]), *(list_url(model._meta.model_name) for model in ADMINS)]
    for url in [*urls, detail_url("job", job), detail_url("dlqentry", dead), list_url("job") + "?_popup=1"]:
        answer = browser.get(url)
        page = answer.content.decode()
        found = [each in page for each in ("unfold/css/styles.css", "awa_django/awa.css", "awa_django/awa.js", "<h1")]
        print(url, answer.status_code, *found)
    transaction.set_rollback(True)
"""


@pytest.mark.django_db
def test_pages_stand_beside_another_theme() -> None:
    """In a process of its own: the theme takes the place of Django's site when it is loaded."""
    pytest.importorskip("unfold")
    script = BESIDE.replace("= NAME", f"= {connection.settings_dict['NAME']!r}")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.admin.unfold_settings"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + len(ADMINS) + 3, done.stdout
    assert [line for line in lines if not line.endswith(" 200 True True True True")] == []


# The tags


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (0.5, "now"),
        (-12, "12 s ago"),
        (-61, "1 min ago"),
        (3599, "in 59 min"),
        (-7300, "2 h ago"),
        (-90000, "1 d ago"),
        (400 * 86400, "in 1 y"),
    ],
)
def test_times_are_told_in_one_unit(ahead: float, said: str) -> None:
    assert awa.relative(NOW + timedelta(seconds=ahead), NOW) == said


def test_a_time_has_the_exact_one_beside_it() -> None:
    shown = awa.reltime(NOW)
    assert 'datetime="2026-01-02T03:04:05+00:00"' in shown
    assert 'title="2026-01-02 03:04:05 UTC"' in shown
    for odd in (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)):
        assert "<time" in awa.reltime(odd)
        assert "<time" in awa.abstime(odd)
    assert "–" in awa.reltime(None)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (4.25, "4.2 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (90061, "1 d 1 h"),
        (-5, "-5 s"),
        (timedelta(minutes=2), "2 min"),
        (None, "–"),
    ],
)
def test_spans_are_told_in_two_units_at_most(seconds: float | None, said: str) -> None:
    assert awa.duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "level"), [(9.9, "is-ok"), (10, "is-warning"), (59.9, "is-warning"), (60, "is-error")]
)
def test_lag_is_green_then_amber_then_red(seconds: float, level: str) -> None:
    assert level in awa.lag(seconds)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (9_999, "9,999"),
        (12_345, "~12.3 k"),
        (999_960, "~1000 k"),
        (1_234_567, "~1.2 M"),
        (250_000_000, "~250 M"),
    ],
)
def test_estimates_have_as_many_digits_as_they_deserve(value: int, said: str) -> None:
    assert awa.about(value) == said
    assert said in awa.figure(value, False)
    assert f"{value:,}" in awa.figure(value, True)


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (84, "~84"), (204, "~200"), (6_528, "~6,500"), (12_345, "~12.3 k")]
)
def test_a_rough_estimate_says_so_and_keeps_two_digits(value: int, said: str) -> None:
    assert f">{said}<" in f">{awa.figure(value, False, True)}<"
    assert "~" not in awa.figure(value, True, True)


def test_values_are_escaped_and_marked_up() -> None:
    html, size, short = awa.shown_json({"<k>": ['a"b</script>', True, None, 7]})
    assert "<script" not in html.replace("&lt;", "")
    assert '<span class="awa-json-key">&quot;&lt;k&gt;&quot;</span>' in html
    assert '<span class="awa-json-word">null</span>' in html
    assert not short
    assert re.sub(r"<[^>]+>", "", html).count("&quot;") == 5
    assert size == len(awa.plain_text({"<k>": ['a"b</script>', True, None, 7]}))


def test_long_values_are_cut_and_what_cannot_be_read_is_text() -> None:
    html, size, short = awa.shown_json("<" * 30_000)
    assert (size, short, html.count("&lt;")) == (30_000, True, 20_000)
    assert awa.shown_json(Unreadable("[[1]]", "too deep"))[0] == "[[1]]"
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    assert awa.shown_json(deep)[1] > 1800


def test_charts_draw_what_they_are_given() -> None:
    flat = awa_charts.sparkline([0] * 60, "nothing")
    assert 'aria-label="nothing"' in flat
    assert "nan" not in flat
    peak = awa_charts.sparkline([0, 10, 5], "x")
    assert "50.00,3.00" in peak
    assert awa_charts.sparkline([], "x").startswith("<svg")


def test_errors_are_told_by_the_line_that_says_most() -> None:
    assert awa.first_line("Traceback (most recent call last):\n  File x\nKeyError: 'a'\n") == "KeyError: 'a'"
    assert awa.first_line("\n boom \nmore") == "boom"
    assert awa.first_line("") == ""


def test_commands_in_a_sentence_look_like_commands() -> None:
    assert awa.ticks("run `a <b>` now") == "run <code>a &lt;b&gt;</code> now"
