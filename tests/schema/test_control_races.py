"""What the control plane's functions promise to two transactions at once.

The recorded scenarios run in one transaction each; these are the promises that need two, or a commit
(contract: control-functions, sections 2 to 6).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg import errors

LIMIT = 60.0  # seconds that anything here may take before it counts as hung

# No job, no runtime, and canonical storage in force.
RESTORE = """
    DELETE FROM awa.jobs_hot;
    DELETE FROM awa.scheduled_jobs;
    DELETE FROM awa.job_unique_claims;
    DELETE FROM awa.admin_dirty_queue_marks;
    DELETE FROM awa.admin_dirty_kind_marks;
    DELETE FROM awa.queue_state_counts;
    DELETE FROM awa.job_queue_catalog;
    DELETE FROM awa.job_kind_catalog;
    DELETE FROM awa.runtime_instances;
    DELETE FROM awa.runtime_storage_backends;
    UPDATE awa.storage_transition_state
    SET current_engine = 'canonical', prepared_engine = NULL, state = 'canonical', details = '{}',
        finalized_at = NULL;
"""

Connection = psycopg.Connection[tuple[Any, ...]]


class Sessions:
    """Connections to one database, and a thread for a statement that is going to wait."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = url
        self._stack = stack
        self._threads = stack.enter_context(ThreadPoolExecutor(max_workers=2))
        self.observer = self.open(autocommit=True)

    def open(self, *, autocommit: bool = False) -> Connection:
        connection = psycopg.connect(self._url, autocommit=autocommit)
        self._stack.callback(connection.close)
        connection.execute("SET statement_timeout = '60s'")
        connection.commit()
        return connection

    def blocked(self, connection: Connection, statement: str) -> Future[list[tuple[Any, ...]]]:
        """Start the statement in a thread and return once it waits for another transaction."""

        def run() -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

        pid = connection.info.backend_pid
        future = self._threads.submit(run)
        give_up = time.monotonic() + LIMIT
        while not self.observer.execute(
            "SELECT cardinality(pg_blocking_pids(%s)) > 0, pg_sleep(0.005)", [pid]
        ).fetchall()[0][0]:
            assert not future.done(), f"did not wait: {future.exception() or future.result()}"
            assert time.monotonic() < give_up, f"neither waits nor ends: {statement}"
        return future


@pytest.fixture
def sessions(emptied_database: str) -> Iterator[Sessions]:
    """Sessions on a canonical installation; whatever the test commits is undone after it."""
    with psycopg.connect(emptied_database, autocommit=True) as installation:
        installation.execute(RESTORE)
        with ExitStack() as stack:
            yield Sessions(emptied_database, stack)
        installation.execute(RESTORE)
        installation.execute("SELECT awa.storage_auto_finalize_if_fresh('awa')")


def rows(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement).fetchall()  # type: ignore[arg-type]


# --- Wake-ups --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "woken"),
    [
        ("INSERT INTO awa.jobs_hot (kind, queue) VALUES ('k', 'q1'), ('k', 'q2')", ["awa:q1", "awa:q2"]),
        ("INSERT INTO awa.jobs_hot (kind, queue, run_at) VALUES ('k', 'q', now() + interval '1 h')", []),
        ("INSERT INTO awa.jobs_hot (kind, queue, state) VALUES ('k', 'q', 'running')", []),
        ("INSERT INTO awa.scheduled_jobs (kind, queue) VALUES ('k', 'q')", []),
        ("INSERT INTO awa.jobs (kind, queue) VALUES ('k', 'q')", ["awa:q"]),
        ("UPDATE awa.jobs_hot SET state = 'available' WHERE queue = 'held'", []),
        ("UPDATE awa.jobs SET state = 'available' WHERE queue = 'held'", ["awa:held"]),
    ],
)
def test_only_a_row_that_comes_in_due_wakes_workers(
    sessions: Sessions, statement: str, woken: list[str]
) -> None:
    sessions.observer.execute("INSERT INTO awa.jobs_hot (kind, queue, state) VALUES ('k', 'held', 'failed')")
    listener = sessions.open(autocommit=True)
    for queue in ("q", "q1", "q2", "held", "end"):
        listener.execute(f'LISTEN "awa:{queue}"')  # type: ignore[arg-type]
    sessions.observer.execute(statement)  # type: ignore[arg-type]
    # Messages arrive in commit order, so this one shows that no other is on its way.
    sessions.observer.execute("SELECT pg_notify('awa:end', '')")
    heard = []
    for message in listener.notifies(timeout=LIMIT):
        if message.channel == "awa:end":
            break
        heard.append((message.channel, message.payload))
    else:
        pytest.fail("the closing message did not arrive")
    assert sorted(heard) == [(channel, "") for channel in woken]


