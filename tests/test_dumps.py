"""Jobs and runs of them as documents, and the timeline of a job."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from awa_django import operations
from awa_django.errors import JobNotFound
from awa_django.outcomes import Failed, Terminal
from awa_django.planes.records import JobRecord
from awa_django.redaction import MASK
from awa_django.states import JobState
from tests import stored
from tests.test_operations import STATES, added, claimed, ended, in_state
from tests.test_operator_reads import canonical

pytestmark = pytest.mark.django_db

JOB = [
    "id", "kind", "queue", "args", "state", "priority", "attempt", "run_lease", "max_attempts", "run_at",
    "heartbeat_at", "deadline_at", "attempted_at", "finalized_at", "created_at", "errors", "metadata",
    "tags", "unique_key", "unique_states", "callback_id", "callback_timeout_at", "callback_filter",
    "callback_on_complete", "callback_on_fail", "callback_transform", "progress",
]  # fmt: skip
SUMMARY = ["original_priority", "can_retry", "can_cancel", "error_count", "latest_error"]
ENTRY = ["timestamp", "label", "state", "detail", "is_error"]
RUN = [
    "job_id", "kind", "queue", "selected_attempt", "current_attempt", "current_run_lease",
    "selected_run_lease", "source", "state", "started_at", "finished_at", "error", "terminal", "progress",
    "metadata", "callback", "raw_error_entry", "notes",
]  # fmt: skip
CALLBACK = [
    "callback_id", "callback_timeout_at", "callback_filter", "callback_on_complete", "callback_on_fail",
    "callback_transform",
]  # fmt: skip


def dumped(job_id: int, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(operations.dump_job(job_id, **options), allow_nan=False))
    return found


def run(job_id: int, attempt: int | None = None, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        json.dumps(operations.dump_run(job_id, attempt, **options), allow_nan=False)
    )
    return found


@pytest.mark.parametrize("state", STATES)
def test_a_dump_has_the_members_of_the_contract_and_no_others(state: str) -> None:
    job_id = in_state(state, args={"a": 1}, metadata={"m": 1}, tags=("t",))
    found = dumped(job_id)
    assert set(found) == {"job", "summary", "timeline"} | ({"dlq"} if state == "dead" else set())
    assert list(found["job"]) == JOB
    assert list(found["summary"]) == SUMMARY
    assert [list(entry) for entry in found["timeline"]] == [ENTRY] * len(found["timeline"])
    job, summary = found["job"], found["summary"]
    assert (job["id"], job["args"], job["metadata"], job["tags"]) == (job_id, {"a": 1}, {"m": 1}, ["t"])
    assert job["state"] == ("failed" if state == "dead" else state)
    assert summary["can_retry"] == (state in ("failed", "cancelled", "waiting_external"))
    assert summary["can_cancel"] == (state not in ("completed", "failed", "cancelled", "dead"))
    errors = 1 if state in ("retryable", "failed", "dead") else 0
    assert (summary["error_count"], job["errors"] is None) == (errors, not errors)
    assert summary["latest_error"] == (job["errors"][-1] if errors else None)
    if state == "dead":
        assert list(found["dlq"]) == ["reason", "dlq_at", "original_run_lease"]
        assert (found["dlq"]["reason"], found["dlq"]["original_run_lease"]) == ("terminal_error", 1)


@pytest.mark.parametrize("state", [state.value for state in JobState])
def test_a_canonical_job_is_dumped_alike(state: str) -> None:
    job_id = canonical(state, attempt=1, run_lease=1, attempted_at=datetime.now(UTC), unique_key=b"k" * 16)
    found = dumped(job_id, plane="canonical")
    assert (list(found["job"]), list(found["summary"])) == (JOB, SUMMARY)
    assert (found["job"]["state"], found["job"]["unique_key"]) == (state, [107] * 16)
    assert list(run(job_id, plane="canonical")) == RUN


def test_times_are_rfc_3339_in_utc() -> None:
    job_id = canonical("failed", finalized_at="2026-03-01 12:00:00.5+13", created_at="2026-02-28 23:00:00+00")
    job = dumped(job_id)["job"]
    assert (job["finalized_at"], job["created_at"]) == ("2026-02-28T23:00:00.500000Z", "2026-02-28T23:00:00Z")


@pytest.mark.parametrize("state", STATES)
def test_the_current_run_is_dumped_from_the_job(state: str) -> None:
    job_id = in_state(state, metadata={"m": 1})
    found = run(job_id)
    job = operations.load_job(job_id).job
    assert list(found) == RUN
    assert (found["selected_attempt"], found["current_attempt"]) == (job.attempt, job.attempt)
    assert (found["selected_run_lease"], found["current_run_lease"]) == (job.run_lease, job.run_lease)
    assert (found["source"], found["state"]) == ("current_job_row", job.state)
    # A claim without a deadline leaves a completed job without its start.
    assert (found["started_at"] is None) == (state in ("scheduled", "available", "completed"))
    assert (found["finished_at"] is None) == (state not in ("completed", "failed", "cancelled", "dead"))
    failed = state in ("retryable", "failed", "dead")
    assert (found["error"], found["terminal"]) == (
        ({"retryable": "again"}.get(state, "gone"), state != "retryable") if failed else (None, None)
    )
    assert (found["raw_error_entry"] is not None) == failed
    assert found["metadata"] == {"m": 1}
    assert bool(found["notes"]) == (job.attempt == 0)
    if state == "waiting_external":
        assert list(found["callback"]) == CALLBACK
        assert found["callback"]["callback_id"] == str(job.callback_id)
    else:
        assert found["callback"] is None


def again(job_id: int, error: str = "again") -> None:
    """Have a new job fail its first attempt, and make it available for the second."""
    (attempt,) = claimed()
    assert attempt.job_id == job_id
    ended(attempt, Failed(error))
    assert operations.run_now(job_id).ids == [job_id]


def test_an_older_attempt_is_put_together_from_its_error_entry() -> None:
    job_id = added(metadata={"m": 1})
    again(job_id)
    (attempt,) = claimed()
    past = run(job_id, 1)
    assert list(past) == RUN
    assert (past["selected_attempt"], past["current_attempt"], past["source"]) == (1, 2, "error_history")
    assert (past["state"], past["error"], past["terminal"], past["selected_run_lease"]) == (
        "retryable", "again", False, None,
    )  # fmt: skip
    assert (past["started_at"], past["progress"], past["metadata"], past["callback"]) == (None,) * 4
    assert past["finished_at"].endswith("Z")
    assert past["raw_error_entry"]["attempt"] == 1
    assert len(past["notes"]) == 2
    assert run(job_id) == run(job_id, 2)
    assert (run(job_id, 2)["state"], run(job_id, 2)["error"]) == ("running", None)
    ended(attempt, Terminal("gone"))
    assert run(job_id, 2)["error"] == "gone"
    assert run(job_id, 1)["error"] == "again"


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (-1, "0 or a number of an attempt is needed, not -1"),
        (True, "not True"),
        ("1", "not '1'"),
        (0, "has started, so there is no attempt 0; the current one is 2"),
        (3, "is at attempt 2, there is no 3 yet"),
    ],
)
def test_an_attempt_that_there_is_not_is_refused(attempt: Any, message: str) -> None:
    job_id = added()
    again(job_id)
    claimed()
    with pytest.raises(ValueError, match=message):
        operations.dump_run(job_id, attempt)


def test_an_attempt_that_left_no_error_is_refused_and_so_is_a_job_that_there_is_not() -> None:
    job_id = canonical("running", attempt=3, run_lease=3, errors=[json.dumps({"error": "x", "attempt": 1})])
    assert run(job_id, 1)["error"] == "x"
    with pytest.raises(ValueError, match=f"job {job_id} has no error entry of attempt 2"):
        operations.dump_run(job_id, 2)
    waits = added()
    assert run(waits, 0)["selected_attempt"] == 0
    with pytest.raises(ValueError, match="has no error entry of attempt 1"):
        operations.dump_run(waits, 1)
    for dump in (operations.dump_job, operations.dump_run):
        with pytest.raises(JobNotFound):
            dump(4711)


def test_a_retried_job_has_attempt_zero_again_and_its_old_errors_are_of_older_attempts() -> None:
    job_id = in_state("failed")
    operations.retry(job_id)
    assert (run(job_id)["selected_attempt"], run(job_id)["error"]) == (0, None)
    assert run(job_id, 1)["error"] == "gone"
    claimed()
    found = run(job_id, 1)
    assert (found["source"], found["state"], found["error"]) == ("current_job_row", "running", None)


def test_secrets_are_masked_unless_asked_for() -> None:
    error = json.dumps({"error": "boom", "attempt": 1, "token": "t1"})
    job_id = canonical(
        "failed",
        attempt=1,
        args='{"items": [{"api_key": "a1"}], "n": 1}',
        metadata='{"password": "p1"}',
        progress='{"cookie": "c1"}',
        errors=[error],
    )
    for dump in (dumped, run):
        masked, plain = json.dumps(dump(job_id)), json.dumps(dump(job_id, redacted=False))
        secrets = ["t1", "p1", "c1"] + (["a1"] if dump is dumped else [])
        assert all(f'"{secret}"' in plain for secret in secrets)
        assert not any(f'"{secret}"' in masked for secret in secrets)
    assert dumped(job_id)["job"]["args"] == {"items": [{"api_key": MASK}], "n": 1}


def test_a_secret_in_an_error_that_is_an_object_is_masked_wherever_the_error_is_text() -> None:
    error = json.dumps({"error": {"reason": "no", "api_key": "k1"}, "attempt": 1})
    job_id = canonical("failed", attempt=1, errors=[error])
    for dump in (dumped, run):
        assert "k1" in json.dumps(dump(job_id, redacted=False))
        assert "k1" not in json.dumps(dump(job_id))
    assert "no" in dumped(job_id)["timeline"][-1]["detail"]


def test_every_part_of_a_job_is_shown_to_the_projects_function(settings: Any) -> None:
    seen: set[tuple[str, str]] = set()

    def hook(kind: str, part: str, value: Any) -> Any:
        seen.add((kind, part))
        return "shown" if part in ("errors", "expression") else value

    settings.AWA = {"REDACT": hook}
    job_id = canonical(
        "waiting_external",
        attempt=1,
        run_lease=1,
        callback_id=uuid.uuid4(),
        callback_filter="payload.ok",
        errors=[json.dumps({"error": "boom", "attempt": 1})],
        progress='{"percent": 5}',
    )
    found = dumped(job_id)
    assert seen == {("k", part) for part in ("args", "metadata", "errors", "progress", "expression")}
    assert (found["job"]["errors"], found["job"]["callback_filter"]) == (["shown"], "shown")
    assert "boom" not in json.dumps(found)
    assert "boom" not in json.dumps(run(job_id))


def labels(record: JobRecord) -> list[str]:
    return [entry.label for entry in operations.timeline(record)]


def test_a_timeline_tells_what_happened_in_order() -> None:
    job_id = added()
    assert labels(operations.load_job(job_id)) == ["Created"]
    again(job_id)
    (attempt,) = claimed()
    assert labels(operations.load_job(job_id)) == ["Created", "Attempt 1 failed", "Attempt 2 is running"]
    ended(attempt, Terminal("gone"))
    entries = operations.timeline(operations.load_job(job_id))
    assert [entry.label for entry in entries] == [
        "Created", "Attempt 1 failed", "Attempt 2 started", "Attempt 2 failed", "Failed",
    ]  # fmt: skip
    assert [entry.detail for entry in entries] == [None, "again", None, "gone", None]
    assert [entry.is_error for entry in entries] == [False, True, False, True, False]
    assert entries == sorted(entries, key=lambda entry: entry.timestamp)


@pytest.mark.parametrize(
    ("state", "last"),
    [
        ("completed", "Completed"),
        ("cancelled", "Cancelled"),
        ("waiting_external", "Attempt 1 waits for its callback"),
    ],
)
def test_a_timeline_ends_where_the_job_is(state: str, last: str) -> None:
    job_id = in_state(state)
    stored.run("UPDATE awa.leases SET attempted_at = clock_timestamp()")
    assert labels(operations.load_job(job_id))[-1] == last


def test_error_entries_of_any_shape_are_in_the_timeline_and_in_dumps() -> None:
    errors = [
        "plain text", 7, None, ["list"], {}, {"error": None, "attempt": "1", "at": "yesterday"},
        {"error": {"deep": 1}, "attempt": 2, "at": "2026-01-01T00:00:00"}, {"error": "x", "at": "2026-01-01T00:00:00Z"},
    ]  # fmt: skip
    job_id = canonical(
        "failed", attempt=2, finalized_at=datetime.now(UTC), errors=[json.dumps(each) for each in errors]
    )
    entries = [entry for entry in operations.timeline(operations.load_job(job_id)) if entry.is_error]
    assert len(entries) == len(errors)
    assert [(entry.label, entry.detail) for entry in entries[:2]] == [
        ("Attempt 2 failed", "{'deep': 1}"),
        ("Error", "x"),
    ]
    assert dumped(job_id, redacted=False)["job"]["errors"] == errors
    assert run(job_id)["error"] == "{'deep': 1}"


@pytest.mark.parametrize(
    "payload", ['"text"', "[1]", '{"metadata": [1], "errors": {"a": 1}, "tags": "t"}', "null"]
)
def test_jobs_whose_metadata_is_no_object_are_dumped(payload: str) -> None:
    job_id = added()
    stored.run("UPDATE awa.ready_entries SET payload = %s::jsonb WHERE job_id = %s", payload, job_id)
    found = dumped(job_id)
    assert (found["job"]["metadata"], found["job"]["errors"], found["summary"]["original_priority"]) == (
        {},
        None,
        2,
    )
    assert run(job_id)["metadata"] == {}


def test_a_job_that_python_cannot_hold_is_dumped_as_text_or_masked() -> None:
    job_id = added()
    stored.run(
        "UPDATE awa.ready_entries SET args = ('1' || repeat('0', 400) || '.5')::jsonb WHERE job_id = %s",
        job_id,
    )
    assert dumped(job_id)["job"]["args"] == MASK
    assert dumped(job_id, redacted=False)["job"]["args"].startswith("1000")
    assert any("cannot be read" in note for note in run(job_id)["notes"])


def test_a_job_stamped_with_another_priority_says_so() -> None:
    job_id = added()
    operations.set_priority(job_id, 4)
    assert dumped(job_id)["summary"]["original_priority"] == 2
