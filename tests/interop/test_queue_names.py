"""Names that would break what puts text together: valid from the call to the last page, or refused at the call."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection

from awa_django import InvalidJob, operations
from awa_django.enqueue import enqueue, enqueue_many
from awa_django.jobs import JobInsert
from awa_django.operations import JobFilter, MoveQueue, Redrive
from tests.admin.asking import action_url, detail_url, list_url, messages_of, superuser, text_of
from tests.console.calling import awa, document
from tests.interop.test_operations import cli
from tests.interop.test_operations import url as address_of
from tests.interop.test_producers import ours, theirs
from tests.test_operations import in_state
from tests.workers import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interop]

EVER = datetime(2999, 1, 1, tzinfo=UTC)
NAMES = [
    'it\'s "quoted"; DROP TABLE x --',
    "a.b..c/../d?e=f&g#h",
    "100%s %(x)s {0} %% \\ $1 :n",
    "\U0001f600 \u0437\u0430\u0434\u0430\u0447\u0430 \u05d0\u05d1 e\u0301",
    "a:3:b:9",
    "q" * 59,
]
#: Beyond the length of a channel, or what no channel may be called.
REFUSED = ["q" * 100, "\U0001f600" * 15, "", "a\nb"]


def test_workers_of_either_are_woken_for_queues_with_any_name_and_run_their_jobs() -> None:
    url = address_of()
    with psycopg.connect(url, autocommit=True) as listener:
        for name in NAMES:
            listener.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(f"awa:{name}")))
        for name in NAMES:
            assert enqueue(JobInsert("told", {}, name))
        heard = [each.channel for each in listener.notifies(timeout=60, stop_after=len(NAMES))]
        assert heard == [f"awa:{name}" for name in NAMES]
    for serving, runs in ((ours, 2), (theirs, 1)):
        with serving(url, *NAMES) as ran:
            enqueue_many([JobInsert("told", {}, name) for name in NAMES])
            wait_until(partial(dict.__eq__, ran.queues, dict.fromkeys(NAMES, runs)), what="all jobs")


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_queue_with_any_name_can_be_worked_on_at_the_desk(name: str) -> None:
    waiting = in_state("scheduled", queue=name)
    assert name in operations.known_queues()
    assert [
        job["id"] for job in document("job", "list", "--queue", name, "--state", "scheduled")["jobs"]
    ] == [waiting]
    assert document("queue", "stats", name, "--exact")[name]["scheduled"] == 1
    assert document("queue", "pause", name, "--yes")
    assert operations.why(waiting).reason
    assert name in cli("queue", "stats")
    cli("queue", "resume", name)
    browser = superuser()
    assert (
        detail_url("queuemeta", name).replace("&", "&amp;").replace("'", "&#x27;")
        in browser.get(list_url("queuemeta")).content.decode()
    )
    shown = " ".join(name.split())
    assert shown in text_of(browser.get(detail_url("queuemeta", name)))
    assert f"{waiting}" in text_of(browser.get(list_url("job"), {"queue": name, "state": "scheduled"}))
    answer = browser.post(action_url("queuemeta", name, "pause"), {"confirmed": "1"}, follow=True)
    assert messages_of(answer) == ["1 queue paused."]
    (found,) = (each for each in operations.queue_overview() if each.queue == name)
    assert found.paused
    operation = operations.submit_batch(MoveQueue(name), JobFilter(queue=name, tag="none"))
    assert operations.batch_operation(operation.id).filter["queue"] == name
    assert operations.drain(name) == 1
    operations.resume(name)
    dead = in_state("dead", queue=name)
    assert document("dlq", "depth", "--queue", name)["total"] == 1
    operations.retry_dead(dead, queue=name)
    assert operations.load_job(dead).job.queue == name


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_a_name_that_no_worker_could_be_woken_by_is_refused_at_every_call(name: str) -> None:
    waiting, dead = in_state("scheduled"), in_state("dead")
    job = JobInsert("told", {}, name)
    calls: list[Any] = [
        lambda: enqueue(job),
        lambda: enqueue_many([job]),
        lambda: operations.move_queue(waiting, name),
        lambda: operations.retry_dead(dead, queue=name),
        lambda: operations.submit_batch(MoveQueue(name), JobFilter(queue="q")),
        lambda: operations.submit_batch(Redrive(queue=name), JobFilter(queue="q")),
        lambda: operations.preview_batch(MoveQueue(name), JobFilter(queue="q")),
    ]
    for call in calls:
        with pytest.raises(InvalidJob) as refused:
            call()
        assert "queue" in refused.value.path
    for words in (
        ("job", "move", waiting, "--to", name),
        ("dlq", "retry", dead, "--to", name),
        ("queue", "pause", name),
        ("batch", "submit", "move-queue", "--to", name, "--queue", "q"),
    ):
        assert awa(*words, "--yes").code == 2, words
    browser = superuser()
    for model, key, action in (("job", waiting, "move-queue"), ("dlqentry", dead, "redrive")):
        answer = browser.post(
            action_url(model, key, action), {"confirmed": "1", "do-queue": name}, follow=True
        )
        if (model, name) != ("dlqentry", ""):  # where none means its own
            assert "queue" in answer.context["form"].errors, (model, name)
    assert operations.load_job(waiting).job.queue == "q"
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM awa.queue_meta WHERE queue <> 'q'")
        assert cursor.fetchone() == (0,)
