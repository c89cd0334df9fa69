"""Every verb, on jobs in every state: what it changes, what it prints, what it answers."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings

from awa_django import job as declare
from awa_django import operations, periodic
from awa_django.console.tree import VERBS
from awa_django.operations import BatchState, JobFilter, MoveQueue
from awa_django.registry import registry
from awa_django.signatures import sign
from tests import stored
from tests.console.calling import awa, document
from tests.test_operations import added, in_state
from tests.test_operator_reads import canonical

pytestmark = pytest.mark.django_db

CASES: dict[str, Callable[..., None]] = {}


def case(function: Callable[..., None]) -> Callable[..., None]:
    """The test of a verb, named for it."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


@pytest.mark.parametrize("path", VERBS)
def test_every_verb_does_what_it_says(path: str) -> None:
    CASES[path]()


def test_there_are_no_cases_of_verbs_that_are_gone() -> None:
    assert CASES.keys() == VERBS.keys()


def state(job_id: int) -> str:
    record = operations.load_job(job_id)
    return "dead" if record.dead_letter else record.job.state.value


def waiting() -> tuple[int, str]:
    """A job that waits for a callback, and the callback's id."""
    job_id = in_state("waiting_external")
    stored.run(
        "UPDATE awa.leases SET callback_timeout_at = now() + interval '1 hour' WHERE job_id = %s", job_id
    )
    return job_id, str(operations.load_job(job_id).job.callback_id)


def scheduled_by_cron(name: str = "nightly", expression: str = "0 3 * * *") -> None:
    stored.run(
        "INSERT INTO awa.cron_jobs (name, cron_expr, kind, args) VALUES (%s, %s, 'report', %s)",
        name,
        expression,
        json.dumps({"token": "hidden", "day": 1}),
    )


# The whole queue


@case
def status() -> None:
    for each in ("available", "scheduled", "running", "dead"):
        in_state(each)
    operations.pause("q", "ann")
    found = document("status")
    assert found["jobs"]["available"] == 1
    assert found["dead_letters"] == 1
    assert found["paused"] == ["q"]
    assert found["storage"] == "active"
    assert any("No worker is running" in sentence for sentence in found["attention"])
    said = awa("status")
    assert "dead letters         1" in said.out
    assert "! 1 queue is paused: q." in said.out
    runtime(hostname="web-1", queues=[{"queue": "mail", "config": {"max_workers": 5}}])
    assert "No worker serves 1 queue with jobs: q." in document("status")["attention"]


@case
def runtimes() -> None:
    runtime(
        hostname="web-1", queues=[{"queue": "q", "in_flight": 2, "config": {"max_workers": 5}}], leader=True
    )
    runtime(hostname="web-2", silent="1 hour")
    found = document("runtimes")
    assert (found["total"], found["live"], found["stale"], found["leaders"]) == (2, 1, 1, 1)
    assert [each["hostname"] for each in found["instances"]] == ["web-1", "web-2"]
    assert len(document("runtimes", "--live")["instances"]) == 1
    said = awa("runtimes").out
    assert "leads" in said
    assert "stale" in said
    assert "q 2" in said


@case
def kinds() -> None:
    with registry.isolated():

        @declare(kind="send_receipt")
        def send_receipt() -> None: ...

        added(kind="send_receipt", queue="mail")
        assert document("kinds")[0]["registered"] is True
        with pytest.MonkeyPatch.context() as patch:
            # A look at a part of what waits that has none of a rare kind.
            patch.setattr(operations, "kind_overview", lambda **options: [])
            rare = added(kind="rare", queue="mail")
            assert (awa("kinds").code, document("kinds", "--fail-on", "never")[0]["kind"]) == (1, "rare")
            operations.cancel(rare)
        added(kind="send_reciept", queue="mail")
        said = awa("kinds", "--json")
        assert said.code == 1
        assert said.json[0] == {
            "kind": "send_reciept",
            "waiting": 1,
            "registered": False,
            "nearest": "send_receipt",
            "handled_by": 0,
            "queues": ["mail"],
        }
        said = awa("kinds")
        assert "is it send_receipt?" in said.out
        assert "1 waiting kind is not registered here; 1 job would be put off." in said.out
        assert awa("kinds", "--fail-on", "never").code == 0
        operations.cancel(JobFilter(kind="send_reciept"))
        assert awa("kinds").code == 0
        assert awa("kinds", "--fail-on", "unhandled").code == 1
        assert {row["kind"] for row in document("kinds", "--all")} >= {"send_receipt"}