# --- Writes through the view ---------------------------------------------------------------------------


def test_an_update_through_the_view_skips_a_row_that_has_changed_state_meanwhile(sessions: Sessions) -> None:
    sessions.observer.execute("INSERT INTO awa.jobs_hot (id, kind) VALUES (1, 'k')")
    first, second = sessions.open(), sessions.open()
    first.execute("UPDATE awa.jobs_hot SET state = 'running', run_lease = 1 WHERE id = 1")
    waiting = sessions.blocked(second, "UPDATE awa.jobs SET state = 'cancelled' WHERE id = 1 RETURNING id")
    first.commit()
    assert waiting.result(LIMIT) == []
    second.commit()
    assert rows(sessions.observer, "SELECT state FROM awa.jobs_hot") == [("running",)]


def test_an_update_through_the_view_goes_on_when_the_other_transaction_gives_up(sessions: Sessions) -> None:
    sessions.observer.execute("INSERT INTO awa.jobs_hot (id, kind) VALUES (1, 'k')")
    first, second = sessions.open(), sessions.open()
    first.execute("UPDATE awa.jobs_hot SET state = 'running', run_lease = 1 WHERE id = 1")
    waiting = sessions.blocked(second, "UPDATE awa.jobs SET state = 'cancelled' WHERE id = 1 RETURNING id")
    first.rollback()
    assert waiting.result(LIMIT) == [(1,)]
    second.commit()
    assert rows(sessions.observer, "SELECT state FROM awa.jobs_hot") == [("cancelled",)]


# --- Unique claims -------------------------------------------------------------------------------------


def unique_job(job_id: int) -> str:
    return (
        "INSERT INTO awa.jobs_hot (id, kind, unique_key, unique_states) "
        rf"VALUES ({job_id}, 'k', '\x01', B'11111000') RETURNING id"
    )


def test_a_claim_waits_for_an_uncommitted_one_and_fails_once_that_commits(sessions: Sessions) -> None:
    first, second = sessions.open(), sessions.open()
    first.execute(unique_job(1))  # type: ignore[arg-type]
    waiting = sessions.blocked(second, unique_job(2))
    first.commit()
    with pytest.raises(
        errors.UniqueViolation, match="job 2 cannot claim unique key 01: job 1 holds it"
    ) as caught:
        waiting.result(LIMIT)
    assert caught.value.diag.constraint_name == "idx_awa_jobs_unique"


def test_a_claim_waits_for_an_uncommitted_one_and_succeeds_once_that_rolls_back(sessions: Sessions) -> None:
    first, second = sessions.open(), sessions.open()
    first.execute(unique_job(1))  # type: ignore[arg-type]
    waiting = sessions.blocked(second, unique_job(2))
    first.rollback()
    assert waiting.result(LIMIT) == [(2,)]
    second.commit()
    assert rows(sessions.observer, "SELECT job_id FROM awa.job_unique_claims") == [(2,)]


def test_a_claim_waits_for_an_uncommitted_release(sessions: Sessions) -> None:
    sessions.observer.execute(unique_job(1))  # type: ignore[arg-type]
    first, second = sessions.open(), sessions.open()
    first.execute("DELETE FROM awa.jobs_hot WHERE id = 1")
    waiting = sessions.blocked(second, unique_job(2))
    first.commit()
    assert waiting.result(LIMIT) == [(2,)]


# --- Cached counters -----------------------------------------------------------------------------------


def test_changes_of_jobs_and_the_counting_of_them_never_wait_for_each_other(sessions: Sessions) -> None:
    sessions.observer.execute(
        "INSERT INTO awa.jobs_hot (id, kind, queue) VALUES (1, 'k', 'q'), (2, 'k', 'q')"
    )
    changing, counting = sessions.open(), sessions.open()
    for connection in (changing, counting):
        connection.execute("SET LOCAL lock_timeout = '1s'")
    changing.execute("UPDATE awa.jobs_hot SET state = 'running' WHERE id = 1")
    assert rows(counting, "SELECT awa.recompute_dirty_admin_metadata()") == [(2,)]
    counting.execute("SELECT awa.refresh_admin_metadata()")
    changing.execute("UPDATE awa.jobs_hot SET state = 'running' WHERE id = 2")
    counting.commit()
    changing.commit()


