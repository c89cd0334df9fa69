"""What a worker says about itself, and what other clients make of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from awa_django.conf import QueueConfig, RateLimit, Settings
from awa_django.errors import ConfigurationError
from awa_django.worker.descriptors import Descriptor, sync
from awa_django.worker.instance import Instance, Numbers, Reporter, own_version
from tests import databases
from tests.planes.world import World
from tests.worker.test_leader import PATIENCE, wait_for

VECTORS = Path(__file__).parent.parent / "contract" / "vectors"
HASHES = json.loads((VECTORS / "descriptor_hashes.json").read_text())["cases"]

Connecting = Callable[[str], Callable[[], psycopg.Connection[Any]]]

QUEUES = [
    QueueConfig(
        "mail",
        max_workers=7,
        deadline=timedelta(seconds=90, milliseconds=700),
        rate_limit=RateLimit(2.5),
        dlq_enabled=True,
    ),
    QueueConfig("q"),
]
WELL = Numbers(in_flight={"mail": 3}, poll_loop_alive=True, heartbeat_alive=True, maintenance_alive=True)


def instance(**options: Any) -> Instance:
    return Instance(Settings(), QUEUES, {"k": Descriptor(display_name="Kind")}, **options)


def descriptor(fields: dict[str, Any]) -> Descriptor:
    return Descriptor(**{key: tuple(value) if key == "tags" else value for key, value in fields.items()})


@pytest.fixture
def reporter(world: World, world_database: str, connecting: Connecting) -> Iterator[Callable[..., Reporter]]:
    """A function that starts a reporter; it is stopped with the test."""
    with contextlib.ExitStack() as running:

        def make(numbers: Callable[[], Numbers], settings: Settings | None = None) -> Reporter:
            own = Instance(settings or Settings(), QUEUES)
            service = Reporter(own, numbers, connection=connecting(world_database))
            service.start()
            running.callback(service.join, PATIENCE)
            running.callback(service.stop)
            return service

        yield make


def test_the_row_has_the_shape_that_every_client_reads(world: World) -> None:
    ours = instance(hostname="here", pid=42)
    world.within(lambda cursor: ours.report(cursor, replace(WELL, leader=True)))
    (row,) = world.rows("SELECT * FROM awa.runtime_instances")
    queues = row.pop("queues")
    assert queues == [
        {
            "queue": "mail",
            "in_flight": 3,
            "overflow_held": None,
            "config": {
                "mode": "hard_reserved",
                "max_workers": 7,
                "min_workers": None,
                "weight": None,
                "global_max_workers": None,
                "poll_interval_ms": 200,
                "deadline_duration_secs": 90,
                "priority_aging_interval_secs": 60,
                "claimers": 1,
                "claim_batch_size": 512,
                "dlq_enabled": True,
                "rate_limit": {"max_rate": 2.5, "burst": 0},
            },
        },
        queues[1],
    ]
    assert queues[1]["config"]["rate_limit"] is None
    assert queues[1]["config"].keys() == queues[0]["config"].keys()
    assert world.one("SELECT now()") - row.pop("last_seen_at") < timedelta(seconds=10)
    assert row == {
        "instance_id": ours.instance_id,
        "hostname": "here",
        "pid": 42,
        "version": own_version(),
        "started_at": ours.started_at,
        "snapshot_interval_ms": 10_000,
        "healthy": True,
        "postgres_connected": True,
        "poll_loop_alive": True,
        "heartbeat_alive": True,
        "maintenance_alive": True,
        "shutting_down": False,
        "leader": True,
        "global_max_workers": None,
        "queue_descriptor_hashes": dict.fromkeys(["mail", "q"], HASHES[0]["hash"]),
        "job_kind_descriptor_hashes": {"k": Descriptor(display_name="Kind").hash},
        "storage_capability": "queue_storage",
        "transition_role": "auto",
    }


def test_queues_that_share_their_slots_say_so(world: World) -> None:
    queues = [QueueConfig("a", min_workers=2, weight=3, claimers=2), QueueConfig("b")]
    ours = Instance(replace(Settings(), global_max_workers=10), queues)
    numbers = replace(WELL, in_flight={"a": 5}, overflow_held={"a": 3, "b": 0})
    world.within(lambda cursor: ours.report(cursor, numbers))
    (row,) = world.rows("SELECT queues, global_max_workers FROM awa.runtime_instances")
    assert row["global_max_workers"] == 10
    shown = {
        item["queue"]: (
            item["in_flight"],
            item["overflow_held"],
            *(
                item["config"][key]
                for key in ("mode", "max_workers", "min_workers", "weight", "global_max_workers", "claimers")
            ),
        )
        for item in row["queues"]
    }
    assert shown == {
        "a": (5, 3, "weighted", None, 2, 3, 10, 2),
        "b": (0, 0, "weighted", None, 0, 1, 10, 1),
    }


def test_a_weighted_row_from_the_real_client_has_the_same_keys_and_types(
    world: World, world_database: str
) -> None:
    """The real worker, started with weights, says the same of itself as ours."""
    script = (
        "import asyncio, sys, awa\n"
        "async def main():\n"
        "    client = awa.AsyncClient(sys.argv[1])\n"
        "    @client.task(dict, kind='k', queue='q')\n"
        "    async def handle(job): ...\n"
        "    await client.start([{'name': 'q', 'min_workers': 2, 'weight': 3}], global_max_workers=10)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, world_database])
    try:
        (theirs,) = wait_for(lambda: world.rows("SELECT * FROM awa.runtime_instances"))
    finally:
        process.kill()
        process.wait(10)
    mine = Instance(replace(Settings(), global_max_workers=10), [QueueConfig("q", min_workers=2, weight=3)])
    world.within(lambda cursor: mine.report(cursor, replace(WELL, overflow_held={"q": 0})))
    (ours,) = world.rows("SELECT * FROM awa.runtime_instances WHERE instance_id <> %s", theirs["instance_id"])
    assert ours["global_max_workers"] == theirs["global_max_workers"] == 10
    same = ("mode", "max_workers", "min_workers", "weight", "global_max_workers", "claimers", "rate_limit")
    our_config, their_config = ours["queues"][0]["config"], theirs["queues"][0]["config"]
    assert {key: our_config[key] for key in same} == {key: their_config[key] for key in same}
    assert ours["queues"][0]["overflow_held"] == theirs["queues"][0]["overflow_held"] == 0


def test_a_row_from_the_real_client_has_the_same_keys(
    world: World, world_database: str, awa_pg_worker: Callable[[str], subprocess.Popen[str]]
) -> None:
    awa_pg_worker(world_database)
    (theirs,) = wait_for(lambda: world.rows("SELECT * FROM awa.runtime_instances"))
    world.within(lambda cursor: instance().report(cursor, WELL))
    (ours,) = world.rows("SELECT * FROM awa.runtime_instances WHERE instance_id <> %s", theirs["instance_id"])
    assert ours["queues"][1].keys() == theirs["queues"][0].keys()
    assert ours["queues"][1]["config"].keys() == theirs["queues"][0]["config"].keys()
    assert theirs["queue_descriptor_hashes"]["q"] == ours["queue_descriptor_hashes"]["q"]


def test_the_version_is_semantic_and_names_ours_as_build_metadata() -> None:
    release, _, build = own_version().partition("+")
    assert [int(part) >= 0 for part in release.split(".")] == [True] * 3
    assert release >= "0.6.2"
    assert build.startswith("awa-django.")


@pytest.mark.parametrize(
    "numbers",
    [
        replace(WELL, poll_loop_alive=False),
        replace(WELL, heartbeat_alive=False),
        replace(WELL, maintenance_alive=False),
        replace(WELL, shutting_down=True),
        Numbers(),
    ],
)
def test_a_worker_is_healthy_only_while_everything_runs_and_it_does_not_stop(numbers: Numbers) -> None:
    assert WELL.healthy
    assert not numbers.healthy


def test_reports_come_at_the_start_at_every_interval_on_demand_and_at_the_end(
    world: World, reporter: Callable[..., Reporter]
) -> None:
    counts = iter(range(1, 1000))
    settings = replace(Settings(), snapshot_interval=timedelta(milliseconds=100))
    service = reporter(lambda: replace(WELL, in_flight={"q": next(counts)}), settings)

    def in_flight() -> int:
        rows = world.rows("SELECT queues->1->'in_flight' AS number FROM awa.runtime_instances")
        return int(rows[0]["number"]) if rows else 0

    wait_for(lambda: in_flight() >= 3)
    assert service.alive
    service.stop()
    assert service.join(PATIENCE)
    (row,) = world.rows("SELECT shutting_down, healthy, snapshot_interval_ms FROM awa.runtime_instances")
    assert row == {"shutting_down": True, "healthy": False, "snapshot_interval_ms": 100}


def test_a_worker_that_was_just_starting_up_is_not_called_unwell_for_long(
    world: World, reporter: Callable[..., Reporter]
) -> None:
    """Its second report does not wait for the interval of an hour."""
    was_seen = threading.Event()
    asked = iter([replace(WELL, maintenance_alive=False)])

    def numbers() -> Numbers:
        for first in asked:
            return first
        was_seen.wait(PATIENCE)
        return WELL

    reporter(numbers, replace(Settings(), snapshot_interval=timedelta(hours=1)))
    wait_for(lambda: world.rows("SELECT FROM awa.runtime_instances WHERE NOT healthy"))
    was_seen.set()
    wait_for(lambda: world.rows("SELECT FROM awa.runtime_instances WHERE healthy"))


def test_a_report_can_be_asked_for(world: World, reporter: Callable[..., Reporter]) -> None:
    numbers = [WELL]
    service = reporter(lambda: numbers[0], replace(Settings(), snapshot_interval=timedelta(hours=1)))
    wait_for(lambda: world.rows("SELECT FROM awa.runtime_instances WHERE healthy"))
    numbers[0] = replace(WELL, shutting_down=True)
    service.report_now()
    wait_for(lambda: world.rows("SELECT FROM awa.runtime_instances WHERE shutting_down AND NOT healthy"))


def test_a_reporter_whose_session_ends_reports_again(world: World, reporter: Callable[..., Reporter]) -> None:
    settings = replace(Settings(), snapshot_interval=timedelta(milliseconds=100))
    reporter(lambda: WELL, settings)
    wait_for(lambda: world.rows("SELECT FROM awa.runtime_instances"))
    world.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'awa test service'"
    )
    world.run("DELETE FROM awa.runtime_instances")
    wait_for(lambda: world.rows("SELECT FROM awa.runtime_instances"))


@pytest.mark.parametrize("case", HASHES, ids=range(len(HASHES)))
def test_descriptions_hash_as_other_clients_hash_them(case: dict[str, Any]) -> None:
    assert descriptor(case["descriptor"]).hash == case["hash"]


def test_descriptions_are_written_and_read_back_whole(world: World) -> None:
    full = Descriptor("Mail", "Sends mail", "ops", "https://x/y", ("b", "a"), {"z": {"k": [1, 2.5, None]}})
    for subject, table, column in (("queues", "queue", "queue"), ("kinds", "job_kind", "kind")):
        world.within(
            lambda cursor, subject=subject: sync(cursor, subject, {"n": full, "empty": Descriptor()}, 10_000)  # type: ignore[misc]
        )
        rows = world.rows(f"SELECT * FROM awa.{table}_descriptors ORDER BY {column}")
        assert [row[column] for row in rows] == ["empty", "n"]
        for row, expected in zip(rows, (Descriptor(), full), strict=True):
            assert row["descriptor_hash"] == expected.hash
            assert (row["display_name"], row["description"]) == (expected.display_name, expected.description)
            assert (row["owner"], row["docs_url"]) == (expected.owner, expected.docs_url)
            assert (row["tags"], row["extra"]) == (list(expected.tags), expected.extra)


def test_declaring_again_moves_last_seen_and_only_a_change_moves_updated(world: World) -> None:
    def declared(item: Descriptor) -> dict[str, Any]:
        world.within(lambda cursor: sync(cursor, "queues", {"n": item}, 10_000))
        (row,) = world.rows("SELECT created_at, updated_at, last_seen_at FROM awa.queue_descriptors")
        return row

    first = declared(Descriptor(tags=("a",)))
    second = declared(Descriptor(tags=("a",)))
    third = declared(Descriptor(tags=("b",)))
    assert first["updated_at"] == second["updated_at"] < third["updated_at"]
    assert first["last_seen_at"] < second["last_seen_at"] < third["last_seen_at"]
    assert first["created_at"] == third["created_at"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"display_name": "x" * 201}, "display_name of a description has 201 characters"),
        ({"docs_url": "x" * 2049}, "docs_url of a description has 2049 characters"),
        ({"tags": tuple("x" * 21)}, "21 tags"),
    ],
)
def test_a_description_that_the_table_would_refuse_is_refused_when_it_is_made(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Descriptor(**fields)


@pytest.mark.interop
def test_the_real_command_line_reads_our_row(world: World, world_database: str) -> None:
    world.within(lambda cursor: instance().report(cursor, WELL))
    status = json.loads(databases.awa_cli(world_database, "storage", "status").stdout)
    assert status["live_runtime_capability_counts"] == {"queue_storage": 1}


@pytest.mark.interop
def test_a_real_worker_starts_beside_our_row(
    world: World, world_database: str, awa_pg_worker: Callable[[str], subprocess.Popen[str]]
) -> None:
    """It reads the list of runtimes whole, and would not start if it could not decode ours."""
    world.within(lambda cursor: instance().report(cursor, WELL))
    awa_pg_worker(world_database)
    wait_for(lambda: world.one("SELECT count(*) FROM awa.runtime_instances") == 2)


@pytest.mark.interop
def test_a_row_out_of_shape_would_be_noticed(world: World, world_database: str) -> None:
    """The two tests above mean something: the real client fails on a row without a required key."""
    world.within(lambda cursor: instance().report(cursor, WELL))
    world.run('UPDATE awa.runtime_instances SET queues = \'[{"queue": "q"}]\'')
    assert databases.awa_cli(world_database, "storage", "status", check=False).returncode != 0
