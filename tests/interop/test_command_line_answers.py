"""The options of the verbs that both command lines have: pages, filters, names that nobody knows, and all of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.interop.test_console import Both, alike, both, listed, queue, unblocked

__all__ = ["both", "queue", "unblocked"]

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("unblocked")]


def lines(text: str) -> list[list[str]]:
    """The words of each line of a table below its heading; what follows an empty line is no table."""
    return [line.split() for line in text.partition("\n\n")[0].splitlines()[1:]]


def test_a_list_of_jobs_has_the_newest_up_to_its_limit(both: Both, queue: str) -> None:
    ids = [both.add(state, queue) for state in ("failed", "cancelled", "scheduled", "available")]
    ours = both.ours("job", "list", "--queue", queue, "--limit", 3)["jobs"]
    theirs = lines(both.theirs("job", "list", "--queue", queue, "--limit", 3))
    assert [job["id"] for job in ours] == [int(line[0]) for line in theirs] == ids[:0:-1]
    assert [
        [str(job[name]) for name in ("id", "kind", "queue", "state", "attempt", "max_attempts")]
        for job in ours
    ] == theirs


def test_each_figure_of_a_queue_is_the_same(both: Both, queue: str) -> None:
    for state in ("available", "available", "completed", "failed", "dead", "cancelled", "retryable"):
        both.add(state, queue)
    both.ours("queue", "pause", queue)
    (found,) = (line for line in lines(both.theirs("queue", "stats")) if line[0] == queue)
    _, available, running, failed, completed, lag, paused = found
    (mine,) = (item for item in both.ours("queue", "list") if item["queue"] == queue)
    counts = both.ours("queue", "stats", queue, "--exact")[queue]
    assert (counts["available"], counts["running"]) == (int(available), int(running)) == (2, 0)
    assert counts["failed"] + counts["dead"] == int(failed) == 2
    assert counts["completed"] == int(completed) == 1
    assert (
        (mine["paused"], abs(mine["lag_seconds"] - float(lag)) < 30)
        == (paused == "yes", True)
        == (True, True)
    )
    both.ours("queue", "resume", queue)


def test_pages_of_dead_letters_that_died_at_one_instant_follow_each_other_alike(
    both: Both, queue: str
) -> None:
    ids = [both.add("failed", queue) for _ in range(5)]
    both.ours("dlq", "move", "--queue", queue, "--yes")
    (at,) = {job["dlq"]["at"] for job in both.ours("dlq", "list", "--queue", queue)["jobs"]}
    ours, theirs = [], []
    place: list[Any] = []
    while page := both.ours("dlq", "list", "--queue", queue, "--limit", 2, *place):
        ours += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        place = ["--after", page["next"]]
    cursor: list[Any] = []
    while page := both.theirs("dlq", "list", "--queue", queue, "--limit", 2, *cursor):
        found = [int(line[0]) for line in lines(page)]
        theirs += found
        if len(found) < 2:
            break
        cursor = ["--before-id", found[-1], "--before-dlq-at", at]
    assert ours == theirs == ids[::-1]


def test_dead_letters_are_chosen_by_tag_and_kind_alike(both: Both, queue: str) -> None:
    red, other, kind = (
        both.add("dead", queue, tags=("red",)),
        both.add("dead", queue, tags=("green",)),
        both.add("dead", queue, kind=f"other_{queue}"),
    )
    for option, ids in (
        (("--tag", "red"), {red}),
        (("--kind", f"other_{queue}"), {kind}),
        (("--kind", f"kind_{queue}"), {red, other}),
        (("--kind", f"kind_{queue}", "--tag", "green"), {other}),
        (("--tag", "blue"), set()),
    ):
        chosen = ("dlq", "list", "--queue", queue, *option)
        assert {job["id"] for job in both.ours(*chosen)["jobs"]} == ids
        assert listed(both.theirs(*chosen)) == ids
    both.theirs("dlq", "retry-bulk", "--queue", queue, "--tag", "red")
    both.ours("dlq", "retry-bulk", "--queue", queue, "--tag", "green", "--yes")
    assert both.state(red) == both.state(other) == "available"
    left, right = both.dump(red)["job"], both.dump(other)["job"]
    for name in ("state", "attempt", "run_lease", "priority", "metadata", "progress", "finalized_at"):
        assert left[name] == right[name], name
    last = both.add("dead", f"{queue}_b", kind=f"last_{queue}")
    both.theirs("dlq", "purge", "--kind", f"other_{queue}")
    assert both.ours("dlq", "purge", "--kind", f"last_{queue}", "--yes")["ids"] == [last]
    assert both.ours("dlq", "list", "--queue", queue)["jobs"] == []
    assert listed(both.theirs("dlq", "list", "--queue", queue)) == set()


def test_all_means_all_to_both(both: Both, queue: str) -> None:
    def depth() -> dict[str, int]:
        return dict(both.ours("dlq", "depth")["queues"])

    def they_count() -> dict[str, int]:
        return {
            name: int(number)
            for name, number in re.findall(r"^  (\S+): (\d+)$", both.theirs("dlq", "depth"), re.M)
        }

    both.theirs("dlq", "purge", "--all")
    assert depth() == they_count() == {}
    first, second = both.add("failed", queue), both.add("failed", f"{queue}_b")
    both.theirs("dlq", "move", "--all")
    assert depth() == they_count()
    assert depth()[queue] == depth()[f"{queue}_b"] == 1
    both.ours("dlq", "retry-bulk", "--all", "--yes")
    assert depth() == they_count() == {}
    assert both.state(first) == both.state(second) == "available"
    third = both.add("failed", queue)
    both.ours("dlq", "move", "--all", "--yes")
    assert both.dump(third)["dlq"]["reason"] == "manual"
    both.theirs("dlq", "retry-bulk", "--all")
    assert both.state(third) == "available"
    both.add("dead", queue)
    assert both.ours("dlq", "purge", "--all", "--yes")["changed"] == 1
    assert depth() == they_count() == {}


def test_failures_are_retried_by_kind_and_one_choice_is_needed(both: Both, queue: str) -> None:
    mine, theirs = both.add("failed", queue, kind=f"a_{queue}"), both.add("failed", queue, kind=f"b_{queue}")
    dead = both.add("dead", queue, kind=f"a_{queue}")
    assert both.ours("job", "retry-failed", "--kind", f"a_{queue}", "--yes")["ids"] == [mine]
    both.theirs("job", "retry-failed", "--kind", f"b_{queue}")
    left, right = both.dump(mine)["job"], both.dump(theirs)["job"]
    for name in ("state", "attempt", "run_lease", "priority", "metadata", "tags", "progress", "finalized_at"):
        assert left[name] == right[name], name
    assert "dlq" in both.dump(dead)
    for options in ((), ("--kind", "k", "--queue", queue)):
        assert both.refused("job", "retry-failed", *options, "--yes") == 2
        assert both.they_refuse("job", "retry-failed", *options)


def test_batch_operations_are_listed_by_state_and_may_mean_all(both: Both) -> None:
    spelled = ("--op-kind", "move_queue", "--spec", '{"queue": "elsewhere", "priority": 3}')
    theirs = json.loads(both.theirs("batch-ops", "submit", *spelled, "--all", "--submitted-by", "ann"))
    ours = both.ours("batch-ops", "submit", *spelled, "--all", "--submitted-by", "ann", "--yes")
    for name in ("op_kind", "spec", "filter", "state", "submitted_by"):
        assert ours[name] == theirs[name], name
    both.ours("batch", "cancel", ours["id"])
    for state, ids in (("pending", [theirs["id"]]), ("cancelling", [ours["id"]]), ("failed", [])):
        found = both.ours("batch", "list", "--state", state)
        other = json.loads(both.theirs("batch-ops", "list", "--state", state))
        assert [item["id"] for item in found] == [item["id"] for item in other] == ids
        assert alike(
            [{name: mine[name] for name in one} for mine, one in zip(found, other, strict=True)]
        ) == alike(other)
    (newest,) = both.ours("batch", "list", "--limit", 1)
    (they_see,) = json.loads(both.theirs("batch-ops", "list", "--limit", 1))
    assert newest["id"] == they_see["id"] == ours["id"]
    for wrong in (
        ("--op-kind", "set_priority", "--spec", '{"priority": 9}'),
        ("--op-kind", "move_queue", "--spec", '{"queue": ""}'),
        ("--op-kind", "explode", "--spec", "{}"),
    ):
        filter = ("--filter", '{"queue": "q"}')
        assert both.refused("batch-ops", "submit", *wrong, *filter, "--yes") == 2
        assert both.they_refuse("batch-ops", "submit", *wrong, *filter)


def test_schedules_are_listed_with_their_columns(both: Both, queue: str) -> None:
    both.world.run(
        "INSERT INTO awa.cron_jobs (name, cron_expr, timezone, kind, queue)"
        " VALUES (%s, '15 4 * * MON', 'Asia/Tokyo', 'report', %s)",
        queue,
        queue,
    )
    (mine,) = (item for item in both.ours("cron", "list") if item["name"] == queue)
    (line,) = (line for line in both.theirs("cron", "list").splitlines() if line.startswith(queue))
    for name in ("cron_expr", "timezone", "kind", "queue"):
        assert mine[name] in line
    both.ours("cron", "delete", queue, "--yes")


def test_names_that_nobody_knows_are_answered_alike(both: Both, queue: str) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"
    for ours, theirs in (
        (("batch", "get", nobody), ("batch-ops", "get", nobody)),
        (("batch", "cancel", nobody), ("batch-ops", "cancel", nobody)),
        (("job", "dump", 10**12), ("job", "dump", 10**12)),
        (("job", "dump-run", 10**12), ("job", "dump-run", 10**12)),
    ):
        assert both.refused(*ours) == 3, ours
        assert both.they_refuse(*theirs), theirs
    # Two that the real command line says in a sentence and with success.
    assert both.refused("cron", "delete", queue, "--yes") == 3
    assert "No cron schedule" in both.theirs("cron", "remove", queue)
    assert both.refused("dlq", "retry", 10**12) == 3
    assert f"{10**12}" in both.theirs("dlq", "retry", 10**12)
    # A queue may be paused before its first job; to resume one that nobody paused is nothing.
    both.theirs("queue", "resume", queue)
    both.ours("queue", "resume", queue)
    both.theirs("queue", "pause", queue)
    (found,) = (item for item in both.ours("queue", "list") if item["queue"] == queue)
    assert (found["paused"], found["paused_by"]) == (True, "cli")
    both.ours("queue", "pause", f"{queue}_b")
    (line,) = (line for line in lines(both.theirs("queue", "stats")) if line[0] == f"{queue}_b")
    assert line[-1] == "yes"
    for text in (f"{queue}_c", "default"):
        assert both.ours("queue", "drain", text, "--yes")["cancelled"] == 0
        assert "Drained 0 jobs" in both.theirs("queue", "drain", text)
    assert both.they_refuse("job", "list", "--state", "nonsense")
    assert both.refused("job", "list", "--state", "nonsense")