@case
def why() -> None:
    job_id = in_state("scheduled")
    found = document("why", job_id)
    assert (found["id"], found["reason"]) == (job_id, "not_due")
    said = awa("why", job_id).out
    assert said.startswith(f"job {job_id}: k, scheduled")
    assert "not due before 2999-01-01 00:00:00 UTC" in said.replace("\n", " ")


@case
def doctor() -> None:
    said = awa("doctor", "--json")
    assert said.code == 1  # nobody leads a test database
    found = {item["check"]: item for item in said.json}
    assert found["schema"]["level"] == "ok"
    assert found["leader"]["level"] == "error"
    assert found["leader"]["hint"]
    text = awa("doctor").out
    assert "error    leader: Nobody leads" in text
    assert all(len(line) <= 80 for line in text.splitlines())


# Jobs


@case
def job_list() -> None:
    ids = [in_state(each) for each in ("available", "failed", "dead", "scheduled")]
    found = document("job", "list")
    assert [job["id"] for job in found["jobs"]] == sorted(ids, reverse=True)
    assert found["next"] is None
    assert "args" not in found["jobs"][0]
    page = document("job", "list", "--limit", 1, "--show-payloads")
    assert page["jobs"][0]["args"] == {}
    rest = document("job", "list", "--after", page["next"])
    assert [job["id"] for job in rest["jobs"]] == sorted(ids, reverse=True)[1:]
    assert len(document("job", "list", "--state", "failed", "--state", "scheduled")["jobs"]) == 3
    assert document("job", "list", "--created-before", "2020-01-01T00:00:00Z")["jobs"] == []
    assert len(document("job", "list", "--created-after", "1h", "--queue", "q", "--kind", "k")["jobs"]) == 4
    said = awa("job", "list", "--limit", 2)
    assert "There is more: add --after" in said.err
    assert awa("job", "list", "--tag", "none").out == "No job matches.\n"


@case
def job_show() -> None:
    job_id = added(args={"order": 7, "password": "hunter2", "note": "\x1b[31mred"}, tags=("t",))
    found = document("job", "show", job_id)
    assert found["args"]["order"] == 7
    assert found["tags"] == ["t"]
    said = awa("job", "show", job_id).out
    assert '"order": 7' in said
    assert "hunter2" not in said + json.dumps(found)
    assert "\x1b" not in said
    twice = added()
    first, last = (
        {"attempt": 1, "at": "2026-03-01T09:00:00Z", "error": "OSError: gone\nTraceback"},
        {"attempt": 2, "at": "?", "error": "ValueError: no\nTraceback:\n\tFile \x1b[31m", "terminal": True},
    )
    stored.run(
        "UPDATE awa.ready_entries SET payload = jsonb_build_object('errors', %s::jsonb) WHERE job_id = %s",
        json.dumps([first, last]),
        twice,
    )
    shown = awa("job", "show", twice).out
    assert "errors    2, the last: ValueError: no\n" in shown
    assert "attempt 1, 2026-03-01 09:00:00 UTC" in shown
    assert "ago): OSError: gone\n" in shown
    assert "  attempt 2, for good:\n    ValueError: no\n    Traceback:\n        File \\x1b[31m\n" in shown
    assert f"job dump-run {twice} --attempt N" in shown


@case
def job_dump() -> None:
    job_id = in_state("failed")
    found = document("job", "dump", job_id)
    assert found["job"]["id"] == job_id
    assert found["summary"]["can_retry"] is True
    assert json.loads(awa("job", "dump", job_id).out) == found


@case
def job_dump_run() -> None:
    job_id = in_state("failed")
    assert document("job", "dump-run", job_id)["selected_attempt"] == 1
    assert awa("job", "dump-run", job_id, "--attempt", 7).code == 2


@case
def job_cancel() -> None:
    first, second, done = in_state("available"), in_state("running"), in_state("completed")
    assert document("job", "cancel", first, first)["ids"] == [first]
    said = awa("job", "cancel", second, done, 4711)
    assert said.code == 3
    assert "1 job cancelled." in said.out
    assert f"not changed: job {done}: it is completed" in said.out
    assert "not changed: job 4711: there is no such job" in said.out
    assert (state(first), state(second), state(done)) == ("cancelled", "cancelled", "completed")


