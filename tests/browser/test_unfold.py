"""Beside django-unfold, which replaces the look of the admin: every page of the queue still answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests import databases
from tests.scenarios.seeding import Size, seed

SIZE = Size(finished=300, waiting=40, failed=8, dead=4, scheduled=2, retryable=2, callbacks=2, running=2)

#: Walks through the pages, and prints what each answered.
WALK = """
import json, sys
import django
django.setup()
from django.test.utils import setup_test_environment
setup_test_environment()
from tests.scenarios.desk import START, operator
from tests.scenarios.walking import template, walk
pages = walk(operator(), START, also=sys.argv[1:], thorough=False)
print(json.dumps([[template(found.url), found.status] for found in pages]))
"""


@pytest.fixture(scope="module")
def answers(server_url: str, awa_template: str) -> list[tuple[str, int]]:
    with databases.scratch(server_url, "unfold", template=awa_template) as url:
        seeded = seed(url, SIZE)
        details = [
            f"/admin/awa_django/{'dlqentry' if sort == 'dead' else 'job'}/{job_id}/change/"
            for sort, job_id in seeded.one_of_each.items()
        ]
        done = subprocess.run(
            [sys.executable, "-c", WALK, *details],
            cwd=databases.ROOT,
            env={
                **os.environ,
                "DATABASE_URL": url,
                "DJANGO_SETTINGS_MODULE": "tests.browser.settings",
                "AWA_TEST_UNFOLD": "yes",
            },
            capture_output=True,
            text=True,
            timeout=databases.PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return [(page, status) for page, status in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.parametrize(
    "model",
    [
        "job",
        "dlqentry",
        "waitingcallback",
        "queuemeta",
        "kinddescriptor",
        "cronjob",
        "runtimeinstance",
        "batchoperation",
        "storagetransitionstate",
    ],
)
def test_lists_and_pages_of_one_answer(answers: list[tuple[str, int]], model: str) -> None:
    start = f"/admin/awa_django/{model}/"
    found = [(page, status) for page, status in answers if page.startswith(start)]
    assert (start, 200) in found
    wrong = [(page, status) for page, status in found if status >= 400]
    assert wrong == []
    if model != "storagetransitionstate":
        assert [page for page, status in found if page.endswith("/change/") and status == 200]


def test_the_dashboard_answers(answers: list[tuple[str, int]]) -> None:
    assert ("/admin/awa_django/", 200) in answers
