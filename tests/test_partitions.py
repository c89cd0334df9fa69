from __future__ import annotations

from typing import Any

import awa
import pytest

from awa_django.errors import InvalidJob
from awa_django.partitions import PartitionedQueue, ordering_hash, ordering_key_bytes, shard_of
from tests.vectors import load

SHARDS = load("ordering_key_shards")["vectors"]
PARTITIONED = load("partitioned_queue")
KEYS = [bytes.fromhex(key) for key in PARTITIONED["keys_hex"]]


@pytest.mark.parametrize("vector", SHARDS, ids=lambda vector: vector["key_hex"][:20] or "empty")
def test_recorded_shards_are_reproduced(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["key_hex"])
    assert ordering_hash(key) == int(vector["hash64"])
    for shards, shard in vector["shard_by_count"].items():
        assert shard_of(key, int(shards)) == shard


@pytest.mark.parametrize("case", load("queue-storage/ordering-key-shard")["cases"])
def test_shards_read_back_from_ready_rows_are_reproduced(case: dict[str, Any]) -> None:
    key = bytes.fromhex(case["key_hex"])
    assert ordering_hash(key) == int(case["hash64"])
    assert shard_of(key, case["shards"]) == case["shard"]


@pytest.mark.parametrize("vector", PARTITIONED["by_key"], ids=lambda vector: str(vector["partitions"]))
def test_recorded_partitions_are_reproduced(vector: dict[str, Any]) -> None:
    queue = PartitionedQueue("q", vector["partitions"])
    assert [queue.partition_for_key(key) for key in KEYS] == vector["partition_by_key"]
    assert [queue.queue_for_key(key) for key in KEYS] == [
        queue.physical_queues[partition] for partition in vector["partition_by_key"]
    ]


def explicit() -> PartitionedQueue:
    return PartitionedQueue.from_physical_queues("email", ["email-fast", "email-bulk", "email-slow"])


def test_recorded_names_are_reproduced() -> None:
    names = PARTITIONED["names"]
    assert PartitionedQueue("email", 1).physical_queues == names["PartitionedQueue('email',1)"]
    four = PartitionedQueue("email", 4)
    assert four.physical_queues == names["PartitionedQueue('email',4)"]
    assert four.partitions == len(four) == 4
    assert explicit().physical_queues == names["from_physical_queues('email',[...])"]
    assert explicit().logical_queue == "email"


@pytest.mark.parametrize("vector", PARTITIONED["by_index"])
def test_recorded_routes_by_index_are_reproduced(vector: dict[str, Any]) -> None:
    queue = explicit() if vector.get("explicit") else PartitionedQueue("email", vector["partitions"])
    assert queue.queue_for_index(vector["index"]) == vector["queue"]


def test_recorded_routes_are_reproduced() -> None:
    queue = PartitionedQueue("email", 4)
    for vector in PARTITIONED["route_by_key"]:
        result = vector["result"] | {"ordering_key": bytes.fromhex(vector["result"]["ordering_key"])}
        assert queue.route_by_key(vector["key"]) == result
    for vector in PARTITIONED["route_by_index"]:
        assert queue.route_by_index(vector["index"]) == vector["result"]


def call(text: str, queue: PartitionedQueue) -> Any:
    """Run one recorded call; ``queue`` is what a method without a constructor is called on."""
    names: dict[str, Any] = {
        "PartitionedQueue": PartitionedQueue,
        "from_physical_queues": PartitionedQueue.from_physical_queues,
        "queue_for_index": queue.queue_for_index,
        "queue_configs": queue.queue_configs,
    }
    return eval(text, {"__builtins__": {}}, names)


@pytest.mark.parametrize("vector", PARTITIONED["queue_configs"], ids=lambda vector: vector["call"])
def test_recorded_queue_configurations_are_reproduced(vector: dict[str, Any]) -> None:
    assert call(vector["call"], PartitionedQueue("email", 4)) == vector["result"]


def test_every_option_of_a_queue_configuration_is_kept() -> None:
    assert PartitionedQueue("email", 1).queue_configs(
        2, claimers=3, claim_batch_size=4, deadline_duration_ms=5, priority_aging_interval_ms=6
    ) == [
        {
            "name": "email",
            "max_workers": 2,
            "claimers": 3,
            "claim_batch_size": 4,
            "deadline_duration_ms": 5,
            "priority_aging_interval_ms": 6,
        }
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"max_workers_per_partition": 1},
        {"min_workers_per_partition": 0},
        {"min_workers_per_partition": 2, "weight": 3, "claimers": 1},
        {"max_workers_per_partition": 5, "weight": 7, "claim_batch_size": 1, "deadline_duration_ms": 0},
    ],
    ids=str,
)
def test_queue_configurations_are_those_of_the_awa_client(options: dict[str, int]) -> None:
    """Defaults and bounds as well."""
    theirs = awa.PartitionedQueue("email", 2).queue_configs(**options)
    assert PartitionedQueue("email", 2).queue_configs(**options) == theirs


@pytest.mark.parametrize("vector", PARTITIONED["refusals"], ids=lambda vector: vector["call"])
def test_recorded_refusals_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob):
        call(vector["call"], PartitionedQueue("email", 4))


def test_names_that_cannot_be_woken_are_refused() -> None:
    assert PartitionedQueue("q" * 55, 10).physical_queues[9] == "q" * 55 + "__p9"
    with pytest.raises(InvalidJob, match="at most 59") as refusal:
        PartitionedQueue("q" * 56, 2)
    assert refusal.value.path == "physical_queues[1]"


@pytest.mark.parametrize("partitions", [0, -1, 32768, True, 1.0, "2"])
def test_numbers_of_partitions_outside_the_bounds_are_refused(partitions: Any) -> None:
    with pytest.raises(InvalidJob) as refusal:
        PartitionedQueue("q", partitions)
    assert refusal.value.path == "partitions"


def test_keys_are_bytes_or_text() -> None:
    assert ordering_key_bytes("é") == "é".encode()
    assert ordering_key_bytes(bytearray(b"x")) == ordering_key_bytes(memoryview(b"x")) == b"x"
    for wrong in (1, [1, 2], None, "\ud800"):
        with pytest.raises(InvalidJob) as refusal:
            ordering_key_bytes(wrong)
        assert refusal.value.path == "ordering_key"
