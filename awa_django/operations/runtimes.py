"""Worker processes as operators see them: who is there, how they do, how their queues are configured.

Processes of every client report alike, and what one of them wrote in a form that nobody knows is left out without
keeping the others from being read. (contract: api/admin_ops section 6, runtime/instances)
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from awa_django.errors import RuntimeNotFound
from awa_django.operations.desk import desk
from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = ["QueueRuntime", "Runtime", "RuntimeOverview", "RuntimeQueue", "runtime", "runtime_overview"]

#: Processes that are gone which an overview has; where workers come and go by the minute there may be thousands.
MOST_GONE = 200
#: Milliseconds beyond which an interval says nothing but "long" (some thirty years).
_LONG = 10**12


@dataclass(frozen=True, slots=True)
class RuntimeQueue:
    """One queue of one process. ``overflow_held`` is None where permits are reserved and nothing is borrowed.

    ``config`` is what the process wrote: ``mode``, ``max_workers`` or ``min_workers`` and ``weight``, and the rest of
    the keys that the contract names (contract: runtime/instances section 1).
    """

    queue: str
    in_flight: int = 0
    overflow_held: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Runtime:
    """One worker process, as it reported itself last.

    ``stale`` means that it has been silent for three of its intervals and for 30 s at least; whatever else it said is
    then of that time. ``kinds`` are those it declared: what it handles, and what it only describes.
    """

    instance_id: uuid.UUID
    hostname: str | None
    pid: int
    version: str
    storage_capability: str
    transition_role: str
    started_at: datetime
    last_seen_at: datetime
    snapshot_interval: timedelta
    stale: bool
    healthy: bool
    postgres_connected: bool
    poll_loop_alive: bool
    heartbeat_alive: bool
    maintenance_alive: bool
    shutting_down: bool
    leader: bool
    global_max_workers: int | None
    queues: tuple[RuntimeQueue, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        """Whether it reports."""
        return not self.stale

    @property
    def in_flight(self) -> int:
        """Attempts that it executes, in all its queues."""
        return sum(queue.in_flight for queue in self.queues)

    @property
    def name(self) -> str:
        """What people call it: host and process id."""
        return f"{self.hostname or 'unknown host'}:{self.pid}"

    @property
    def troubles(self) -> list[str]:
        """What is wrong with it by its own account, in words."""
        said = (
            (self.shutting_down, "is shutting down"),
            (not self.postgres_connected, "has lost its database"),
            (not self.poll_loop_alive, "does not look for jobs"),
            (not self.heartbeat_alive, "sends no heartbeats"),
            (not self.maintenance_alive, "does no maintenance"),
        )
        found = [words for applies, words in said if applies]
        return found or ([] if self.healthy else ["is not healthy"])


@dataclass(frozen=True, slots=True)
class QueueRuntime:
    """One queue over all processes that serve it.

    ``instances`` counts those of the overview; every other figure is of the ``live`` ones. ``capacity`` is how many
    attempts they could execute at once, all of them together if nothing else wants their permits; None if no live one
    says.
    ``config`` is that of the process that reported last, ``config_mismatch`` says that another live one has a different
    one.
    """

    queue: str
    instances: int
    live: int
    in_flight: int
    overflow_held: int | None
    capacity: int | None
    config: Mapping[str, Any]
    config_mismatch: bool


@dataclass(frozen=True, slots=True)
class RuntimeOverview:
    """The worker processes that reported within a day, and the queues they serve.

    ``total`` and ``stale`` count them all, ``healthy`` and ``leaders`` the live ones. ``instances`` are all that live
    and the last :data:`MOST_GONE` of those that are gone; from them come the ``queues``.
    """

    total: int
    live: int
    stale: int
    healthy: int
    leaders: int
    instances: tuple[Runtime, ...]
    queues: tuple[QueueRuntime, ...]

    @property
    def attention(self) -> list[str]:
        """What an operator should look at, a sentence each; empty if all is well.

        Workers that are shutting down count as gone.
        """
        working = [each for each in self.instances if each.live and not each.shutting_down]
        if not working:
            return ["No worker is running: jobs wait until one is started."]
        found: list[str] = []
        leaders = sum(each.leader for each in working)
        if leaders == 0:
            found.append("No worker leads: nothing is promoted, rescued or fired by a schedule.")
        elif leaders > 1:
            found.append(
                f"{leaders} workers say that they lead. Only one does; the others have yet to notice."
            )
        for each in working:
            if not each.healthy:
                found.append(f"Worker {each.name} {' and '.join(each.troubles)}.")
        for queue in self.queues:
            if queue.config_mismatch:
                found.append(f"Workers of queue {queue.queue} are configured differently.")
        return found


def runtime_overview(*, using: str | None = None) -> RuntimeOverview:
    """The worker processes that reported within a day, the one that reported last first; takes no locks.

    Live ones are all there, of the others the last :data:`MOST_GONE`. What a row holds in a form that nobody knows is
    left out, and keeps no other from being seen.
    """
    with desk(using) as at:
        rows = _rows(at.cursor, None)
    total, stale = rows[0][:2] if rows else (0, 0)
    instances = tuple(_runtime(row[2:]) for row in rows)
    live = [each for each in instances if each.live]
    return RuntimeOverview(
        total=total,
        live=len(live),
        stale=stale,
        healthy=sum(each.healthy for each in live),
        leaders=sum(each.leader for each in live),
        instances=instances,
        queues=_queues(instances),
    )


def runtime(instance_id: uuid.UUID | str, *, using: str | None = None) -> Runtime:
    """One worker process. Raises ``RuntimeNotFound`` for an id that no row has, or that is no UUID."""
    missing = RuntimeNotFound(
        f"there is no worker {instance_id}; rows of stopped ones are deleted after a day"
    )
    try:
        wanted = instance_id if isinstance(instance_id, uuid.UUID) else uuid.UUID(instance_id)
    except (ValueError, AttributeError, TypeError):
        raise missing from None
    with desk(using) as at:
        for row in _rows(at.cursor, wanted):
            return _runtime(row[2:])
    raise missing


def _rows(cursor: Cursor, instance_id: uuid.UUID | None) -> Sequence[Sequence[Any]]:
    """As the statement tells, with the totals before each row."""
    values = {"instance_id": instance_id, "silent": MOST_GONE}
    cursor.execute(statement("control/runtimes", "runtimes"), values)
    return cursor.fetchall()


def _runtime(row: Sequence[Any]) -> Runtime:
    (
        *identity,
        interval_ms,
        stale,
        healthy,
        connected,
        polls,
        beats,
        maintains,
        stopping,
        leader,
        most,
        queues,
        kinds,
    ) = row
    instance_id, hostname, pid, version, capability, role, started_at, last_seen_at = identity
    return Runtime(
        instance_id=instance_id,
        hostname=hostname,
        pid=pid,
        version=version,
        storage_capability=capability,
        transition_role=role,
        started_at=started_at,
        last_seen_at=last_seen_at,
        snapshot_interval=timedelta(milliseconds=min(max(interval_ms, 0), _LONG)),
        stale=stale,
        healthy=healthy,
        postgres_connected=connected,
        poll_loop_alive=polls,
        heartbeat_alive=beats,
        maintenance_alive=maintains,
        shutting_down=stopping,
        leader=leader,
        global_max_workers=most,
        queues=_queues_of(queues),
        kinds=tuple(sorted(kinds)) if isinstance(kinds, dict) else (),
    )


def _queues_of(stored: Any) -> tuple[RuntimeQueue, ...]:
    """The elements of a row's ``queues`` that name a queue, by name."""
    found = []
    for element in stored if isinstance(stored, list) else ():
        if not isinstance(element, dict) or not isinstance(element.get("queue"), str):
            continue
        config = element.get("config")
        found.append(
            RuntimeQueue(
                element["queue"],
                _number(element.get("in_flight")) or 0,
                _number(element.get("overflow_held")),
                config if isinstance(config, dict) else {},
            )
        )
    return tuple(sorted(found, key=lambda queue: queue.queue))


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _queues(instances: Sequence[Runtime]) -> tuple[QueueRuntime, ...]:
    """Every queue that an instance serves, by name."""
    served: dict[str, list[tuple[Runtime, RuntimeQueue]]] = {}
    for instance in instances:
        for queue in instance.queues:
            served.setdefault(queue.queue, []).append((instance, queue))
    return tuple(_queue(name, served[name]) for name in sorted(served))


