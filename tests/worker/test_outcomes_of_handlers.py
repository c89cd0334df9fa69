"""What becomes of a job for each way in which its handler can end, through a real worker.

Most jobs here go through one worker together, in one database; each test looks at some of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests import databases, invariants
from tests.workers import PROBE_TABLE, count, drain, insert, job, labels, runs, wait_until, worker

pytestmark = pytest.mark.worker

#: Deeper and longer than Python reads, and no float: all of it is JSON that another client may store.
POISON = {
    "deep": "[" * 4000 + "]" * 4000,
    "long": "7" * 6000,
    "huge": "1" * 400 + ".5",
}


class Run:
    """A database in which a worker has run everything."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.ids: dict[str, int] = {}
        self.output = ""

    def add(self, name: str, kind: str, args: dict[str, Any] | None = None, **options: Any) -> None:
        self.ids[name] = insert(self.connection, kind, args, **options)

    def job(self, name: str) -> dict[str, Any]:
        return job(self.connection, self.ids[name])

    def labels(self, name: str) -> list[str]:
        return labels(self.connection, self.ids[name])

    def ended(self, name: str) -> tuple[str, int]:
        """State and attempt."""
        found = self.job(name)
        return found["state"], found["attempt"]

    def errors(self, name: str) -> list[dict[str, Any]]:
        return list(self.job(name)["errors"] or [])


@pytest.fixture(scope="module")
def ran(server_url: str, awa_template: str) -> Iterator[Run]:
    with databases.scratch(server_url, "outcomes", template=awa_template) as url:
        run = Run(url)
        run.connection.execute(PROBE_TABLE)
        _enqueue(run)
        run.output = drain(
            url,
            STALE_AFTER=5,
            QUEUES={
                "default": 50,
                "one": 1,
                "dead": {"dlq_enabled": True},
                "timed": {"deadline": 60},
                "short": {"deadline": 2.5},
            },
        )
        yield run
        run.connection.close()


def _enqueue(run: Run) -> None:
    run.add("success", "noop", {"n": 1})
    run.add("async success", "async_noop")
    run.add("tagged", "noop", metadata='{"who": "me"}', tags=["a", "b"])
    run.add("terminal", "hopeless")
    run.add("exhausted", "exhausting", max_attempts=2)
    run.add("retried", "flaky", {"failures": 1})
    run.add("cancelled", "cancelling")
    run.add("later", "later")
    run.add("snoozed", "snoozing", {"times": 3})
    run.add("exiting", "leaving", max_attempts=1)
    run.add("misfit", "typed", {"nummer": 1})
    run.add("no object", "typed")
    run.connection.execute(
        "UPDATE awa.ready_entries SET args = '[1]' WHERE job_id = %s", [run.ids["no object"]]
    )
    run.add("result", "answering", {"n": 21})
    run.add("large result", "boasting", {"size": 70_000})
    run.add("late", "slow", max_attempts=1)
    run.add("async late", "async_slow", max_attempts=1)
    run.add("progress", "progressing")
    run.add("long", "beating", {"seconds": 6.5})
    run.add("cursed", "cursed", max_attempts=1)
    run.add("mumbling", "mumbling", max_attempts=1)
    # One after the other in one thread.
    for name, kind in (
        ("open", "dirty"),
        ("after open", "noop"),
        ("entered", "entering"),
        ("after entered", "noop"),
        ("closed", "closing"),
        ("after closed", "noop"),
        ("broken", "breaking"),
        ("after broken", "noop"),
    ):
        run.add(name, kind, queue="one", max_attempts=1)
    for name in ("before unreadable", "unreadable", "after unreadable"):
        run.add(name, "noop")
    run.connection.execute(
        """UPDATE awa.ready_entries SET payload = '{"metadata": [1]}' WHERE job_id = %s""",
        [run.ids["unreadable"]],
    )
    run.add("unknown and unreadable", "nobody_knows")
    run.connection.execute(
        """UPDATE awa.ready_entries SET payload = '{"metadata": [1]}' WHERE job_id = %s""",
        [run.ids["unknown and unreadable"]],
    )
    for name, value in POISON.items():
        run.add(f"{name} args", "noop")
        run.add(f"{name} put off", "nobody_knows")
        run.add(f"{name} metadata", "noop")
        run.connection.execute(
            "UPDATE awa.ready_entries SET args = %s::jsonb WHERE job_id = ANY(%s)",
            [f'{{"n": {value}}}', [run.ids[f"{name} args"], run.ids[f"{name} put off"]]],
        )
        run.connection.execute(
            "UPDATE awa.ready_entries SET payload = %s::jsonb WHERE job_id = %s",
            [f'{{"metadata": {{"n": {value}}}}}', run.ids[f"{name} metadata"]],
        )
    run.add("dead at once", "hopeless", queue="dead")
    run.add("dead in the end", "exhausting", queue="dead", max_attempts=1)
    run.add("in time", "noop", queue="timed")
    run.add("past its deadline", "slow_at_first", {"seconds": 30}, queue="short")


