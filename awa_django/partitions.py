"""Where an ordering key leads: a shard of a queue, or one of several queues (contract: api/ordering_and_partitions)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from awa_django.errors import InvalidJob
from awa_django.queue_names import queue_name_fault

__all__ = ["PartitionedQueue", "ordering_hash", "ordering_key_bytes", "shard_of"]

_WORD = 2**64 - 1
_MAX_PARTITIONS = 32767


def ordering_key_bytes(key: object) -> bytes:
    """An ordering key as bytes; text is UTF-8. Raises ``InvalidJob`` for anything else."""
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise InvalidJob("ordering_key", f"{key!r} holds a lone surrogate, which is not text") from None
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise InvalidJob("ordering_key", f"bytes or text is needed, not {key!r}")


def ordering_hash(key: bytes) -> int:
    """The 64-bit hash of a key. Each byte is added, not XORed: this is not FNV."""
    value = 14695981039346656037
    for byte in key:
        value = (value * 1099511628211 + byte) & _WORD
    return value


def shard_of(key: bytes, shards: int) -> int:
    """The shard of a queue that jobs with this key go to, in their order."""
    return ordering_hash(key) % shards if shards > 1 else 0


def _partition_of(key: bytes, partitions: int) -> int:
    if partitions == 1:
        return 0
    value = ordering_hash(key) ^ 0x9D4D1B2F53A70C91
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _WORD
    return (value ^ value >> 31) % partitions


@dataclass(frozen=True, init=False)
class PartitionedQueue:
    """One logical queue spread over several ordinary ones, each job by its key.

    Partition 0 is the logical name itself, partition *i* is ``<logical>__p<i>``. Jobs of one key stay in one
    queue, in order, as long as the number of partitions stays the same. To widen, grow the workers first, then
    the producers; to narrow, shrink the producers, drain, then shrink the workers.
    """

    logical_queue: str
    physical_queues: list[str]

    def __init__(self, logical: str, partitions: int) -> None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions <= 0:
            raise InvalidJob("partitions", f"a number of at least 1 is needed, not {partitions!r}")
        if partitions > _MAX_PARTITIONS:
            raise InvalidJob("partitions", f"{partitions} partitions, at most {_MAX_PARTITIONS} are possible")
        self._set(logical, [logical, *(f"{logical}__p{index}" for index in range(1, partitions))])

    @classmethod
    def from_physical_queues(cls, logical: str, names: Iterable[str]) -> PartitionedQueue:
        """A partitioned queue over these names; their order decides where keys go."""
        queue = cls.__new__(cls)
        queue._set(logical, list(names))
        return queue

    def _set(self, logical: str, names: list[str]) -> None:
        if not isinstance(logical, str) or not logical:
            raise InvalidJob("logical_queue", f"a name is needed, not {logical!r}")
        if not names:
            raise InvalidJob("physical_queues", "at least one queue is needed")
        if len(names) > _MAX_PARTITIONS:
            raise InvalidJob(
                "physical_queues", f"{len(names)} queues, at most {_MAX_PARTITIONS} are possible"
            )
        seen: set[str] = set()
        for index, name in enumerate(names):
            if not isinstance(name, str):
                raise InvalidJob(f"physical_queues[{index}]", f"a queue name is text, not {name!r}")
            if fault := queue_name_fault(name):
                raise InvalidJob(f"physical_queues[{index}]", fault)
            if name in seen:
                raise InvalidJob(f"physical_queues[{index}]", f"{name!r} is named twice")
            seen.add(name)
        object.__setattr__(self, "logical_queue", logical)
        object.__setattr__(self, "physical_queues", names)

    @property
    def partitions(self) -> int:
        """How many queues there are."""
        return len(self.physical_queues)

    def __len__(self) -> int:
        return len(self.physical_queues)

    def __hash__(self) -> int:
        return hash((self.logical_queue, *self.physical_queues))

    def partition_for_key(self, key: bytes | str) -> int:
        """The number of the partition that jobs with this key go to."""
        return _partition_of(ordering_key_bytes(key), len(self.physical_queues))

    def queue_for_key(self, key: bytes | str) -> str:
        """The queue that jobs with this key go to."""
        return self.physical_queues[self.partition_for_key(key)]

    def queue_for_index(self, index: int) -> str:
        """The queue for a number, such as a job's place in a batch: the number modulo the partitions."""
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise InvalidJob("index", f"a number of at least 0 is needed, not {index!r}")
        return self.physical_queues[index % len(self.physical_queues)]

    def route_by_key(self, key: bytes | str) -> dict[str, Any]:
        """Options for :meth:`JobKind.using`: the queue, and the key as ordering key for its shards."""
        return {"queue": self.queue_for_key(key), "ordering_key": ordering_key_bytes(key)}

    def route_by_index(self, index: int) -> dict[str, Any]:
        """Options for :meth:`JobKind.using`: the queue alone."""
        return {"queue": self.queue_for_index(index)}

    def queue_configs(
        self,
        max_workers_per_partition: int | None = None,
        *,
        min_workers_per_partition: int | None = None,
        weight: int = 1,
        rate_limit_per_partition: Any = None,
        priority_aging_interval_ms: int | None = None,
        deadline_duration_ms: int | None = None,
        claimers: int | None = None,
        claim_batch_size: int | None = None,
    ) -> list[dict[str, Any]]:
        """One queue configuration for each partition, in the form other awa clients take; capacities are each's own."""
        if (max_workers_per_partition is None) == (min_workers_per_partition is None):
            raise InvalidJob(
                "queue_configs",
                "exactly one of max_workers_per_partition and min_workers_per_partition is needed",
            )
        for name, value in (
            ("max_workers_per_partition", max_workers_per_partition),
            ("weight", weight),
            ("claimers", claimers),
            ("claim_batch_size", claim_batch_size),
        ):
            if value is not None and value <= 0:
                raise InvalidJob(name, f"a number above 0 is needed, not {value}")
        options: dict[str, Any] = (
            {"max_workers": max_workers_per_partition}
            if max_workers_per_partition is not None
            else {"min_workers": min_workers_per_partition, "weight": weight}
        )
        optional = {
            "rate_limit": rate_limit_per_partition,
            "priority_aging_interval_ms": priority_aging_interval_ms,
            "deadline_duration_ms": deadline_duration_ms,
            "claimers": claimers,
            "claim_batch_size": claim_batch_size,
        }
        options |= {name: value for name, value in optional.items() if value is not None}
        return [{"name": name, **options} for name in self.physical_queues]