@case
def job_retry() -> None:
    failed, dead = in_state("failed"), in_state("dead")
    assert document("job", "retry", "--kind", "k", "--yes")["ids"] == [failed]
    said = awa("job", "retry", dead, "--json")
    assert said.code == 3
    assert said.json["skipped"][0]["reason"] == "dead_lettered"
    assert (state(failed), state(dead)) == ("available", "dead")


@case
def job_run() -> None:
    scheduled, retryable = in_state("scheduled"), in_state("retryable")
    assert document("job", "run", scheduled)["ids"] == [scheduled]
    assert document("job", "run-now", "--state", "retryable", "--yes")["ids"] == [retryable]
    assert (state(scheduled), state(retryable)) == ("available", "available")


@case
def job_discard() -> None:
    failed, dead = in_state("failed"), in_state("dead")
    assert awa("job", "discard", failed).code == 2
    assert awa("job", "discard", failed, typed="n\n").code == 1
    assert state(failed) == "failed"
    assert awa("job", "discard", failed, typed="y\n").code == 0
    assert document("job", "discard", "--kind", "k", "--yes")["ids"] == [dead]
    assert awa("job", "show", failed).code == 3


@case
def job_priority() -> None:
    job_id = in_state("available")
    assert document("job", "priority", "--to", 1, job_id)["changed"] == 1
    assert awa("job", "priority", "--to", 1, job_id, "--json").json["skipped"][0]["reason"] == "unchanged"
    assert operations.load_job(job_id).job.priority == 1
    said = awa("job", "priority", "--to", 9, job_id)
    assert said.code == 2
    assert "from 1 to 4 is needed, not 9" in said.err


@case
def job_move() -> None:
    job_id = in_state("available")
    assert document("job", "move", "--to", "slow", "--priority", 4, job_id)["changed"] == 1
    moved = operations.load_job(job_id)
    assert (moved.job.queue, moved.job.priority, moved.original_priority) == ("slow", 4, 2)
    assert awa("job", "move", "--to", "x" * 60, job_id).code == 2


@case
def job_retry_failed() -> None:
    failed = in_state("failed")
    assert awa("job", "retry-failed", "--yes").code == 2
    assert awa("job", "retry-failed", "--queue", "q", "--kind", "k", "--yes").code == 2
    found = document("job", "retry-failed", "--queue", "q", "--yes")
    assert (found["ids"], found["pruned_failed"]) == ([failed], 0)


CASES["job dump-run"] = CASES.pop("job dump run")
CASES["job retry-failed"] = CASES.pop("job retry failed")


# Dead letters


@case
def dlq_list() -> None:
    ids = [in_state("dead") for _ in range(3)]
    page = document("dlq", "list", "--limit", 2)
    rest = document("dlq", "list", "--after", page["next"])
    assert {job["id"] for job in page["jobs"] + rest["jobs"]} == set(ids)
    assert (len(page["jobs"]), rest["next"]) == (2, None)
    at, _, before = page["next"].partition("/")
    assert document("dlq", "list", "--before-id", before, "--before-dlq-at", at) == rest
    assert page["jobs"][0]["dlq"]["reason"] == "terminal_error"
    assert "terminal_error" in awa("dlq", "list").out
    assert awa("dlq", "list", "--kind", "none").out == "No dead letter matches.\n"
    assert awa("dlq", "list", "--limit", 1).err.startswith("There is more")


@case
def dlq_depth() -> None:
    in_state("dead")
    in_state("dead", queue="other")
    in_state("dead", queue="other")
    assert document("dlq", "depth") == {"total": 3, "queues": {"other": 2, "q": 1}}
    assert document("dlq", "depth", "--queue", "q")["total"] == 1
    assert awa("dlq", "depth").out.startswith("3 dead letters.")