@pytest.mark.parametrize("name", ["success", "async success", "tagged"])
def test_a_handler_that_returns_completes_its_job(ran: Run, name: str) -> None:
    assert ran.ended(name) == ("completed", 1)
    assert ran.errors(name) == []
    assert len(ran.labels(name)) == 1


def test_what_a_producer_stored_is_still_there_after_success(ran: Run) -> None:
    found = ran.job("tagged")
    assert found["tags"] == ["a", "b"]
    assert found["metadata"] == {"who": "me"}


def test_a_terminal_error_fails_the_job_at_once(ran: Run) -> None:
    assert ran.ended("terminal") == ("failed", 1)
    (entry,) = ran.errors("terminal")
    headline, trace = entry["error"].split("\n", 1)
    assert headline == "TerminalError: there is no way"
    assert "in hopeless" in trace
    assert "worker/executor.py" not in trace
    assert (entry["attempt"], entry["terminal"]) == (1, True)


def test_an_exception_is_retried_with_backoff(ran: Run) -> None:
    assert ran.ended("retried") == ("completed", 2)
    (entry,) = ran.errors("retried")
    assert entry["error"].startswith("RuntimeError: failure 1\n")
    assert "terminal" not in entry
    first, second = ran.connection.execute(
        "SELECT at FROM probe WHERE job_id = %s ORDER BY at", [ran.ids["retried"]]
    ).fetchall()
    assert timedelta(seconds=2) <= second[0] - first[0] < timedelta(seconds=20)


def test_an_exception_in_the_last_attempt_fails_the_job(ran: Run) -> None:
    assert ran.ended("exhausted") == ("failed", 2)
    first, last = ran.errors("exhausted")
    assert (first["attempt"], first.get("terminal")) == (1, None)
    assert (last["attempt"], last.get("terminal")) == (2, True)


def test_a_handler_can_cancel_its_job(ran: Run) -> None:
    assert ran.ended("cancelled") == ("cancelled", 1)
    (entry,) = ran.errors("cancelled")
    assert entry["error"] == "cancelled: no longer wanted"
    assert "terminal" not in entry


def test_a_retry_that_the_handler_asks_for_counts_and_leaves_no_error(ran: Run) -> None:
    assert ran.ended("later") == ("completed", 2)
    assert ran.errors("later") == []


def test_a_snooze_does_not_count(ran: Run) -> None:
    assert ran.ended("snoozed") == ("completed", 1)
    assert len(ran.labels("snoozed")) == 4


def test_system_exit_in_a_handler_is_a_failure_like_any_other(ran: Run) -> None:
    assert ran.ended("exiting") == ("failed", 1)
    assert ran.errors("exiting")[0]["error"].startswith("SystemExit: 3")


