"""The order of jobs that have a key in common."""

from __future__ import annotations

import pytest

from awa_django.enqueue import enqueue, enqueue_many
from awa_django.jobs import JobInsert
from tests import stored
from tests.test_operations import claimed

pytestmark = pytest.mark.django_db


def test_jobs_of_one_key_are_handed_out_in_their_order_whatever_lies_on_the_other_shards() -> None:
    stored.use_shards("q", 4)
    keyed: list[int] = []
    for number in range(25):
        enqueue_many([JobInsert("k", {"n": number}, "q")] * 3)
        one = enqueue(JobInsert("k", {"n": number}, "q", ordering_key=b"customer-42"))
        assert one is not None
        more = enqueue_many([JobInsert("k", {"n": number}, "q", ordering_key=b"customer-42")] * 3)
        keyed += [one.id, *(job_id for job_id in more.ids if job_id is not None)]
    rows = stored.ready()
    assert {row["enqueue_shard"] for row in rows} == {0, 1, 2, 3}
    assert len({row["enqueue_shard"] for row in rows if row["job_id"] in keyed}) == 1
    order: list[int] = []
    while attempts := claimed(limit=7):
        order += [attempt.job_id for attempt in attempts]
    assert sorted(order) == [row["job_id"] for row in rows]
    assert [job_id for job_id in order if job_id in keyed] == keyed
