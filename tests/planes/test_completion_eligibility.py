"""Which successes may be recorded compactly (vector completion-eligibility.json)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import Completed, Failed
from awa_django.planes.queue_storage.settle import is_compact
from awa_django.transitions import plan

CASES = json.loads(
    (
        Path(__file__).parent.parent
        / "contract"
        / "vectors"
        / "queue-storage"
        / "completion-eligibility.json"
    ).read_text()
)["cases"]


def attempt(job: dict[str, Any]) -> Attempt:
    now = datetime.now(UTC)
    payload = {key: job[key] for key in ("metadata", "tags", "errors", "progress") if key in job}
    key = job.get("unique_key")
    return Attempt(
        job_id=1, run_lease=1, kind="k", queue="q", args={}, attempt=1, max_attempts=25, priority=2,
        lane_priority=2, ready_slot=0, ready_generation=0, lane_seq=1, enqueue_shard=0, claim_slot=0,
        receipt_id=1, batch_id=1, batch_index=1, run_at=now, deadline_at=None, attempted_at=None,
        created_at=now, unique_key=bytes.fromhex(key) if key else None,
        unique_states=job.get("unique_states"), payload=payload or None,
    )  # fmt: skip


# A lease is not part of the job: an attempt that may have one is sent the other way by the worker that made it.
@pytest.mark.parametrize(
    "case", [case for case in CASES if "lease" not in case["job"]], ids=lambda case: case["case"]
)
def test_eligibility_is_that_of_the_contract(case: dict[str, Any]) -> None:
    assert is_compact(plan(attempt(case["job"]), Completed())) is case["compact"]


def test_only_a_success_is_compact() -> None:
    assert not is_compact(plan(attempt({}), Failed("x")))


def test_a_success_that_keeps_a_result_is_not_compact() -> None:
    assert not is_compact(plan(attempt({}), Completed(), metadata={"_awa_django_result": 1}))


def test_a_row_receipt_is_not_compact() -> None:
    assert not is_compact(plan(attempt({})._replace(batch_id=None, batch_index=None), Completed()))