@pytest.mark.parametrize(
    ("name", "fault"), [("misfit", "missing number"), ("no object", "an object is needed, not a list")]
)
def test_arguments_that_do_not_fit_fail_the_job_for_good(ran: Run, name: str, fault: str) -> None:
    assert ran.ended(name) == ("failed", 1)
    (entry,) = ran.errors(name)
    assert fault in entry["error"]
    assert entry["terminal"] is True
    assert ran.labels(name) == []


def test_a_result_is_kept_where_the_kind_asks_for_it(ran: Run) -> None:
    assert ran.ended("result") == ("completed", 1)
    assert ran.job("result")["metadata"] == {"_awa_django_result": {"answer": 42}}


def test_a_result_that_is_too_large_is_dropped_and_said_so(ran: Run) -> None:
    assert ran.ended("large result") == ("completed", 1)
    assert ran.job("large result")["metadata"] == {}
    assert f"job {ran.ids['large result']} (boasting): its result is not kept: 70002 bytes" in ran.output


@pytest.mark.parametrize("name", ["late", "async late"])
def test_a_handler_that_outlives_its_limit_has_failed(ran: Run, name: str) -> None:
    assert ran.ended(name) == ("failed", 1)
    assert ran.errors(name)[0]["error"].startswith("TimeoutError")


def test_a_warning_says_that_threads_cannot_be_stopped(ran: Run) -> None:
    assert "threads cannot be stopped" in ran.output
    assert "keeps its slot: slow" in ran.output


def test_progress_survives_a_retry(ran: Run) -> None:
    assert ran.ended("progress") == ("completed", 2)
    first, second = ran.labels("progress")
    assert first == "null"
    assert second == '{"message": "under way", "metadata": {"page": 7}, "percent": 30}'


def test_a_job_that_outlives_the_staleness_is_kept_by_its_heartbeat(ran: Run) -> None:
    assert ran.ended("long") == ("completed", 1)
    assert ran.labels("long") == ["beating"]


def test_an_error_whose_message_cannot_be_printed_is_an_error_all_the_same(ran: Run) -> None:
    assert ran.ended("cursed") == ("failed", 1)
    assert ran.errors("cursed")[0]["error"].startswith("Curse: its message cannot be printed\n")


def test_an_error_text_is_cut_and_loses_what_the_database_cannot_hold(ran: Run) -> None:
    assert ran.ended("mumbling") == ("failed", 1)
    text = ran.errors("mumbling")[0]["error"]
    assert text.startswith("ValueError: nul \N{REPLACEMENT CHARACTER} and surrogate ? long ")
    assert len(text.encode()) <= 33 * 1024


@pytest.mark.parametrize("name", ["open", "entered"])
def test_a_handler_that_returns_inside_a_transaction_has_failed_and_left_nothing(ran: Run, name: str) -> None:
    assert ran.ended(name) == ("failed", 1)
    assert ran.errors(name)[0]["error"].startswith("OpenTransaction: ")
    assert "never committed" not in ran.labels(name)


@pytest.mark.parametrize("name", ["closed", "broken"])
def test_a_handler_may_lose_its_connection(ran: Run, name: str) -> None:
    assert ran.ended(name) == ("completed", 1)


@pytest.mark.parametrize("name", ["open", "entered", "closed", "broken"])
def test_the_next_job_in_the_same_thread_finds_a_working_connection(ran: Run, name: str) -> None:
    assert ran.ended(f"after {name}") == ("completed", 1)


@pytest.mark.parametrize("name", ["unreadable", "unknown and unreadable"])
def test_a_stored_payload_that_is_no_payload_fails_its_job(ran: Run, name: str) -> None:
    assert ran.ended(name) == ("failed", 1)
    (entry,) = ran.errors(name)
    assert entry["error"] == "invalid stored payload: metadata is no object"
    assert ran.job(name)["metadata"] == {}


def test_the_neighbours_of_an_unreadable_job_run(ran: Run) -> None:
    assert ran.ended("before unreadable") == ("completed", 1)
    assert ran.ended("after unreadable") == ("completed", 1)