def _queue(name: str, by: Sequence[tuple[Runtime, RuntimeQueue]]) -> QueueRuntime:
    live = [(instance, queue) for instance, queue in by if instance.live]
    held = [queue.overflow_held for _, queue in live if queue.overflow_held is not None]
    capacities = [most for instance, queue in live if (most := _capacity(instance, queue)) is not None]
    configs = [_without_nulls(queue.config) for _, queue in live]
    return QueueRuntime(
        queue=name,
        instances=len(by),
        live=len(live),
        in_flight=sum(queue.in_flight for _, queue in live),
        overflow_held=sum(held) if held else None,
        capacity=sum(capacities) if capacities else None,
        config=(live or by)[0][1].config,
        config_mismatch=any(config != configs[0] for config in configs[1:]),
    )


def _without_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    # A key that an older release does not know is no difference to one that is null.
    return {key: value for key, value in config.items() if value is not None}


def _capacity(instance: Runtime, queue: RuntimeQueue) -> int | None:
    """Attempts of the queue that the process could execute at once, if its other queues want nothing.

    With reserved permits that is their number; with weights it is what the queue is guaranteed and all that is
    guaranteed to none.
    """
    if queue.config.get("mode") != "weighted":
        return _number(queue.config.get("max_workers"))
    in_all = _number(queue.config.get("global_max_workers"))
    if in_all is None:
        in_all = instance.global_max_workers
    if in_all is None:
        return None
    others = (other for other in instance.queues if other.queue != queue.queue)
    return max(in_all - sum(_number(other.config.get("min_workers")) or 0 for other in others), 0)
