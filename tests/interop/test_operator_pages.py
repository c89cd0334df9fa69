"""What operators see through us is what the real client shows, and its workers are seen like ours."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from awa_django import operations
from awa_django.operations import Runtime
from tests import databases, stored
from tests.interop.test_mixed_fleet import awa_pg_worker
from tests.interop.test_operations import cli, url
from tests.test_dumps import again
from tests.test_operations import ALWAYS, KEY, STATES, added, claimed, in_state
from tests.workers import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interop]


def normal(document: Any) -> Any:
    """With times as instants, so that spellings of one do not differ."""
    if isinstance(document, dict):
        return {key: normal(value) for key, value in document.items()}
    if isinstance(document, list):
        return [normal(value) for value in document]
    if isinstance(document, str) and len(document) > 19 and document[4:5] == "-" and "T" in document:
        try:
            return datetime.fromisoformat(document)
        except ValueError:
            return document
    return document


def theirs(*arguments: object) -> dict[str, Any]:
    said = cli("job", *map(str, arguments))
    # On a busy machine it notes slow statements before it answers.
    document, _ = json.JSONDecoder().raw_decode(said, said.index("{\n"))
    found: dict[str, Any] = normal(document)
    return found


def ours(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = normal(json.loads(json.dumps(document)))
    return found


def what_happened(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """A timeline without its words."""
    return [
        tuple(entry[key] for key in ("timestamp", "state", "detail", "is_error"))
        for entry in document["timeline"]
    ]


def test_dumps_are_those_of_the_real_client() -> None:
    for state in STATES:
        fields: dict[str, Any] = {"args": {"a": 1}, "metadata": {"password": "x"}, "tags": ("t", "u")}
        job_id = in_state(state, **fields)
        stored.run("UPDATE awa.leases SET callback_timeout_at = now() + interval '1 hour'")
        stored.run(
            "INSERT INTO awa.attempt_state (job_id, run_lease, progress, callback_filter, callback_on_fail)"
            " SELECT job_id, run_lease, '{\"percent\": 5}', 'payload.ok', 'false' FROM awa.leases WHERE job_id = %s",
            job_id,
        )
        mine, real = ours(operations.dump_job(job_id, redacted=False)), theirs("dump", job_id)
        assert list(mine) == list(real), state
        for part in ("job", "summary", *(("dlq",) if state == "dead" else ())):
            assert list(mine[part]) == list(real[part])
            assert mine[part] == real[part]
        if state != "retryable":  # whose attempt the real client shows as one that runs and has ended
            assert what_happened(mine) == what_happened(real), state
        mine, real = ours(operations.dump_run(job_id, redacted=False)), theirs("dump-run", job_id)
        assert list(mine) == list(real)
        assert (bool(mine.pop("notes")), mine) == (bool(real.pop("notes")), real), state


def test_dumps_of_older_runs_are_those_of_the_real_client_and_so_are_the_refusals() -> None:
    job_id = added(unique_key=KEY, unique_states=ALWAYS)
    again(job_id, "first")
    again(job_id, "second")
    claimed()
    mine, real = ours(operations.dump_job(job_id)), theirs("dump", job_id)
    assert mine["job"] == real["job"]
    assert what_happened(mine) == what_happened(real)
    for attempt in (1, 2, 3):
        mine, real = (
            ours(operations.dump_run(job_id, attempt)),
            theirs("dump-run", job_id, "--attempt", attempt),
        )
        assert list(mine) == list(real)
        assert (len(mine.pop("notes")), mine) == (len(real.pop("notes")), real)
    for attempt in (-1, 0, 4):
        refused = databases.awa_cli(
            url(), "job", "dump-run", str(job_id), f"--attempt={attempt}", check=False
        )
        assert refused.returncode == 1
        with pytest.raises(ValueError, match="attempt"):
            operations.dump_run(job_id, attempt)


def test_a_real_worker_is_seen_with_its_queue_and_kinds() -> None:
    def reported() -> Runtime | None:
        found = operations.runtime_overview().instances
        return next((each for each in found if each.leader and each.healthy), None)

    with awa_pg_worker(url(), 7):
        found = wait_until(reported, what="the row of the real worker")
        overview = operations.runtime_overview()
        kinds = {each.kind: each for each in operations.kind_overview()}
    assert (overview.live, overview.leaders, overview.healthy, overview.attention) == (1, 1, 1, [])
    assert {"noop", "spell", "flaky", "echo"} <= set(found.kinds)
    (queue,) = overview.queues
    assert (queue.queue, queue.live, queue.capacity, queue.config_mismatch) == ("default", 1, 7, False)
    assert queue.config["mode"] == "hard_reserved"
    assert (kinds["noop"].handled_by, kinds["noop"].descriptor is not None) == (1, True)
    assert "default" in operations.known_queues()
    assert set(found.kinds) <= set(operations.known_kinds())