@case
def dlq_retry() -> None:
    first, second, third = (in_state("dead") for _ in range(3))
    assert document("dlq", "retry", first)["ids"] == [first]
    found = document("dlq", "redrive", second, "--in", "2h", "--priority", 1, "--to", "bulk")
    assert found["ids"] == [second]
    moved = operations.load_job(second).job
    assert (moved.state.value, moved.queue, moved.priority) == ("scheduled", "bulk", 1)
    assert timedelta(minutes=119) < moved.run_at - datetime.now(UTC) <= timedelta(hours=2)
    assert awa("dlq", "retry", third, "--in", "2h", "--at", "2999-01-01").code == 2
    assert document("dlq", "retry-bulk", "--all", "--at", "2999-01-01T00:00", "--yes")["ids"] == [third]
    assert awa("dlq", "retry", first).code == 3


@case
def dlq_move() -> None:
    failed = in_state("failed")
    assert document("dlq", "move", failed, "--reason", "by hand")["ids"] == [failed]
    dead = operations.load_job(failed).dead_letter
    assert dead is not None
    assert dead.reason == "by hand"


@case
def dlq_purge() -> None:
    dead, failed = in_state("dead"), in_state("failed")
    assert awa("dlq", "purge", dead).code == 2
    assert document("dlq", "purge", dead, "--yes")["ids"] == [dead]
    assert awa("dlq", "purge", failed, "--yes").code == 3


# Queues


@case
def queue_list() -> None:
    in_state("available")
    in_state("dead")
    operations.pause("q", "ann")
    (found,) = document("queue", "list")
    assert (found["queue"], found["counts"]["available"], found["counts"]["dead"]) == ("q", 1, 1)
    assert (found["paused"], found["paused_by"], found["queued"]) == (True, "ann", 1)
    # By the clock, and not by that of the test's transaction, so a moment may have passed.
    assert re.search(r"paused by ann (now|\d+ s ago)", awa("queue", "list").out)


@case
def queue_stats() -> None:
    in_state("available")
    in_state("completed")
    found = document("queue", "stats", "--exact")
    assert (found["q"]["available"], found["q"]["completed"], found["q"]["exact"]) == (1, 1, True)
    assert "avail." in awa("queue", "stats").out
    said = awa("queue", "stats", "none")
    assert (said.code, said.err) == (3, "queue none has no jobs and no history\n")


@case
def queue_pause() -> None:
    assert document("queue", "pause", "q", "r", "--by", "ann") == {"paused": ["q", "r"], "by": "ann"}
    assert {queue.queue: queue.paused_by for queue in operations.queue_overview()} == {"q": "ann", "r": "ann"}
    assert awa("queue", "pause", "x" * 60).code == 2


@case
def queue_resume() -> None:
    operations.pause("q")
    assert document("queue", "resume", "q", "r") == {"resumed": ["q"], "not_paused": ["r"]}
    assert awa("queue", "resume", "q").out == "queue q was not paused.\n"


@case
def queue_drain() -> None:
    ids = [in_state(each) for each in ("available", "scheduled", "running", "waiting_external")]
    assert awa("queue", "drain", "q").code == 2
    assert document("queue", "drain", "q", "--yes") == {"queue": "q", "cancelled": 3}
    assert [state(job_id) for job_id in ids] == ["cancelled", "cancelled", "running", "cancelled"]


@case
def queue_shards() -> None:
    assert document("queue", "shards", "q", 4) == {"queue": "q", "shards": 4}
    assert operations.queue_overview()[0].enqueue_shards == 4
    assert awa("queue", "shards", "q", 65).code == 2


# Schedules


@case
def cron_list() -> None:
    scheduled_by_cron()
    scheduled_by_cron("broken", "never")
    broken, nightly = document("cron", "list")
    assert nightly["next_fire_at"].endswith("03:00:00Z")
    assert nightly["args"] == {"token": "••••••", "day": 1}
    assert broken["next_fire_at"] is None
    assert broken["fault"]
    said = awa("cron", "list").out
    assert "nightly" in said
    assert "never:" in said


@case
def cron_next() -> None:
    scheduled_by_cron()
    assert len(document("cron", "next", "nightly", "--count", 3)["fires"]) == 3
    assert awa("cron", "next", "nothing").code == 3


@case
def cron_pause() -> None:
    scheduled_by_cron()
    document("cron", "pause", "nightly", "--by", "ann")
    assert periodic.schedules()[0].paused_by == "ann"
    assert "paused by ann" in awa("cron", "list").out