@pytest.mark.parametrize("name", POISON)
def test_json_that_python_cannot_hold_fails_its_own_job_only(ran: Run, name: str) -> None:
    for part, fault in (
        ("args", "an object is needed, not JSON that"),
        ("metadata", "invalid stored payload: "),
    ):
        row = ran.connection.execute(
            "SELECT state::text, attempt, payload FROM awa.done_entries WHERE job_id = %s",
            [ran.ids[f"{name} {part}"]],
        ).fetchone()
        assert row is not None
        assert row[:2] == ("failed", 1)
        (entry,) = row[2]["errors"]
        assert fault in entry["error"]


@pytest.mark.parametrize(("name", "value"), POISON.items())
def test_json_that_python_cannot_hold_is_carried_unchanged(ran: Run, name: str, value: str) -> None:
    row = ran.connection.execute(
        "SELECT attempt, args -> 'n' = %s::jsonb FROM awa.deferred_jobs WHERE job_id = %s",
        [value, ran.ids[f"{name} put off"]],
    ).fetchone()
    assert row == (0, True)


def test_a_failure_goes_to_the_dead_letters_where_the_queue_says_so(ran: Run) -> None:
    rows = ran.connection.execute(
        "SELECT job_id, dlq_reason, attempt, original_run_lease, payload -> 'errors' -> -1 -> 'terminal' "
        "FROM awa.dlq_entries ORDER BY job_id"
    ).fetchall()
    assert rows == [
        (ran.ids["dead at once"], "terminal_error", 1, 1, True),
        (ran.ids["dead in the end"], "max_attempts_exhausted", 1, 1, True),
    ]


def test_an_attempt_with_a_deadline_knows_when_it_began(ran: Run) -> None:
    assert ran.ended("in time") == ("completed", 1)
    assert ran.job("in time")["attempted_at"] is not None


def test_an_attempt_is_taken_away_at_its_deadline_and_told_so(ran: Run) -> None:
    assert ran.ended("past its deadline") == ("completed", 2)
    (entry,) = ran.errors("past its deadline")
    assert entry["error"] == "hard deadline exceeded"
    assert ran.labels("past its deadline") == ["slow_at_first", "told to stop", "slow_at_first"]


def test_every_attempt_is_closed_and_every_invariant_holds(ran: Run) -> None:
    ids = [number for name, number in ran.ids.items()]
    assert invariants.violated(ran.connection, quiesced=True, drained=True, ids=ids) == []


#: Keeps what was put off: the leader may promote it before anybody has looked.
KEEP_DEFERRED = """
    CREATE TABLE put_off (job_id bigint, state text, attempt integer, delay double precision);
    CREATE FUNCTION keep_put_off() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.put_off (job_id, state, attempt, delay)
        VALUES (new.job_id, new.state, new.attempt, extract(epoch FROM new.run_at - new.finalized_at));
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER keep_put_off AFTER INSERT ON awa.deferred_jobs
    FOR EACH ROW EXECUTE FUNCTION keep_put_off();
"""


def test_snoozes_neither_count_nor_lengthen_the_backoff(awa_database: str) -> None:
    delays = []
    with (
        psycopg.connect(awa_database, autocommit=True) as connection,
        worker(awa_database, STALE_AFTER=60),
    ):
        connection.execute(KEEP_DEFERRED)
        job_id = insert(connection, "juggling", {"snoozes": 10, "failures": 3}, max_attempts=4)
        for attempt in (1, 2, 3):
            (delay,) = wait_until(
                lambda attempt=attempt: connection.execute(
                    "SELECT delay FROM put_off WHERE job_id = %s AND state = 'retryable' AND attempt = %s",
                    [job_id, attempt],
                ).fetchone()
            )
            delays.append(float(delay))
            connection.execute(
                "UPDATE awa.deferred_jobs SET run_at = clock_timestamp() WHERE job_id = %s", [job_id]
            )
        wait_until(lambda: runs(connection)[job_id] == 14)
        wait_until(lambda: job(connection, job_id)["state"] == "completed")
        found = job(connection, job_id)
        assert found["attempt"] == 4
        assert [entry["error"].split("\n")[0] for entry in found["errors"]] == [
            f"RuntimeError: failure {number}" for number in (1, 2, 3)
        ]
    for delay, least in zip(delays, (2, 4, 8), strict=True):
        assert least <= delay <= least * 1.25


