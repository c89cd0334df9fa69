"""Worker processes as operators see them."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest

from awa_django import operations
from awa_django.errors import RuntimeNotFound
from awa_django.operations import Runtime, RuntimeOverview
from tests import stored

pytestmark = pytest.mark.django_db

RESERVED = {
    "mode": "hard_reserved", "max_workers": 5, "min_workers": None, "weight": None, "global_max_workers": None,
    "poll_interval_ms": 200, "deadline_duration_secs": 0, "priority_aging_interval_secs": 60, "claimers": 1,
    "claim_batch_size": 512, "dlq_enabled": True, "rate_limit": None,
}  # fmt: skip
WEIGHTED = {**RESERVED, "mode": "weighted", "max_workers": None, "min_workers": 2, "weight": 3}


def queue(name: str = "mail", in_flight: int = 0, held: int | None = None, **config: Any) -> dict[str, Any]:
    return {"queue": name, "in_flight": in_flight, "overflow_held": held, "config": {**RESERVED, **config}}


def report(*, silent: str = "0 s", queues: Any = (), kinds: Any = None, **columns: Any) -> uuid.UUID:
    """The row of a worker process that was last seen so long ago."""
    values = {
        "instance_id": uuid.uuid4(),
        "hostname": "box",
        "pid": 7,
        "version": "0.6.9",
        "snapshot_interval_ms": 10_000,
        "healthy": True,
        "postgres_connected": True,
        "poll_loop_alive": True,
        "heartbeat_alive": True,
        "maintenance_alive": True,
        "shutting_down": False,
        "leader": True,
        "storage_capability": "queue_storage",
        "queues": json.dumps(queues),
        "job_kind_descriptor_hashes": json.dumps(kinds or {}),
        **columns,
    }
    stored.run(
        f"INSERT INTO awa.runtime_instances ({', '.join(values)}, started_at, last_seen_at)"
        f" VALUES ({', '.join(['%s'] * len(values))}, now() - interval '1 hour', now() - %s::interval)",
        *values.values(),
        silent,
    )
    return uuid.UUID(str(values["instance_id"]))


def looked_at(instance_id: uuid.UUID, silent: str) -> tuple[Runtime, RuntimeOverview]:
    """What is read of a worker just when it has been silent for so long; again if the looks took too long for that."""
    while True:
        began = time.monotonic()
        stored.run("UPDATE awa.runtime_instances SET last_seen_at = clock_timestamp() - %s::interval", silent)
        found = operations.runtime(instance_id), operations.runtime_overview()
        if time.monotonic() - began < 0.4:
            return found


@pytest.mark.parametrize(
    ("interval_ms", "silent", "stale"),
    [
        (10_000, "29 s", False),
        (10_000, "31 s", True),
        (60_000, "170 s", False),
        (60_000, "190 s", True),
        (1, "29 s", False),
        (1, "31 s", True),
        (12_500, "37 s", False),
        (12_500, "38 s", True),
        (2**62, "1 day", False),
        (-5, "31 s", True),
    ],
)
def test_a_worker_is_stale_after_three_of_its_intervals_and_half_a_minute_at_least(
    interval_ms: int, silent: str, stale: bool
) -> None:
    found, overview = looked_at(report(snapshot_interval_ms=interval_ms), silent)
    assert (found.stale, found.live) == (stale, not stale)
    assert (overview.total, overview.live, overview.stale) == (1, int(not stale), int(stale))


def test_a_worker_shows_all_that_it_reported() -> None:
    instance_id = report(
        queues=[queue("mail", 3), queue("bulk", 1)],
        kinds={"send": "h1", "bill": "h2"},
        global_max_workers=9,
        transition_role="canonical_drain",
        maintenance_alive=False,
        healthy=False,
        leader=False,
    )
    found = operations.runtime(str(instance_id))
    assert (found.instance_id, found.name, found.version) == (instance_id, "box:7", "0.6.9")
    assert (found.storage_capability, found.transition_role) == ("queue_storage", "canonical_drain")
    assert (found.healthy, found.leader, found.maintenance_alive, found.poll_loop_alive) == (
        False, False, False, True,
    )  # fmt: skip
    assert found.snapshot_interval.total_seconds() == 10
    assert (found.global_max_workers, found.in_flight, found.kinds) == (9, 4, ("bill", "send"))
    assert [each.queue for each in found.queues] == ["bulk", "mail"]
    assert found.queues[1].config["claim_batch_size"] == 512


@pytest.mark.parametrize("given", [uuid.uuid4(), "11111111-1111-1111-1111-111111111111", "no uuid", "", None])
def test_an_id_that_no_worker_has_is_said_so(given: Any) -> None:
    report()
    with pytest.raises(RuntimeNotFound, match=r"there is no worker"):
        operations.runtime(given)


def test_figures_of_a_queue_are_those_of_live_workers_and_stale_ones_are_only_counted() -> None:
    report(queues=[queue("mail", 3), queue("bulk", 1, max_workers=2)])
    report(queues=[queue("mail", 4)], leader=False)
    report(queues=[queue("mail", 50, max_workers=99), queue("old", 1)], silent="2 hours")
    overview = operations.runtime_overview()
    assert (overview.total, overview.live, overview.stale, overview.healthy, overview.leaders) == (
        3,
        2,
        1,
        2,
        1,
    )
    mail, bulk, old = (
        next(each for each in overview.queues if each.queue == name) for name in ("mail", "bulk", "old")
    )
    assert (mail.instances, mail.live, mail.in_flight, mail.capacity, mail.overflow_held) == (
        3,
        2,
        7,
        10,
        None,
    )
    assert (bulk.live, bulk.in_flight, bulk.capacity) == (1, 1, 2)
    assert (old.instances, old.live, old.in_flight, old.capacity, old.config_mismatch) == (
        1,
        0,
        0,
        None,
        False,
    )
    assert old.config["mode"] == "hard_reserved"
    assert overview.attention == []


def test_a_weighted_queue_may_have_what_it_is_guaranteed_and_all_that_is_guaranteed_to_none() -> None:
    queues = [
        {**queue("mail", 3, 1), "config": {**WEIGHTED, "global_max_workers": 10}},
        {**queue("bulk", 2, 0), "config": {**WEIGHTED, "global_max_workers": 10, "min_workers": 3}},
    ]
    report(queues=queues, global_max_workers=10)
    without = [{**queue("mail", 1, 1), "config": {**WEIGHTED, "global_max_workers": None}}]
    report(queues=without, global_max_workers=4, leader=False)
    bulk, mail = operations.runtime_overview().queues
    assert (mail.in_flight, mail.overflow_held, mail.capacity) == (4, 2, (10 - 3) + 4)
    assert (bulk.in_flight, bulk.overflow_held, bulk.capacity) == (2, 0, 10 - 2)


def test_live_workers_that_configure_a_queue_differently_are_a_mismatch() -> None:
    report(queues=[queue("mail")])
    report(queues=[queue("mail", max_workers=6)], silent="2 hours", leader=False)
    (mail,) = operations.runtime_overview().queues
    assert not mail.config_mismatch
    stale_only = operations.runtime_overview()
    assert stale_only.attention == []
    older = queue("mail")
    del older["config"]["rate_limit"]
    report(queues=[older], leader=False)
    (mail,) = operations.runtime_overview().queues
    assert not mail.config_mismatch, "a key that is missing is as good as null"
    report(queues=[queue("mail", max_workers=6)], leader=False)
    overview = operations.runtime_overview()
    assert overview.queues[0].config_mismatch
    assert overview.attention == ["Workers of queue mail are configured differently."]


def test_what_needs_attention_is_said_in_sentences() -> None:
    def attention() -> list[str]:
        overview: RuntimeOverview = operations.runtime_overview()
        return overview.attention

    assert attention() == ["No worker is running: jobs wait until one is started."]
    report(silent="2 hours")
    report(shutting_down=True, healthy=False)
    assert attention() == ["No worker is running: jobs wait until one is started."]
    report(leader=False, healthy=False, poll_loop_alive=False, heartbeat_alive=False, hostname=None)
    assert attention() == [
        "No worker leads: nothing is promoted, rescued or fired by a schedule.",
        "Worker unknown host:7 does not look for jobs and sends no heartbeats.",
    ]
    report()
    report(pid=8, healthy=False)
    leading, *unwell = attention()
    assert leading == "2 workers say that they lead. Only one does; the others have yet to notice."
    assert "Worker box:8 is not healthy." in unwell


@pytest.mark.parametrize(
    "queues",
    [
        {"queue": "mail"},
        "text",
        None,
        [None, 3, "text", [], {}, {"queue": 7}, {"queue": None}],
        [{"queue": "mail", "in_flight": "many", "config": [1], "overflow_held": {}, "news": 1}],
        [{"queue": "mail", "config": {"mode": "weighted", "min_workers": "two", "news": [1]}}],
    ],
)
def test_a_row_of_a_shape_that_nobody_knows_does_not_keep_others_from_being_read(queues: Any) -> None:
    odd = report(queues=queues, kinds=["no", "object"], leader=False)
    report(queues=[queue("bulk", 2)])
    overview = operations.runtime_overview()
    assert overview.total == 2
    assert [each.in_flight for each in overview.queues if each.queue == "bulk"] == [2]
    assert operations.runtime(odd).in_flight == 0
    assert operations.runtime(odd).kinds == ()
    assert operations.known_queues()[0] == "bulk"
    assert operations.known_kinds() == []
    assert operations.kind_overview() == []


def test_numbers_and_times_beyond_python_are_read_too() -> None:
    odd = report(leader=False, hostname=None)
    stored.run(
        "UPDATE awa.runtime_instances SET started_at = '-infinity', last_seen_at = 'infinity', "
        "queues = ('[{\"queue\": \"mail\", \"in_flight\": 1' || repeat('0', 5000) || '}]')::jsonb"
    )
    report()
    overview = operations.runtime_overview()
    assert (overview.total, overview.live) == (2, 2)
    assert operations.runtime(odd).queues == ()
