"""What operators do to jobs, through the public functions on Django's connection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from awa_django import operations
from awa_django.enqueue import enqueue, enqueue_many
from awa_django.errors import InvalidJob, JobNotFound, TooManyJobs, UniqueConflict, WrongState
from awa_django.jobs import Attempt, JobInsert
from awa_django.operations import JobFilter, Reason, SetPriority, change, verbs
from awa_django.outcomes import Completed, Failed, Outcome, Terminal
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from awa_django.transitions import plan
from awa_django.uniqueness import Unique
from tests import stored

pytestmark = pytest.mark.django_db

KEY = b"k" * 16
ALWAYS = "11111111"


def job(**fields: Any) -> JobInsert:
    return JobInsert(**{"kind": "k", "args": {}, "queue": "q", **fields})


def added(**fields: Any) -> int:
    stored_job = enqueue(job(**fields))
    assert stored_job is not None
    return stored_job.id


def _within(work: Any) -> Any:
    from awa_django.db import job_cursor

    with transaction.atomic(), job_cursor("default") as cursor:
        return work(QueueStoragePlane(), cursor)


def claimed(queue: str = "q", limit: int = 1, *, deadline: timedelta = timedelta(0)) -> list[Attempt]:
    attempts: list[Attempt] = _within(
        lambda plane, cursor: (
            plane.claim(cursor, queue, limit, deadline=deadline, aging=timedelta(0)).attempts
        )
    )
    _within(lambda plane, cursor: plane.advance(cursor, attempts))
    return attempts


def ended(attempt: Attempt, outcome: Outcome, *, dead_letters: bool = False) -> None:
    _within(lambda plane, cursor: plane.settle(cursor, [plan(attempt, outcome, dead_letters=dead_letters)]))


def in_state(state: str, **fields: Any) -> int:
    """The id of a new job in this state, ``dead`` among them."""
    match state:
        case "scheduled":
            return added(run_at=datetime(2999, 1, 1, tzinfo=UTC), **fields)
        case "available":
            return added(**fields)
    # Claimed before those that are to stay available.
    added(**{"priority": 1, **fields})
    (attempt,) = claimed(str(fields.get("queue", "q")))
    match state:
        case "completed":
            ended(attempt, Completed())
        case "retryable":
            ended(attempt, Failed("again"))
        case "failed":
            ended(attempt, Terminal("gone"))
        case "dead":
            ended(attempt, Terminal("gone"), dead_letters=True)
        case "cancelled":
            operations.cancel(attempt.job_id)
        case "waiting_external":
            stored.run(
                """
                INSERT INTO awa.leases (
                    lease_slot, lease_generation, ready_slot, ready_generation, job_id, queue, state, priority,
                    attempt, run_lease, max_attempts, lane_seq, enqueue_shard, attempted_at, callback_id
                )
                SELECT current_slot, generation, %s, %s, %s, %s, 'waiting_external', %s, %s, %s, %s, %s, %s,
                    now(), gen_random_uuid()
                FROM awa.lease_ring_state
                """,
                attempt.ready_slot, attempt.ready_generation, attempt.job_id, attempt.queue,
                attempt.lane_priority, attempt.attempt, attempt.run_lease, attempt.max_attempts,
                attempt.lane_seq, attempt.enqueue_shard,
            )  # fmt: skip
        case "running":
            pass
        case _:
            raise ValueError(state)
    return attempt.job_id


STATES = [*(state.value for state in JobState), "dead"]


def state_of(job_id: int) -> str:
    record = operations.load_job(job_id)
    return "dead" if record.dead_letter else record.job.state.value


@pytest.mark.parametrize("state", STATES)
def test_a_job_reads_as_what_it_is(state: str) -> None:
    job_id = in_state(state, tags=("t",), metadata={"m": 1}, args={"a": 1})
    record = operations.load_job(job_id)
    assert record.job.state == ("failed" if state == "dead" else state)
    assert (record.job.kind, record.job.queue, record.job.args) == ("k", "q", {"a": 1})
    assert (record.job.tags, record.job.metadata["m"], record.plane) == (("t",), 1, "queue_storage")
    assert (record.dead_letter is not None) == (state == "dead")
    ran = state not in ("scheduled", "available")
    assert (record.job.attempt, record.job.run_lease) == ((1, 1) if ran else (0, 0))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("verb", "from_states", "result"),
    [
        (operations.retry, {"failed", "cancelled", "waiting_external"}, "available"),
        (
            operations.cancel,
            {"scheduled", "available", "retryable", "running", "waiting_external"},
            "cancelled",
        ),
        (lambda ids: operations.dead_letter(ids, "manual"), {"failed"}, "dead"),
        (operations.retry_dead, {"dead"}, "available"),
        (operations.run_now, {"scheduled", "retryable"}, "available"),
        (lambda ids: operations.set_priority(ids, 4), {"scheduled", "available"}, None),
    ],
    ids=["retry", "cancel", "dead_letter", "retry_dead", "run_now", "set_priority"],
)
def test_a_verb_changes_the_states_it_is_for_and_no_other(
    verb: Any, from_states: set[str], result: str | None, state: str
) -> None:
    job_id = in_state(state)
    changed = verb(job_id)
    if state in from_states:
        assert changed.ids == [job_id]
        assert not changed.skipped
        assert state_of(job_id) == (result or state)
    else:
        assert not changed.jobs
        (skipped,) = changed.skipped
        assert (skipped.job_id, skipped.state) == (job_id, "failed" if state == "dead" else state)
        assert state_of(job_id) == state
        with pytest.raises(WrongState, match=str(job_id)):
            _ = changed.job


def test_an_id_that_names_no_job_is_told_from_one_in_the_wrong_state() -> None:
    changed = operations.cancel(4711)
    assert [item.reason for item in changed.skipped] == [Reason.MISSING]
    with pytest.raises(JobNotFound, match="4711"):
        _ = changed.job
    with pytest.raises(JobNotFound, match="4711"):
        operations.load_job(4711)
    assert operations.retry(2**70).matched == 0
    job_id = added()
    assert operations.cancel(JobFilter(ids=[job_id, 2**70, -(2**70)])).ids == [job_id]
    assert [record.job.id for record in operations.list_jobs(after=2**70).jobs] == [job_id]
    assert operations.list_jobs(after=-(2**70)).jobs == []
    assert operations.dead_letters(after=(datetime.now(UTC), 2**70)) == []
    with pytest.raises(InvalidJob, match="no job has an id as high"):
        operations.submit_batch(SetPriority(1), JobFilter(ids=[2**70]))
    with pytest.raises(JobNotFound):
        operations.load_job(2**70)


def test_ids_that_repeat_count_once_and_every_id_that_was_not_changed_is_reported() -> None:
    failed, running = in_state("failed"), in_state("running")
    changed = operations.retry([failed, failed, 2**40, running])
    assert changed.ids == [failed]
    assert {item.job_id: item.reason for item in changed.skipped} == {
        2**40: Reason.MISSING,
        running: Reason.WRONG_STATE,
    }


def test_a_retried_job_keeps_what_it_learned_and_has_all_its_attempts_again() -> None:
    job_id = in_state("failed", tags=("t",), metadata={"m": 1}, max_attempts=3)
    after = operations.retry(job_id).job
    assert (after.state, after.attempt, after.run_lease, after.finalized_at) == ("available", 0, 1, None)
    assert [entry["error"] for entry in after.errors] == ["gone"]
    assert (after.tags, after.metadata) == (("t",), {"m": 1})
    (attempt,) = claimed()
    assert (attempt.job_id, attempt.attempt, attempt.run_lease) == (job_id, 1, 2)


def test_a_retry_meets_the_holder_of_its_unique_key() -> None:
    mask = "11111000"  # not while failed
    job_id = in_state("failed", unique_key=KEY, unique_states=mask)
    holder = added(unique_key=KEY, unique_states=mask)
    other = in_state("failed", queue="other")
    changed = operations.retry([job_id, other])
    assert changed.ids == [other]
    (skipped,) = changed.skipped
    assert (skipped.reason, skipped.holder_id) == (Reason.UNIQUE_CONFLICT, holder)
    assert state_of(job_id) == "failed"
    with pytest.raises(UniqueConflict) as raised:
        operations.retry(job_id, on_conflict="raise")
    assert raised.value.holder_id == holder
    assert state_of(job_id) == "failed"
    assert stored.claims() == {KEY: holder}


def test_a_dead_letter_is_retried_with_overrides_and_its_lease_goes_on() -> None:
    job_id = in_state("dead", tags=("t",))
    after = operations.retry_dead(job_id, run_at=timedelta(hours=1), priority=1, queue="elsewhere").job
    assert (after.state, after.priority, after.queue, after.run_lease, after.attempt) == (
        "scheduled", 1, "elsewhere", 1, 0,
    )  # fmt: skip
    record = operations.load_job(job_id)
    assert (record.job.state, record.job.queue, record.dead_letter) == ("scheduled", "elsewhere", None)
    with pytest.raises(ValueError, match="priority"):
        operations.retry_dead(job_id, priority=9)


def test_a_dead_letter_whose_key_is_held_stays_one() -> None:
    job_id = in_state("dead", unique_key=KEY, unique_states="11111000")
    added(unique_key=KEY, unique_states="11111000")
    assert operations.retry_dead(job_id).skipped[0].reason is Reason.UNIQUE_CONFLICT
    with pytest.raises(UniqueConflict):
        operations.retry_dead(job_id, on_conflict="raise")
    assert [record.job.id for record in operations.dead_letters()] == [job_id]


def test_purging_a_dead_letter_frees_its_unique_key() -> None:
    job_id = in_state("dead", unique_key=KEY, unique_states=ALWAYS)
    assert stored.claims() == {KEY: job_id}
    assert operations.purge_dead(job_id).ids == [job_id]
    assert stored.claims() == {}
    with pytest.raises(JobNotFound):
        operations.load_job(job_id)


def test_discarding_a_kind_forgets_its_failures_and_dead_letters_and_frees_their_keys() -> None:
    failed = in_state("failed", unique_key=KEY, unique_states=ALWAYS)
    dead = in_state("dead")
    kept = in_state("failed", kind="other")
    cancelled = in_state("cancelled")
    assert operations.discard(kind="k").ids == sorted([failed, dead])
    assert stored.claims() == {}
    assert (state_of(kept), state_of(cancelled)) == ("failed", "cancelled")
    with pytest.raises(ValueError, match="either jobs or a kind"):
        operations.discard()


def test_moving_a_job_keeps_when_it_was_due_and_stamps_where_it_came_from_once() -> None:
    available, scheduled = in_state("available"), in_state("scheduled")
    before = operations.load_job(available).job
    changed = operations.move_queue([available, scheduled], "dest", priority=1)
    assert changed.ids == [available, scheduled]
    operations.move_queue([available, scheduled], "third")
    for job_id in (available, scheduled):
        record = operations.load_job(job_id)
        assert (record.job.queue, record.job.priority) == ("third", 1)
        assert record.job.metadata == {"_awa_original_queue": "q", "_awa_original_priority": 2}
    assert operations.load_job(available).job.run_at == before.run_at
    assert operations.set_priority(available, 1).skipped[0].reason is Reason.UNCHANGED
    assert [attempt.job_id for attempt in claimed("third")] == [available]
    assert claimed("q") == claimed("dest") == []


@pytest.mark.parametrize("end", ["cancel", "fail", "complete", "read"])
@pytest.mark.parametrize("deadline", [0, 60])
@pytest.mark.parametrize("how", ["priority", "queue"])
def test_a_job_that_was_moved_to_the_same_position_of_another_lane_is_one_job(
    how: str, deadline: int, end: str, django_capture_on_commit_callbacks: Any
) -> None:
    """Both of its ready rows have one id, one run lease and one position; only the lane tells them apart."""
    job_id = added(metadata={"m": 1})
    with django_capture_on_commit_callbacks(execute=True):  # the old lane's cursor passes it
        moved = (
            operations.set_priority(job_id, 3) if how == "priority" else operations.move_queue(job_id, "r")
        ).job
    (attempt,) = claimed(moved.queue, deadline=timedelta(seconds=deadline))
    assert [(row["job_id"], row["lane_seq"]) for row in stored.ready()] == [(job_id, 1), (job_id, 1)]
    match end:
        case "cancel":
            assert operations.cancel(job_id).ids == [job_id]
        case "fail":
            ended(attempt, Terminal("gone"))
            assert operations.retry(job_id).job.priority == moved.priority
        case "complete":
            ended(attempt, Completed())
    record = operations.load_job(job_id).job
    assert (record.queue, record.priority) == (moved.queue, moved.priority)
    (only,) = operations.list_jobs().jobs
    assert only.job == record


def test_a_batch_in_which_some_have_nothing_to_change_changes_the_others() -> None:
    first, second, third = (added(priority=priority) for priority in (2, 1, 2))
    changed = operations.set_priority([first, second, third], 1)
    assert changed.ids == [first, third]
    assert [(item.job_id, item.reason) for item in changed.skipped] == [(second, Reason.UNCHANGED)]


def test_everything_is_undone_with_the_callers_transaction() -> None:
    job_id = in_state("running", unique_key=KEY, unique_states="11101001")
    with stored.rolled_back():
        assert operations.cancel(job_id).count == 1
        assert state_of(job_id) == "cancelled"
        assert stored.claims() == {}
    assert state_of(job_id) == "running"
    assert stored.claims() == {KEY: job_id}


def test_a_deadlock_leaves_the_callers_transaction_usable_and_is_heard_of_only_if_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take, deadlocks = change._take, 1

    def taking(at: Any, *arguments: Any) -> Any:
        nonlocal deadlocks
        taken = take(at, *arguments)
        if deadlocks:
            deadlocks -= 1
            at.cursor.execute("DO $$ BEGIN RAISE deadlock_detected; END $$")
        return taken

    monkeypatch.setattr(change, "_take", taking)
    job_id = added()
    with transaction.atomic():
        assert operations.cancel(job_id).ids == [job_id]
        assert state_of(job_id) == "cancelled"
    deadlocks = change.DEADLOCKS
    with pytest.raises(OperationalError):
        operations.retry(job_id)
    assert state_of(job_id) == "cancelled"


def test_a_cancelled_job_keeps_the_key_of_its_state_only_if_nobody_else_has_it() -> None:
    mask = "01000010"  # available and cancelled, not running
    (first,) = [in_state("running", unique_key=KEY, unique_states=mask)]
    second = added(unique_key=KEY, unique_states=mask)
    assert operations.cancel(first).job.state == "cancelled"
    assert operations.load_job(first).job.errors == ()
    assert stored.claims() == {KEY: second}


def test_a_job_that_lost_its_unique_key_asks_for_it_again_when_it_is_retried() -> None:
    mask = "00100010"  # running and cancelled

    def claim_all() -> Any:
        def work(plane: Any, cursor: Any) -> Any:
            got = plane.claim(cursor, "q", 5, deadline=timedelta(0), aging=timedelta(0))
            plane.advance(cursor, [*got.attempts, *got.refused])
            return got

        got = _within(work)
        if got.refused:
            _within(lambda plane, cursor: plane.refuse(cursor, got.refused))
        return got

    first, second = (added(unique_key=KEY, unique_states=mask) for _ in range(2))
    got = claim_all()
    assert [[attempt.job_id for attempt in part] for part in (got.attempts, got.refused)] == [
        [first],
        [second],
    ]
    operations.retry(second)
    assert [attempt.job_id for attempt in claim_all().refused] == [second], "it runs beside the first"
    ended(got.attempts[0], Completed())
    operations.retry(second)
    assert [attempt.job_id for attempt in claim_all().attempts] == [second]
    assert stored.claims() == {KEY: second}


@pytest.mark.parametrize("where", ["narrow", "whole"])
def test_a_cancelled_duplicate_whose_mask_claims_cancelled_is_retried_only_with_its_key(where: str) -> None:
    mask = "01001010"  # available, retryable and cancelled
    if where == "narrow":
        first = added(priority=1, unique_key=KEY, unique_states=mask)
        (attempt,) = claimed()
        newer = added(unique_key=KEY, unique_states=mask)
        ended(attempt, Failed("again"))
    else:  # one that waits for its time, which this mask does not cover
        first = in_state("scheduled", unique_key=KEY, unique_states=mask)
        newer = added(unique_key=KEY, unique_states=mask)
        operations.cancel(first)
    assert (state_of(first), stored.claims()) == ("cancelled", {KEY: newer})
    (skipped,) = operations.retry(first).skipped
    assert (skipped.reason, skipped.holder_id) == (Reason.UNIQUE_CONFLICT, newer)
    (attempt,) = claimed()  # it lets go of the key
    assert operations.retry(first).ids == [first]
    assert stored.claims() == {KEY: first}


def test_cancelling_by_unique_key_finds_every_sort_of_job_that_has_not_finished_one_at_a_time() -> None:
    unique = Unique(by_queue=True, states=0)
    fields: dict[str, Any] = {
        "args": {"n": 1}, "unique_key": unique.key("k", "q", {"n": 1}), "unique_states": unique.bits,
    }  # fmt: skip
    running = in_state("running", **fields)
    waiting = in_state("waiting_external", **fields)
    retryable = in_state("retryable", **fields)
    in_state("completed", **fields)
    in_state("failed", **fields)
    scheduled = in_state("scheduled", **fields)
    available = in_state("available", **fields)
    found = []
    while (cancelled := operations.cancel_by_unique_key("k", queue="q", args={"n": 1})) is not None:
        found.append(cancelled.id)
    assert found == [running, waiting, retryable, scheduled, available]
    assert operations.cancel_by_unique_key("k", args={"n": 1}) is None


def test_a_filter_that_means_everything_is_refused_unless_that_is_meant() -> None:
    ids = [in_state("failed"), in_state("dead")]
    for verb in (operations.retry, operations.retry_dead, operations.purge_dead, operations.cancel):
        with pytest.raises(ValueError, match="allow_all"):
            verb(JobFilter())
    assert [state_of(job_id) for job_id in ids] == ["failed", "dead"]
    assert operations.retry(JobFilter(), allow_all=True).ids == ids[:1]
    assert operations.retry_dead(JobFilter(), allow_all=True).ids == ids[1:]


def test_a_filter_that_more_jobs_match_than_one_call_changes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verbs, "MOST", 2)
    failed = [in_state("failed") for _ in range(3)]
    with monkeypatch.context() as looking:
        looking.setattr(verbs, "change_chosen", None)  # nothing is locked
        with pytest.raises(TooManyJobs, match="submit_batch"):
            operations.retry_failed(queue="q")
    assert {state_of(job_id) for job_id in failed} == {"failed"}
    operations.discard(failed[0])
    # What only the jobs themselves tell: whether one is a dead letter, and the tags of one that ran and was cancelled.
    in_state("dead")
    cancelled = [in_state("cancelled", tags=tags) for tags in (("red",), (), ("red",))]
    assert operations.retry(JobFilter(state="cancelled", tag="red")).ids == cancelled[::2]
    assert operations.retry_failed(queue="q").ids == failed[1:]


def test_a_filter_chooses_jobs_by_what_they_are() -> None:
    tagged = in_state("failed", tags=("red",))
    in_state("failed")
    other_kind = in_state("failed", kind="other")
    dead = in_state("dead", tags=("red",))
    assert operations.dead_letter(JobFilter(tag="red"), "bulk").ids == [tagged]
    assert operations.retry(JobFilter(kind="other")).ids == [other_kind]
    assert operations.purge_dead(JobFilter(tag="red", queue="q")).ids == sorted([tagged, dead])
    assert operations.retry(JobFilter(state="nonsense")).matched == 0


def test_failed_jobs_are_retried_by_kind_or_by_queue() -> None:
    first, second = in_state("failed"), in_state("failed", kind="other")
    dead = in_state("dead")
    with pytest.raises(ValueError, match="either"):
        operations.retry_failed()
    with pytest.raises(ValueError, match="either"):
        operations.retry_failed(kind="k", queue="q")
    by_kind = operations.retry_failed(kind="k")
    assert (by_kind.ids, by_kind.pruned_failed) == ([first], None)
    stored.run(
        "INSERT INTO awa.queue_terminal_rollups (queue, priority, pruned_failed_count) VALUES ('q', 1, 3)"
    )
    by_queue = operations.retry_failed(queue="q")
    assert (by_queue.ids, by_queue.pruned_failed) == ([second], 3)
    assert state_of(dead) == "dead"


def test_dead_letters_page_without_gaps_where_they_died_at_one_instant() -> None:
    ids = [in_state("failed", tags=("red",)) for _ in range(5)]
    operations.dead_letter(ids, "bulk")
    assert len({record.dead_letter.at for record in operations.dead_letters() if record.dead_letter}) == 1
    seen: list[int] = []
    after = None
    while page := operations.dead_letters(JobFilter(queue="q"), after=after, limit=2):
        seen += [record.job.id for record in page]
        last = page[-1]
        assert last.dead_letter is not None
        assert (last.dead_letter.reason, last.dead_letter.original_run_lease) == ("bulk", 1)
        after = (last.dead_letter.at, last.job.id)
    assert seen == sorted(ids, reverse=True)
    assert operations.dead_letters(limit=0) == []
    with pytest.raises(ValueError, match="limit"):
        operations.dead_letters(limit=-1)


def test_a_long_list_of_ids_is_changed_in_one_transaction() -> None:
    ids = [job_id for job_id in enqueue_many([job() for _ in range(2300)]).ids if job_id is not None]
    with stored.rolled_back():
        assert operations.cancel(ids).count == 2300
    assert operations.cancel(ids).count == 2300
    assert claimed(limit=10) == []


def test_a_job_made_due_keeps_its_attempts_its_errors_and_its_lane() -> None:
    job_id = in_state("retryable", priority=3)
    # The backoff of a first attempt may be over before the job is made due.
    stored.run("UPDATE awa.deferred_jobs SET run_at = run_at + interval '1 hour'")
    before = operations.load_job(job_id).job
    operations.run_now(job_id)
    after = operations.load_job(job_id).job
    assert (after.attempt, after.priority, after.errors) == (1, before.priority, before.errors)
    assert after.run_at < before.run_at
    assert [attempt.job_id for attempt in claimed()] == [job_id]


def test_a_callers_setting_survives() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL jit = on")
        operations.cancel(in_state("available"))
        cursor.execute("SHOW jit")
        assert cursor.fetchone() == ("on",)


def test_one_look_shares_its_transaction_and_its_time_limit_with_the_reads_in_it() -> None:
    job_id = in_state("available")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 240000")
        with operations.one_look(statement_timeout=timedelta(milliseconds=90_500)) as look:
            cursor.execute("SHOW statement_timeout")
            assert cursor.fetchone() == ("90500ms",)
            assert operations.load_job(job_id).job.id == job_id
            assert operations.state_counts().available == 1
            assert not look.read_only
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("4min",)


def test_a_look_says_that_the_database_takes_no_changes() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        with operations.one_look() as look:
            assert look.read_only


def test_empty_canonical_tables_are_not_asked() -> None:
    with operations.one_look() as look:
        assert [plane.name for plane in look.planes] == ["queue_storage"]
    stored.run("INSERT INTO awa.jobs_hot (kind, queue) VALUES ('k', 'q')")
    with operations.one_look() as look:
        assert [plane.name for plane in look.planes] == ["queue_storage", "canonical"]