@case
def cron_resume() -> None:
    scheduled_by_cron()
    periodic.pause("nightly")
    document("cron", "resume", "nightly")
    assert not periodic.schedules()[0].is_paused
    assert awa("cron", "resume", "nothing").code == 3


@case
def cron_trigger() -> None:
    scheduled_by_cron()
    job_id = document("cron", "trigger", "nightly")["id"]
    assert operations.load_job(job_id).job.metadata["triggered_manually"] is True


@case
def cron_delete() -> None:
    scheduled_by_cron()
    assert awa("cron", "delete", "nightly").code == 2
    assert document("cron", "delete", "nightly", "--yes") == {"name": "nightly", "deleted": True}
    assert awa("cron", "remove", "nightly", "--yes").code == 3


# Callbacks


@case
def callback_list() -> None:
    ids = [waiting()[0] for _ in range(3)]
    page = document("callback", "list", "--limit", 2)
    rest = document("callback", "list", "--after", page["next"])
    assert [job["id"] for job in page["jobs"] + rest["jobs"]] == ids
    assert page["jobs"][0]["overdue"] is False
    assert "in 59 min" in awa("callback", "list").out
    assert awa("callback", "list", "--queue", "none").out == "No job waits for a callback.\n"


@case
def callback_complete() -> None:
    job_id, callback = waiting()
    found = document("callback", "complete", callback, "--payload", '{"paid": true}')
    assert found == {"callback_id": callback, "id": job_id, "state": "completed"}
    assert awa("callback", "complete", callback).code == 3
    assert awa("callback", "complete", "nonsense").code == 2


@case
def callback_fail() -> None:
    job_id, callback = waiting()
    assert document("callback", "fail", callback, "--error", "declined")["state"] == "failed"
    assert operations.load_job(job_id).job.errors[0]["error"] == "declined"


@case
def callback_retry() -> None:
    job_id, callback = waiting()
    assert awa("callback", "retry", callback, "--run-lease", 99).code == 3
    assert document("callback", "retry", callback)["state"] == "available"
    assert state(job_id) == "available"


@case
def callback_resume() -> None:
    job_id, callback = waiting()
    assert awa("callback", "resume", callback, "--payload", "{").code == 2
    assert document("callback", "resume", callback, "--payload", "[1]")["state"] == "running"
    assert operations.load_job(job_id).job.metadata["_awa_callback_result"] == [1]


@case
def callback_resolve() -> None:
    _, callback = waiting()
    ignored = document("callback", "resolve", callback, "--payload", "{}")
    assert (ignored["outcome"], ignored["state"]) == ("ignored", "waiting_external")
    done = document("callback", "resolve", callback, "--payload", '{"token": "t"}', "--default", "complete")
    assert (done["outcome"], done["payload"]) == ("completed", {"token": "••••••"})


@case
def callback_heartbeat() -> None:
    job_id, callback = waiting()
    assert document("callback", "heartbeat", callback, "--timeout", "2h")["timeout_seconds"] == 7200
    until = operations.load_job(job_id).job.callback_timeout_at
    assert until is not None
    assert timedelta(minutes=119) < until - datetime.now(UTC) <= timedelta(hours=2)


@case
def callback_sign() -> None:
    callback = str(uuid.uuid4())
    assert awa("callback", "sign", callback).code == 2
    with override_settings(AWA={"CALLBACK_SECRETS": ["07" * 32, "08" * 32]}):
        found = document("callback", "sign", callback)
        assert found["signature"] == sign(callback, bytes([7]) * 32)
        assert awa("callback", "sign", callback).out.strip() == found["signature"]


@case
def callback_url() -> None:
    callback = str(uuid.uuid4())
    found = document("callback", "url", callback, "fail", "--base", "https://shop.example/", "--prefix", "cb")
    assert found["url"] == f"https://shop.example/cb/{callback}/fail"


# Batch operations


@case
def batch_list() -> None:
    operation = operations.submit_batch(MoveQueue("slow"), JobFilter(queue="q"), submitted_by="ann")
    (found,) = document("batch", "list")
    assert (found["id"], found["state"], found["submitted_by"]) == (str(operation.id), "pending", "ann")
    assert document("batch", "list", "--state", "completed") == []
    assert str(operation.id) in awa("batch-ops", "list").out