def test_a_change_that_commits_during_a_count_keeps_its_mark_for_the_next(sessions: Sessions) -> None:
    changing = sessions.open()
    changing.execute("INSERT INTO awa.jobs_hot (kind, queue) VALUES ('k', 'q')")
    assert rows(sessions.observer, "SELECT awa.recompute_dirty_admin_metadata()") == [(0,)]
    changing.commit()
    assert rows(sessions.observer, "SELECT awa.recompute_dirty_admin_metadata()") == [(2,)]
    assert rows(sessions.observer, "SELECT queue, available FROM awa.queue_state_counts") == [("q", 1)]


def test_two_counts_take_turns(sessions: Sessions) -> None:
    first, second = sessions.open(), sessions.open()
    first.execute("SELECT awa.refresh_admin_metadata()")
    waiting = sessions.blocked(second, "SELECT awa.recompute_dirty_admin_metadata()")
    first.commit()
    assert waiting.result(LIMIT) == [(0,)]


def test_a_count_that_changes_nothing_writes_nothing(sessions: Sessions) -> None:
    sessions.observer.execute("INSERT INTO awa.jobs_hot (kind, queue) VALUES ('k', 'q')")
    written_by = """
        SELECT counts.xmin::text, queues.xmin::text, kinds.xmin::text
        FROM awa.queue_state_counts AS counts, awa.job_queue_catalog AS queues, awa.job_kind_catalog AS kinds
    """
    sessions.observer.execute("SELECT awa.refresh_admin_metadata()")
    before = rows(sessions.observer, written_by)
    sessions.observer.execute("SELECT awa.refresh_admin_metadata()")
    assert len(before) == 1
    assert rows(sessions.observer, written_by) == before


# --- Storage transition ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transition",
    [
        "SELECT state FROM awa.storage_prepare('queue_storage')",
        "SELECT state FROM awa.storage_enter_mixed_transition()",
        "SELECT state FROM awa.storage_finalize()",
        "SELECT state FROM awa.storage_abort()",
        "SELECT awa.storage_auto_finalize_if_fresh('awa')",
    ],
)
def test_a_share_lock_on_the_singleton_holds_off_every_transition(
    sessions: Sessions, transition: str
) -> None:
    holder, other = sessions.open(), sessions.open()
    holder.execute("SELECT FROM awa.storage_transition_state FOR SHARE")
    other.execute("SET LOCAL lock_timeout = '50ms'")
    with pytest.raises(errors.LockNotAvailable):
        other.execute(transition)  # type: ignore[arg-type]


def test_share_locks_on_the_singleton_do_not_exclude_each_other(sessions: Sessions) -> None:
    first, second = sessions.open(), sessions.open()
    second.execute("SET LOCAL lock_timeout = '1s'")
    first.execute("SELECT FROM awa.storage_transition_state FOR SHARE")
    assert rows(second, "SELECT state FROM awa.storage_transition_state FOR SHARE") == [("canonical",)]


def test_of_two_promotions_at_once_only_the_first_counts(sessions: Sessions) -> None:
    first, second = sessions.open(), sessions.open()
    epoch = rows(sessions.observer, "SELECT transition_epoch FROM awa.storage_status()")[0][0]
    assert rows(first, "SELECT awa.storage_auto_finalize_if_fresh('awa')") == [(True,)]
    waiting = sessions.blocked(second, "SELECT awa.storage_auto_finalize_if_fresh('elsewhere')")
    first.commit()
    assert waiting.result(LIMIT) == [(False,)]
    second.commit()
    assert rows(
        sessions.observer,
        "SELECT state, transition_epoch, awa.active_queue_storage_schema() FROM awa.storage_status()",
    ) == [("active", epoch + 1, "awa")]


def test_a_finalization_that_waited_counts_the_backlog_it_finds_afterwards(sessions: Sessions) -> None:
    sessions.observer.execute(
        "UPDATE awa.storage_transition_state "
        "SET state = 'mixed_transition', prepared_engine = 'queue_storage'"
    )
    holder, other = sessions.open(), sessions.open()
    holder.execute("SELECT FROM awa.storage_transition_state FOR SHARE")
    waiting = sessions.blocked(other, "SELECT state FROM awa.storage_finalize()")
    holder.execute("INSERT INTO awa.scheduled_jobs (kind, state) VALUES ('k', 'retryable')")
    holder.commit()
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match=r"1 canonical job\(s\) are not finished"):
        waiting.result(LIMIT)
