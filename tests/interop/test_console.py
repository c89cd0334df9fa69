"""Every verb that both command lines have, on one database: they see the same and do the same."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connections

from awa_django.jobs import JobInsert
from awa_django.outcomes import Completed, Failed, Outcome, Terminal
from awa_django.planes.base import Cursor
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.transitions import plan
from tests import databases
from tests.console.calling import awa
from tests.planes.world import World
from tests.settings import database

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("unblocked")]

ALIAS = "both"
LASTING = ("available", "scheduled", "retryable", "completed", "failed", "cancelled", "dead")


class Both:
    """One database and the two command lines; a queue of its own for each test."""

    def __init__(self, url: str, connection: psycopg.Connection[Any]) -> None:
        self.url = url
        self.world = World(connection, QueueStoragePlane())

    def ours(self, *words: object) -> Any:
        """The document of our command line."""
        said = awa(*words, "--json", "--database", ALIAS)
        assert said.code == 0, said
        return said.json

    def refused(self, *words: object) -> int:
        """The exit code of our command line where it does not do everything."""
        code = awa(*words, "--database", ALIAS).code
        assert code
        return code

    def theirs(self, *words: object) -> str:
        """What the real command line prints."""
        return databases.awa_cli(self.url, *map(str, words)).stdout

    def they_refuse(self, *words: object) -> bool:
        return databases.awa_cli(self.url, *map(str, words), check=False).returncode != 0

    def add(self, state: str, queue: str, **fields: Any) -> int:
        """The id of a new job in this state."""
        job = JobInsert(
            **{"kind": f"kind_{queue}", "args": {"n": 1}, "queue": queue, "priority": 1, **fields}
        )
        if state in ("available", "scheduled"):
            due = "now()" if state == "available" else "'2999-01-01'"
            return int(
                self.world.one(
                    f"SELECT id FROM awa.insert_job_compat(%s, %s, %s, %s, 2::smallint, p_run_at => {due},"
                    " p_tags => %s)",
                    job.kind, queue, json.dumps(job.args), state, list(job.tags),
                )
            )  # fmt: skip
        (attempt,) = self.world.running(job, deadline=timedelta(minutes=5))
        outcomes: dict[str, Outcome] = {
            "completed": Completed(), "retryable": Failed("again"), "failed": Terminal("gone"),
            "dead": Terminal("gone"),
        }  # fmt: skip
        if state == "cancelled":
            self.ours("job", "cancel", attempt.job_id)
        elif state != "running":
            ended = plan(attempt, outcomes[state], dead_letters=state == "dead")

            def settle(cursor: Cursor) -> None:
                QueueStoragePlane().settle(cursor, [ended])
                # Before anybody sees it, or a leader might promote it.
                cursor.execute(
                    "UPDATE awa.deferred_jobs SET run_at = '2999-01-01' WHERE job_id = %s", [attempt.job_id]
                )

            self.world.within(settle)
        return attempt.job_id

    def dump(self, job_id: int) -> Any:
        """What the real command line says of a job."""
        return json.loads(self.theirs("job", "dump", job_id))

    def state(self, job_id: int) -> str:
        return str(self.dump(job_id)["job"]["state"])


@pytest.fixture
def unblocked(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


@pytest.fixture(scope="module")
def both(server_url: str, awa_template: str, django_db_blocker: Any) -> Iterator[Both]:
    with (
        databases.scratch(server_url, "console", template=awa_template) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        entry = connections.configure_settings({"default": {}, ALIAS: database(url)})[ALIAS]
        connections.databases[ALIAS] = entry
        yield Both(url, connection)
        with django_db_blocker.unblock():
            connections[ALIAS].close()
        del connections[ALIAS]
        del connections.databases[ALIAS]


@pytest.fixture
def queue() -> str:
    return f"q_{uuid.uuid4().hex[:8]}"


def listed(text: str) -> set[int]:
    """The ids that the lines of a table begin with; what follows an empty line is no table."""
    return {int(found) for found in re.findall(r"^(\d+)\s", text.partition("\n\n")[0], re.MULTILINE)}


_TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)")


def alike(value: Any) -> Any:
    """A document without what the two spell differently: times, and empty lists for none."""
    match value:
        case dict():
            return {key: alike(item) for key, item in value.items()}
        case list():
            return [alike(item) for item in value] or None
        case str() if _TIMES.fullmatch(value):
            return datetime.fromisoformat(value)
    return value


def test_lists_and_counts_agree(both: Both, queue: str) -> None:
    ids = {state: both.add(state, queue, tags=("t",)) for state in (*LASTING, "running")}
    for state in ("available", "scheduled", "retryable", "completed", "failed", "cancelled", "running"):
        ours = both.ours("job", "list", "--queue", queue, "--state", state)["jobs"]
        theirs = listed(both.theirs("job", "list", "--queue", queue, "--state", state))
        # Running jobs that hold nothing but a receipt are missing there (D6).
        assert {job["id"] for job in ours} == theirs | ({ids["running"]} if state == "running" else set())
        assert ids[state] in {job["id"] for job in ours}
    by_kind = listed(both.theirs("job", "list", "--kind", f"kind_{queue}", "--limit", 50))
    assert {job["id"] for job in both.ours("job", "list", "--kind", f"kind_{queue}")["jobs"]} == (
        by_kind | {ids["running"]}
    )
    (line,) = (line for line in both.theirs("queue", "stats").splitlines() if line.startswith(queue))
    available, _, failed = (int(word) for word in line.split()[1:4])
    figures = both.ours("queue", "stats", queue, "--exact")[queue]
    assert (figures["available"], figures["failed"] + figures["dead"]) == (available, failed) == (1, 2)


@pytest.mark.parametrize("state", LASTING)
def test_dumps_agree_member_by_member(both: Both, queue: str, state: str) -> None:
    job_id = both.add(state, queue)
    mine, other = alike(both.ours("job", "dump", job_id)), alike(both.dump(job_id))
    # Of the timeline the contract fixes what is in it, not the labels.
    told, they_tell = mine.pop("timeline"), other.pop("timeline")
    assert mine == other
    assert {entry["timestamp"] for entry in told} == {entry["timestamp"] for entry in they_tell}
    assert [entry["detail"] for entry in told if entry["is_error"]] == [
        entry["detail"] for entry in they_tell if entry["is_error"]
    ]
    if state != "available" and state != "scheduled":
        ours = both.ours("job", "dump-run", job_id)
        assert alike(ours) == alike(json.loads(both.theirs("job", "dump-run", job_id)))


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("cancel", "available"), ("cancel", "scheduled"), ("cancel", "retryable"), ("cancel", "running"),
        ("retry", "failed"), ("retry", "cancelled"),
    ],
)  # fmt: skip
def test_a_change_leaves_the_same_job_whoever_makes_it(both: Both, queue: str, verb: str, state: str) -> None:
    mine, other = both.add(state, queue), both.add(state, queue)
    both.ours("job", verb, mine)
    both.theirs("job", verb, other)
    left, right = both.dump(mine)["job"], both.dump(other)["job"]
    for name in ("state", "attempt", "run_lease", "priority", "queue", "metadata", "tags", "progress"):
        assert left[name] == right[name], name
    assert [entry["error"] for entry in left["errors"] or ()] == [
        entry["error"] for entry in right["errors"] or ()
    ]


@pytest.mark.parametrize(
    ("verb", "state"), [("cancel", "completed"), ("retry", "available"), ("retry", "dead")]
)
def test_what_one_refuses_the_other_refuses(both: Both, queue: str, verb: str, state: str) -> None:
    job_id = both.add(state, queue)
    assert both.refused("job", verb, job_id) == 3
    assert both.they_refuse("job", verb, job_id)
    assert both.refused("job", verb, 10**12) == 3
    assert both.they_refuse("job", verb, 10**12)


def test_failures_are_retried_and_discarded_alike(both: Both, queue: str) -> None:
    mine = both.add("failed", queue)
    assert both.ours("job", "retry-failed", "--queue", queue, "--yes")["ids"] == [mine]
    other = f"{queue}b"
    theirs = both.add("failed", other)
    assert "Retried 1 failed" in both.theirs("job", "retry-failed", "--queue", other)
    assert both.state(mine) == both.state(theirs) == "available"

    for state in ("failed", "dead"):
        both.add(state, f"{queue}c", kind=f"mine_{queue}")
        both.add(state, f"{queue}c", kind=f"theirs_{queue}")
    assert both.ours("job", "discard", "--kind", f"mine_{queue}", "--yes")["changed"] == 2
    assert "Discarded 2 failed" in both.theirs("job", "discard", "--kind", f"theirs_{queue}")


def test_dead_letters_are_listed_counted_moved_redriven_and_purged_alike(both: Both, queue: str) -> None:
    ids = {both.add("dead", queue) for _ in range(3)}
    assert {job["id"] for job in both.ours("dlq", "list", "--queue", queue)["jobs"]} == ids
    assert listed(both.theirs("dlq", "list", "--queue", queue)) == ids
    assert both.ours("dlq", "depth", "--queue", queue)["total"] == 3
    assert re.search(r"\b3\b", both.theirs("dlq", "depth", "--queue", queue))

    first, second, third = sorted(ids)
    both.ours("dlq", "retry", first)
    both.theirs("dlq", "retry", second)
    left, right = both.dump(first)["job"], both.dump(second)["job"]
    for name in ("state", "attempt", "run_lease", "priority", "metadata", "progress"):
        assert left[name] == right[name], name
    assert both.refused("dlq", "retry", first) == 3
    assert "1" in both.theirs("dlq", "retry-bulk", "--queue", queue)
    assert both.state(third) == "available"

    mine, theirs = both.add("failed", f"{queue}a"), both.add("failed", f"{queue}b")
    both.ours("dlq", "move", "--queue", f"{queue}a", "--reason", "by hand", "--yes")
    both.theirs("dlq", "move", "--queue", f"{queue}b", "--reason", "by hand")
    assert both.dump(mine)["dlq"]["reason"] == both.dump(theirs)["dlq"]["reason"] == "by hand"

    for verb in ("move", "purge", "retry-bulk"):
        assert both.refused("dlq", verb, "--yes") == 2
        assert both.they_refuse("dlq", verb)
    assert both.ours("dlq", "purge", "--queue", f"{queue}a", "--yes")["ids"] == [mine]
    both.theirs("dlq", "purge", "--queue", f"{queue}b")
    assert both.ours("dlq", "depth", "--queue", f"{queue}b")["total"] == 0


def test_queues_are_paused_resumed_and_drained_alike(both: Both, queue: str) -> None:
    def paused() -> bool:
        (found,) = (item for item in both.ours("queue", "list") if item["queue"] == queue)
        return bool(found["paused"])

    def they_say_paused() -> bool:
        (line,) = (line for line in both.theirs("queue", "stats").splitlines() if line.startswith(queue))
        return line.split()[-1] == "yes"

    both.add("available", queue)
    both.ours("queue", "pause", queue)
    assert paused()
    assert they_say_paused()
    both.theirs("queue", "resume", queue)
    assert not paused()
    both.theirs("queue", "pause", queue)
    assert paused()
    both.ours("queue", "resume", queue)
    assert not they_say_paused()

    both.add("scheduled", queue)
    assert both.ours("queue", "drain", queue, "--yes")["cancelled"] == 2
    assert "Drained 0 jobs" in both.theirs("queue", "drain", queue)
    both.add("available", queue)
    assert "Drained 1 jobs" in both.theirs("queue", "drain", queue)
    assert both.ours("queue", "drain", queue, "--yes")["cancelled"] == 0


def test_schedules_are_listed_and_removed_alike(both: Both, queue: str) -> None:
    for name in ("mine", "theirs"):
        both.world.run(
            "INSERT INTO awa.cron_jobs (name, cron_expr, kind, queue) VALUES (%s, '0 3 * * *', 'report', %s)",
            f"{name}_{queue}",
            queue,
        )
    lines = [line.split() for line in both.theirs("cron", "list").splitlines()]
    their_names = {words[0] for words in lines if words and words[0].endswith(queue)}
    ours = {item["name"]: item["cron_expr"] for item in both.ours("cron", "list")}
    assert their_names == ours.keys() == {f"mine_{queue}", f"theirs_{queue}"}
    both.ours("cron", "delete", f"mine_{queue}", "--yes")
    both.theirs("cron", "remove", f"theirs_{queue}")
    assert both.ours("cron", "list") == []


def test_batch_operations_are_the_same_rows_for_both(both: Both, queue: str) -> None:
    both.add("available", queue)
    spelled = (
        "--op-kind", "set_priority", "--spec", '{"priority": 1}', "--filter", json.dumps({"queue": queue})
    )  # fmt: skip
    ours = both.ours("batch-ops", "preview", *spelled)
    theirs = json.loads(both.theirs("batch-ops", "preview", *spelled))
    assert ours["total_matched"] == theirs["total_matched"] == 1
    assert ours["sample"] == [job["id"] for job in theirs["sample"]]

    mine = both.ours("batch", "submit", "set-priority", "--priority", 1, "--queue", queue, "--yes")
    other = json.loads(both.theirs("batch-ops", "submit", *spelled))
    for operation in (mine, other):
        seen = both.ours("batch", "get", operation["id"])
        they_see = json.loads(both.theirs("batch-ops", "get", operation["id"]))
        assert alike({name: seen[name] for name in they_see}) == alike(they_see)
    assert mine["spec"] == other["spec"]
    assert mine["filter"] == other["filter"]
    found = {item["id"] for item in both.ours("batch", "list")}
    assert {item["id"] for item in json.loads(both.theirs("batch-ops", "list"))} == found

    both.theirs("batch-ops", "cancel", mine["id"])
    both.ours("batch", "cancel", other["id"])
    for operation in (mine, other):
        assert both.ours("batch", "get", operation["id"])["state"] == "cancelling"
        assert both.refused("batch", "cancel", operation["id"]) == 3
        assert both.they_refuse("batch-ops", "cancel", operation["id"])
    assert (
        both.refused("batch", "submit", "--op-kind", "set_priority", "--spec", '{"priority": 1}', "--yes")
        == 2
    )
    assert both.they_refuse("batch-ops", "submit", "--op-kind", "set_priority", "--spec", '{"priority": 1}')
    both.world.run(
        "UPDATE awa.batch_operations SET state = 'cancelled', finalized_at = now() - interval '1 day'"
    )
    assert both.ours("batch", "purge", "--before", "1h", "--limit", 1, "--yes")["purged"] == 1
    assert "Purged 1 batch" in both.theirs("batch-ops", "purge", "--before", "2999-01-01T00:00:00Z")


def test_the_storage_status_agrees(both: Both) -> None:
    ours = both.ours("storage", "status")
    theirs = json.loads(both.theirs("storage", "status"))
    for name, their_name in (
        ("state", "state"), ("current_engine", "current_engine"), ("active_engine", "active_engine"),
        ("prepared_engine", "prepared_engine"), ("epoch", "transition_epoch"),
        ("backlog", "canonical_live_backlog"), ("schema", "prepared_queue_storage_schema"),
    ):  # fmt: skip
        assert ours[name] == theirs[their_name], name
    assert both.refused("storage", "prepare") == 3
    assert both.refused("storage", "abort", "--yes") == 3
    assert json.loads(both.theirs("storage", "abort"))["state"] == "active"  # says nothing and does nothing