@case
def batch_get() -> None:
    operation = operations.submit_batch(operations.Cancel(), JobFilter(queue="q"))
    found = document("batch", "get", operation.id)
    assert (found["op_kind"], found["problems"]) == ("cancel", {"skipped": {}, "jobs": []})
    assert "state       pending" in awa("batch", "get", operation.id).out
    assert awa("batch", "get", uuid.uuid4()).code == 3


@case
def batch_preview() -> None:
    ids = sorted(in_state("available") for _ in range(2))
    found = document("batch", "preview", "cancel", "--queue", "q")
    assert (found["total_matched"], found["sample"]) == (2, ids)
    theirs = document(
        "batch",
        "preview",
        "--op-kind",
        "set_priority",
        "--spec",
        '{"priority": 1}',
        "--filter",
        '{"kind": "k"}',
    )
    assert theirs["total_matched"] == 2
    assert awa("batch", "preview", "cancel").code == 2
    assert awa("batch", "preview", "--queue", "q").code == 2
    assert awa("batch", "preview", "set-priority", "--queue", "q").code == 2
    assert awa("batch", "preview", "cancel", "--to", "slow", "--queue", "q").code == 2
    assert awa("batch", "preview", "--op-kind", "move_queue", "--spec", "{}", "--queue", "q").code == 2


@case
def batch_submit() -> None:
    in_state("available")
    assert awa("batch", "submit", "cancel", "--queue", "q").code == 2
    asked = awa("batch", "submit", "cancel", "--queue", "q", typed="yes\n")
    assert "This will cancel jobs: all jobs with queue q (1 match). Go on? [y/N]" in asked.err
    found = document("batch", "submit", "move-queue", "--to", "slow", "--id", 7, "--by", "ann", "--yes")
    assert (found["spec"]["queue"], found["filter"]["ids"], found["submitted_by"]) == ("slow", [7], "ann")
    theirs = document(
        "batch-ops", "submit", "--op-kind", "set_priority", "--spec", '{"priority": 1}', "--all", "--yes"
    )
    assert theirs["spec"] == {"op_kind": "set_priority", "priority": 1}
    assert len(operations.batch_operations()) == 3


@case
def batch_cancel() -> None:
    operation = operations.submit_batch(MoveQueue("slow"), JobFilter(queue="q"))
    assert document("batch", "cancel", operation.id)["state"] == "cancelling"
    assert awa("batch", "cancel", operation.id).code == 3


@case
def batch_purge() -> None:
    operation = operations.submit_batch(operations.Cancel(), JobFilter(queue="q"))
    operations.cancel_batch(operation.id)
    assert awa("batch", "purge", "--before", "1h").code == 2
    assert document("batch", "purge", "--before", "1h", "--yes") == {"purged": 0}
    later = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    assert document("batch", "purge", "--before", later, "--yes") == {"purged": 1}


# Storage


@case
def storage_status() -> None:
    found = document("storage", "status")
    assert (found["state"], found["next_step"], found["blockers"]) == ("active", None, [])
    assert "The move is complete" in awa("storage", "status").out
    stored.use_canonical()
    found = document("storage", "status")
    assert (found["state"], found["next_step"]) == ("canonical", "prepare")
    assert "Next: manage.py awa storage prepare" in awa("storage", "status").out


@case
def storage_prepare() -> None:
    said = awa("storage", "prepare")
    assert said.code == 3
    assert said.err == "cannot prepare: queue storage is in force already; there is nothing to prepare"
    stored.use_canonical()
    assert document("storage", "prepare")["state"] == "prepared"
    assert "Before `storage enter-mixed`:" in awa("storage", "prepare").out


def _prepared() -> None:
    stored.use_canonical()
    document("storage", "prepare")
    runtime(role="queue_storage_target")


@case
def storage_enter_mixed() -> None:
    _prepared()
    found = document("storage", "enter-mixed")
    assert (found["state"], found["next_step"]) == ("mixed_transition", "finalize")


@case
def storage_finalize() -> None:
    _prepared()
    document("storage", "enter-mixed")
    assert awa("storage", "finalize").code == 2
    assert awa("storage", "finalize", "--check").code == 0
    canonical()
    said = awa("storage", "finalize", "--check")
    assert (said.code, "Before `storage finalize`" in said.out) == (3, True)
    assert awa("storage", "finalize", "--yes", "--wait", "0s").code == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", lambda seconds: stored.run("DELETE FROM awa.jobs_hot"))
        said = awa("storage", "finalize", "--yes", "--wait")
    assert (said.code, said.err.startswith("waiting: ")) == (0, True)
    assert "mixed_transition -> active" in said.out