def test_a_retry_without_end_can_be_given_an_end(awa_database: str) -> None:
    with psycopg.connect(awa_database, autocommit=True) as connection:
        job_id = insert(connection, "insisting", max_attempts=4)
        drain(awa_database, RETRY_AFTER_EXHAUSTS=True, STALE_AFTER=60)
        found = job(connection, job_id)
        assert (found["state"], found["attempt"]) == ("failed", 4)
        assert runs(connection)[job_id] == 4
        (entry,) = found["errors"]
        assert entry["error"] == "RetryAfter(0 s) in the last attempt"


def test_a_job_whose_code_is_not_there_yet_waits_for_it(awa_database: str) -> None:
    deferred = """
        SELECT state::text, attempt, run_lease, extract(epoch FROM run_at - %s), payload -> 'metadata'
        FROM awa.deferred_jobs
    """

    def now() -> Any:
        (found,) = connection.execute("SELECT clock_timestamp()").fetchone() or [None]
        return found

    with psycopg.connect(awa_database, autocommit=True) as connection:
        began = now()
        job_id = insert(connection, "noop", metadata='{"mine": 1}')
        known = [insert(connection, "note", {"order_id": n}) for n in range(20)]
        with worker(awa_database, apps=False) as old:
            wait_until(
                lambda: count(connection, "SELECT count(*) FROM awa.jobs WHERE state = 'completed'") == 20
            )
            state, attempt, lease, seconds, metadata = wait_until(
                lambda: connection.execute(deferred, [began]).fetchone()
            )
            assert (state, attempt, lease) == ("scheduled", 0, 1)
            assert 30 <= seconds < 60, "half a minute from when it was found"
            assert metadata["mine"] == 1
            assert metadata["_awa_django_unknown_kind"]["times"] == 1
            wait_until(
                lambda: f"job {job_id} is of kind 'noop', which this worker does not know" in old.output()
            )
            again = now()
            connection.execute("UPDATE awa.deferred_jobs SET run_at = clock_timestamp()")
            *_, lease, seconds, metadata = wait_until(
                lambda: connection.execute(f"{deferred} WHERE run_lease = 2", [again]).fetchone()
            )
            assert 60 <= seconds < 120, "a minute"
            assert metadata["_awa_django_unknown_kind"]["times"] == 2
            assert old.stop() == 0
        # Not before it has stopped: it would find the job once more, and put it off for longer.
        connection.execute("UPDATE awa.deferred_jobs SET run_at = clock_timestamp()")
        drain(awa_database)
        found = job(connection, job_id)
        assert (found["state"], found["attempt"]) == ("completed", 1)
        assert runs(connection) == {job_id: 1}
        assert len(known) == 20
    invariants.assert_all_hold(awa_database, ids=[job_id, *known])


def test_an_unknown_kind_fails_where_the_project_says_so_and_after_the_grace(awa_database: str) -> None:
    with psycopg.connect(awa_database, autocommit=True) as connection:
        long_ago = '{"_awa_django_unknown_kind": {"since": "2020-01-01T00:00:00+00:00", "times": 99}}'
        waited = insert(connection, "noop", metadata=long_ago)
        drain(awa_database, apps=False)
        unwanted = insert(connection, "noop")
        drain(awa_database, apps=False, UNKNOWN_KIND="fail")
        for job_id in (waited, unwanted):
            found = job(connection, job_id)
            assert (found["state"], found["attempt"]) == ("failed", 1)
            (entry,) = found["errors"]
            assert (entry["error"], entry["terminal"]) == ("unknown job kind: noop", True)
