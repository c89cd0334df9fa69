"""What the real ``awa serve`` shows of a database on which our desk and workers of both makes work, and what it changes
there, is what our reads say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections

from awa_django import operations, periodic, storage
from awa_django.errors import JobNotFound
from awa_django.operations import Counts, JobFilter, Redrive, SetPriority
from awa_django.states import JobState
from tests.interop.test_console import ALIAS, LASTING, Both, alike, both, queue, unblocked
from tests.interop.test_ingress import receiver, send
from tests.interop.test_mixed_fleet import awa_pg_worker
from tests.workers import count, insert, wait_until, worker

__all__ = ["both", "queue", "unblocked"]

pytestmark = [pytest.mark.interop, pytest.mark.worker, pytest.mark.usefixtures("unblocked")]

JSON = {"Content-Type": "application/json"}
#: Jobs that the two workers run between them.
RAN = 8


class Served:
    """A database on which two workers have worked, and the interface of ``awa serve`` to it."""

    def __init__(self, both: Both, port: int) -> None:
        self.both = both
        self.port = port

    def ask(self, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        """Status and document of an answer."""
        body = b"" if document is None else json.dumps(document).encode()
        status, content = send(self.port, f"/api/{path}", body, JSON if body else {}, method)
        return status, json.loads(content)

    def get(self, path: str) -> Any:
        """The document of an answer that has one."""
        status, found = self.ask("GET", path)
        assert status == 200, (path, found)
        return found

    def post(self, path: str, document: Any = None, method: str = "POST") -> Any:
        """The document that a change is answered with."""
        status, found = self.ask(method, path, document)
        assert status == 200, (path, found)
        return found


def led_by_ours() -> bool:
    return any(
        each.leader and "awa-django" in each.version
        for each in operations.runtime_overview(using=ALIAS).instances
    )


@pytest.fixture(scope="module")
def served(both: Both, django_db_blocker: Any) -> Iterator[Served]:
    connection = both.world.connection
    with (
        django_db_blocker.unblock(),
        worker(both.url, "--queue", "default:3", "--queue", "ours:2", STALE_AFTER=600),
    ):
        # Ours first, so that it leads and keeps what has finished.
        wait_until(led_by_ours, what="our worker to lead")
        with awa_pg_worker(both.url, 2):
            ids = [insert(connection, "noop", {"n": n}) for n in range(RAN)]
            wait_until(
                lambda: (
                    count(
                        connection,
                        "SELECT count(*) FROM awa.terminal_jobs WHERE job_id = ANY (%s) AND state = 'completed'",
                        ids,
                    )
                    == RAN
                ),
                what="the outcomes of jobs that both run",
            )
            for number, state in enumerate(LASTING):
                both.add(state, f"held_{number % 2}", tags=("red", state), kind=f"kept_{number % 3}")
            both.add("running", "held_0", kind="kept_0", tags=("red",))
            operations.pause("held_1", "ann", using=ALIAS)
            both.world.run(
                "INSERT INTO awa.cron_jobs (name, cron_expr, timezone, kind, queue, args, tags, metadata)"
                " VALUES ('nightly', '0 3 * * *', 'Pacific/Auckland', 'report', 'held_1', '{\"n\": 1}', '{a,b}', '{}'),"
                " ('hourly', '0 * * * *', 'UTC', 'report', 'held_1', '{}', '{}', '{\"m\": 2}')"
            )
            periodic.pause("hourly", "bob", using=ALIAS)
            with receiver(both.url, "serve", "--cache-ttl", "0") as port:
                wait_until(
                    lambda: operations.runtime_overview(using=ALIAS).live == 2, what="two live workers"
                )
                yield Served(both, port)
            connections[ALIAS].close()


def jobs(**filters: Any) -> dict[int, Any]:
    page = operations.list_jobs(JobFilter(**filters), limit=200, using=ALIAS)
    assert page.next is None
    return {record.job.id: record for record in page.jobs}


def dump(job_id: int) -> Any:
    return alike(operations.dump_job(job_id, redacted=False, using=ALIAS))


def without_receipts(found: dict[int, Any]) -> set[int]:
    """Jobs that the real client lists: those that run on nothing but a receipt are missing there (D6)."""
    return {job_id for job_id, record in found.items() if record.job.state is not JobState.RUNNING}


def test_the_same_jobs_are_listed_with_the_same_members(served: Served) -> None:
    theirs = {found["id"]: found for found in served.get("jobs?limit=1000")}
    assert len(theirs) >= len(LASTING) + RAN
    assert theirs.keys() == without_receipts(jobs())
    for job_id, found in theirs.items():
        mine = dump(job_id)
        assert alike({name: found[name] for name in mine["job"]}) == mine["job"]
        assert found["original_priority"] == mine["summary"]["original_priority"]
        alone = served.get(f"jobs/{job_id}")
        assert alike({name: alone[name] for name in mine["job"]}) == mine["job"]
        assert alike(alone.get("dlq")) == mine.get("dlq")


@pytest.mark.parametrize(
    "filters",
    [*({"state": state.value} for state in JobState), {"kind": "kept_0"}, {"queue": "held_1"}, {"tag": "red"},
     {"queue": "held_0", "tag": "available"}],
    ids=str,
)  # fmt: skip
def test_each_filter_finds_the_same_jobs(served: Served, filters: dict[str, str]) -> None:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    theirs = [found["id"] for found in served.get(f"jobs?limit=1000&{query}")]
    assert theirs == sorted(without_receipts(jobs(**filters)), reverse=True)
    assert theirs or filters["state"] in ("running", "waiting_external")
    assert served.get(f"jobs?limit=2&{query}") == served.get(f"jobs?limit=1000&{query}")[:2]


def queued(counts: Counts) -> dict[str, int]:
    """What the real client says of a queue; jobs that run on a receipt are missing there (D6)."""
    names = ("scheduled", "available", "retryable", "waiting_external")
    found = {name: getattr(counts, name) for name in names}
    return found | {"failed": counts.failed + counts.dead, "total_queued": sum(found.values())}


def test_counts_are_the_same(served: Served) -> None:
    counts = operations.state_counts(using=ALIAS)
    found = served.get("stats")
    mine = queued(counts) | {"completed": counts.completed, "cancelled": counts.cancelled}
    assert {name: found[name] for name in mine if name in found} == {
        name: number for name, number in mine.items() if name in found
    }
    assert counts.running - found["running"] == 1
    assert min(counts.available, counts.completed, counts.failed, counts.dead, counts.retryable) > 0
    minutes: Counter[tuple[datetime, str]] = Counter()
    for record in jobs().values():
        if record.job.state is not JobState.RUNNING:
            minutes[record.job.created_at.replace(second=0, microsecond=0), record.job.state.value] += 1
    since = served.get("stats/timeseries?minutes=60")
    assert {
        (datetime.fromisoformat(each["bucket"]), each["state"]): each["count"] for each in since
    } == minutes
    ran = operations.activity(60, queue="default", using=ALIAS).minutes
    assert sum(minute.enqueued for minute in ran) == sum(minute.completed for minute in ran) == RAN


def test_names_are_the_same(served: Served) -> None:
    assert set(served.get("stats/queues")) <= set(operations.known_queues(using=ALIAS))
    assert {"default", "held_0", "held_1"} <= set(served.get("stats/queues"))
    assert {"noop", "kept_0"} <= set(served.get("stats/kinds")) <= set(operations.known_kinds(using=ALIAS))


def test_queues_are_the_same(served: Served) -> None:
    theirs = {found["queue"]: found for found in served.get("queues")}
    ours = {found.queue: found for found in operations.queue_overview(exact=True, using=ALIAS)}
    assert {"default", "ours", "held_0", "held_1"} <= theirs.keys() == ours.keys()
    for name, found in theirs.items():
        mine = ours[name]
        figures = queued(mine.counts) | {
            "paused": mine.paused,
            "completed_last_hour": mine.completed_last_hour,
        }
        assert {key: found[key] for key in figures} == figures, name
        assert (found["lag_seconds"] is None) == (mine.lag_seconds is None), name
        if mine.lag_seconds is not None:
            assert abs(found["lag_seconds"] - mine.lag_seconds) < 30, name
        described(found, mine.descriptor)
        alone = served.get(f"queues/{name}")
        assert {key: alone[key] for key in figures} == figures
    assert served.ask("GET", "queues/nowhere")[0] == 404


def described(found: Any, mine: Any) -> None:
    """The members of a description agree."""
    names = ("display_name", "description", "owner", "docs_url")
    assert [found[name] for name in names] == [getattr(mine, name, None) for name in names]
    assert found["tags"] == list(mine.tags if mine else ())
    assert found["extra"] == dict(mine.extra if mine else {})
    assert (found["descriptor_stale"], found["descriptor_mismatch"]) == (
        (mine.stale, mine.mismatch) if mine else (False, False)
    )


def test_kinds_are_the_same(served: Served) -> None:
    ours = {found.kind: found for found in operations.kind_overview(using=ALIAS)}
    theirs = {found["kind"]: found for found in served.get("kinds")}
    assert {"noop", "kept_0", "kept_1", "kept_2"} <= theirs.keys() <= ours.keys()
    running = Counter(record.job.kind for record in jobs(state="running").values())
    for name, found in theirs.items():
        mine = ours[name]
        held = len(jobs(kind=name)) - running[name]
        assert found["job_count"] == held, name
        if name not in running:
            assert mine.waiting + (mine.finished or 0) == held, name
        assert found["completed_last_hour"] == mine.completed_last_hour, name
        described(found, mine.descriptor)


def test_schedules_are_the_same(served: Served) -> None:
    theirs = served.get("cron")
    ours = [periodic_members(each) for each in periodic.schedules(using=ALIAS)]
    assert [found["name"] for found in theirs] == ["hourly", "nightly"]
    assert alike([{name: found[name] for name in ours[0]} for found in theirs]) == alike(ours)


def periodic_members(found: periodic.ScheduleStatus) -> dict[str, Any]:
    names = (
        "name", "cron_expr", "timezone", "kind", "queue", "args", "priority", "max_attempts", "metadata",
        "missed_fire_policy", "last_enqueued_at", "created_at", "updated_at", "paused_at", "paused_by", "next_fire_at",
    )  # fmt: skip
    return {name: getattr(found, name) for name in names} | {"tags": list(found.tags)}


def test_dead_letters_are_the_same(served: Served) -> None:
    theirs = served.get("dlq")
    ours = operations.dead_letters(using=ALIAS)
    assert [found["id"] for found in theirs] == [record.job.id for record in ours] != []
    for found in theirs:
        letter = dump(found["id"])["dlq"]
        renamed = {"reason": "dlq_reason"}
        assert alike({name: found[renamed.get(name, name)] for name in letter}) == letter
        assert served.get(f"dlq/{found['id']}")["id"] == found["id"]
    depth = served.get("dlq/depth")
    counts = operations.queue_counts(using=ALIAS)
    assert depth["total"] == len(ours)
    assert {each["queue"]: each["count"] for each in depth["by_queue"]} == {
        name: found.dead for name, found in counts.items() if found.dead
    }


def test_workers_are_the_same(served: Served) -> None:
    found, mine = served.get("runtime"), operations.runtime_overview(using=ALIAS)
    assert (mine.total, mine.live, mine.leaders) == (2, 2, 1)
    totals = ("total", "live", "stale", "healthy")
    assert [found[f"{name}_instances"] for name in totals] == [getattr(mine, name) for name in totals]
    assert found["leader_instances"] == mine.leaders
    theirs = {each["instance_id"]: each for each in found["instances"]}
    names = (
        "hostname", "pid", "version", "storage_capability", "transition_role", "stale", "healthy",
        "postgres_connected", "poll_loop_alive", "heartbeat_alive", "maintenance_alive", "shutting_down", "leader",
        "global_max_workers",
    )  # fmt: skip
    assert theirs.keys() == {str(each.instance_id) for each in mine.instances}
    for each in mine.instances:
        other = theirs[str(each.instance_id)]
        assert [other[name] for name in names] == [getattr(each, name) for name in names]
        assert timedelta(milliseconds=other["snapshot_interval_ms"]) == each.snapshot_interval
        assert {one["queue"]: one["config"] for one in other["queues"]} == {
            one.queue: dict(one.config) for one in each.queues
        }
    queues = {each.queue: each for each in mine.queues}
    for other in served.get("queues/runtime"):
        one = queues.pop(other["queue"])
        assert (other["instance_count"], other["live_instances"], other["config_mismatch"]) == (
            one.instances, one.live, one.config_mismatch,
        )  # fmt: skip
    assert queues == {}


def test_the_storage_is_the_same(served: Served) -> None:
    found, mine = served.get("storage"), storage.status(using=ALIAS)
    assert (found["state"], found["current_engine"], found["active_engine"], found["prepared_engine"]) == (
        mine.state, mine.current_engine, mine.active_engine, mine.prepared_engine,
    )  # fmt: skip
    assert (found["transition_epoch"], found["canonical_live_backlog"]) == (mine.epoch, mine.backlog)
    live = {name: number for name, number in mine.runtimes.items() if number}
    assert found["live_runtime_capability_counts"] == live == {"queue_storage": 2}
    assert served.get("capabilities")["read_only"] is False


def test_batch_operations_are_the_same(served: Served, queue: str) -> None:
    ids = [served.both.add("available", queue) for _ in range(3)]
    asked = {
        "op_kind": "set_priority", "spec": {"priority": 3}, "filter": {"queue": queue}, "submitted_by": "them",
    }  # fmt: skip
    seen = served.post("batch-ops/preview", asked)
    mine = operations.preview_batch(SetPriority(3), JobFilter(queue=queue), using=ALIAS)
    assert (seen["total_matched"], [each["id"] for each in seen["sample"]]) == (3, ids)
    assert (mine.total_matched, list(mine.sample)) == (3, ids)
    theirs = served.post("batch-ops", asked)["id"]
    ours = str(
        operations.submit_batch(SetPriority(4), JobFilter(queue=queue), submitted_by="us", using=ALIAS).id
    )

    def done() -> bool:
        return all(served.get(f"batch-ops/{each}")["state"] == "completed" for each in (theirs, ours))

    wait_until(done, what="our leader to run both")
    assert {served.get(f"jobs/{job_id}")["priority"] for job_id in ids} == {4}
    assert [served.get(f"jobs/{job_id}")["original_priority"] for job_id in ids] == [2, 2, 2]
    for each in (theirs, ours):
        found, own = served.get(f"batch-ops/{each}"), operations.batch_operation(each, using=ALIAS)
        for name in ("processed", "skipped", "errored", "total_matched", "last_error", "submitted_by"):
            assert found[name] == getattr(own, name), name
        assert found["processed"] == 3
    listed = [found["id"] for found in served.get("batch-ops?state=completed")]
    assert listed == [
        str(each.id) for each in operations.batch_operations(state="completed", using=ALIAS)
    ] == [ours, theirs]  # fmt: skip
    assert served.ask("PATCH", f"batch-ops/{ours}", {"state": "cancelling"})[0] == 400
    # Operations that no other client knows are in a table of ours alone.
    operations.submit_batch(Redrive(), JobFilter(queue=queue), using=ALIAS)
    assert len(served.get("batch-ops")) == 2


def test_what_it_changes_is_what_we_see(served: Served, queue: str) -> None:
    def state(job_id: int) -> str:
        record = operations.load_job(job_id, using=ALIAS)
        return "dead" if record.dead_letter else record.job.state.value

    add = served.both.add
    one, two, three = (add(each, queue) for each in ("failed", "cancelled", "running"))
    assert served.post(f"jobs/{one}/retry")["state"] == state(one) == "available"
    assert served.ask("POST", f"jobs/{one}/retry")[0] == 404
    assert [found["id"] for found in served.post("jobs/bulk-retry", {"ids": [two, two, three, 10**12]})] == [
        two
    ]
    assert (state(two), state(three)) == ("available", "running")
    assert served.post(f"jobs/{one}/cancel")["state"] == state(one) == "cancelled"
    assert {found["id"] for found in served.post("jobs/bulk-cancel", {"ids": [one, two, three]})} == {
        two,
        three,
    }
    assert (state(two), state(three)) == ("cancelled", "cancelled")

    add("available", queue)
    served.post(f"queues/{queue}/pause", {"paused_by": "cy"})
    (found,) = (each for each in operations.queue_overview(using=ALIAS) if each.queue == queue)
    assert (found.paused, found.paused_by) == (True, "cy")
    served.post(f"queues/{queue}/resume")
    (found,) = (each for each in operations.queue_overview(using=ALIAS) if each.queue == queue)
    assert (found.paused, found.paused_by) == (False, "cy")
    assert served.post(f"queues/{queue}/drain") == {"drained": 1}
    assert operations.drain(queue, using=ALIAS) == 0

    first, second, failed = add("dead", queue), add("dead", queue), add("failed", queue)
    assert served.post("dlq/bulk-move", {"queue": queue, "reason": "by hand"}) == {"count": 1}
    assert (state(failed), dump(failed)["dlq"]["reason"]) == ("dead", "by hand")
    assert served.post(f"dlq/{first}/retry", {})["id"] == first
    assert state(first) == "available"
    assert served.post(f"dlq/{second}", method="DELETE") == {"count": 1}
    with pytest.raises(JobNotFound):
        operations.load_job(second, using=ALIAS)
    assert served.post("dlq/bulk-retry", {"queue": queue}) == {"count": 1}
    assert state(failed) == "available"
    add("dead", queue)
    assert served.post("dlq/bulk-purge", {"queue": queue}) == {"count": 1}
    assert served.ask("POST", "dlq/bulk-purge", {})[0] == 400
    assert served.get(f"dlq?queue={queue}") == []

    served.post("cron/nightly/pause", {"paused_by": "cy"})
    made = served.post("cron/nightly/trigger")
    (schedule,) = (each for each in periodic.schedules(using=ALIAS) if each.name == "nightly")
    assert schedule.paused_by == "cy"
    mine = operations.load_job(periodic.trigger("nightly", using=ALIAS), using=ALIAS).job
    theirs = operations.load_job(made["id"], using=ALIAS).job
    for name in ("kind", "queue", "args", "priority", "max_attempts", "tags", "metadata", "state"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert mine.metadata["triggered_manually"] is True
    served.post("cron/nightly/resume")
    (schedule,) = (each for each in periodic.schedules(using=ALIAS) if each.name == "nightly")
    assert (schedule.paused_at, schedule.paused_by) == (None, None)