@case
def storage_abort() -> None:
    _prepared()
    assert document("storage", "abort", "--yes")["state"] == "canonical"
    assert "still canonical" in awa("storage", "abort", "--yes").out


CASES["storage enter-mixed"] = CASES.pop("storage enter mixed")


# Changes in the background


def test_a_change_can_be_left_to_the_leader_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = in_state("available")
    found = document("job", "cancel", job_id, "--batch", "--by", "ann")
    assert (found["op_kind"], found["filter"]["ids"], found["submitted_by"]) == ("cancel", [job_id], "ann")
    assert state(job_id) == "available"
    assert "see `manage.py awa batch get" in awa("job", "cancel", job_id, "--batch").out

    steps = iter(
        [
            {"state": BatchState.SCANNING},
            {"state": BatchState.RUNNING, "total_matched": 4, "processed": 1},
            {
                "state": BatchState.COMPLETED, "total_matched": 4, "processed": 2, "skipped": 1, "errored": 1,
                "last_error": "job_id=7: no",
            },
        ]
    )  # fmt: skip

    def look(operation_id: uuid.UUID, **options: Any) -> operations.BatchOperation:
        (operation,) = [each for each in operations.batch_operations() if each.id == operation_id]
        return replace(operation, **next(steps))

    monkeypatch.setattr(operations, "batch_operation", look)
    monkeypatch.setattr("awa_django.console.verbs.changing._LOOK", 0)
    said = awa("job", "retry", "--kind", "k", "--batch", "--wait", "--yes")
    assert said.err.splitlines() == ["collecting jobs", "1 of 4 jobs", "4 of 4 jobs"]
    assert "completed: 2 changed, 1 skipped, 1 with an error" in said.out
    assert "last error: job_id=7: no" in said.out
    assert said.code == 3


def test_waiting_needs_something_to_wait_for() -> None:
    said = awa("job", "cancel", 1, "--wait")
    assert (said.code, "--batch" in said.err) == (2, True)


def test_many_skipped_jobs_are_summed_up_by_reason() -> None:
    said = awa("job", "cancel", *range(9000, 9014))
    assert said.out.count("there is no such job") == 10
    assert "not changed: 4 more, missing" in said.out


def test_a_storage_step_that_is_not_due_says_what_stands_in_the_way() -> None:
    stored.use_canonical()
    document("storage", "prepare")
    said = awa("storage", "enter-mixed")
    assert said.code == 3
    assert "no live worker has the role queue_storage_target" in said.err


def runtime(
    *,
    hostname: str = "host",
    silent: str = "0",
    queues: list[dict[str, Any]] | None = None,
    kinds: list[str] | None = None,
    **columns: Any,
) -> uuid.UUID:
    """A worker process that reported so long ago."""
    values: dict[str, Any] = {
        "leader": False, "healthy": True, "shutting_down": False, "role": "auto", "capability": "queue_storage",
        "version": "0.6.9+awa-django.0.1.0", "global_max_workers": None, **columns,
    }  # fmt: skip
    instance_id = uuid.uuid4()
    stored.run(
        """
        INSERT INTO awa.runtime_instances (
            instance_id, hostname, pid, version, started_at, last_seen_at, snapshot_interval_ms, healthy,
            postgres_connected, poll_loop_alive, heartbeat_alive, maintenance_alive, shutting_down, leader,
            global_max_workers, queues, job_kind_descriptor_hashes, storage_capability, transition_role
        ) VALUES (
            %s, %s, 7, %s, now() - interval '1 day', now() - %s::interval, 10000, %s, true, %s, true, true, %s, %s,
            %s, %s, %s, %s, %s
        )
        """,
        instance_id, hostname, values["version"], silent, values["healthy"], values["healthy"],
        values["shutting_down"], values["leader"], values["global_max_workers"], json.dumps(queues or []),
        json.dumps(dict.fromkeys(kinds or [], "x")), values["capability"], values["role"],
    )  # fmt: skip
    return instance_id
