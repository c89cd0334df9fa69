"""What a worker process says about itself: its row in ``awa.runtime_instances``.

Other clients read the list of runtimes whole, and a row they cannot decode keeps their workers from
starting; so its shape is theirs to the last key (contract: schema section 5.7).
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from awa_django import __version__, telemetry
from awa_django.conf import QueueConfig, Settings
from awa_django.db import connect
from awa_django.errors import said
from awa_django.planes.base import Cursor
from awa_django.sql import statement
from awa_django.worker.descriptors import Descriptor, hashes, sync
from awa_django.worker.service import Service
from awa_django.worker.snapshot import show

__all__ = ["Instance", "Numbers", "Reporter"]

logger = logging.getLogger("awa_django.worker")

#: The awa release whose behaviour towards other clients this one shares. Later migrations of the schema refuse
#: to run beside a runtime that reports less than 0.6.2, or something that is no semantic version.
COMPATIBLE_WITH = "0.6.9"

#: Seconds until the second report, if the first found something not running yet.
SETTLING_IN = 1.0


@dataclass(frozen=True, slots=True)
class Numbers:
    """How a worker is doing right now (contract: runtime/shutdown-health section 3).

    ``in_flight`` counts the attempts of each queue that this process executes, ``overflow_held`` the permits among
    theirs that are borrowed (None: there is nothing to borrow).
    """

    in_flight: Mapping[str, int] = field(default_factory=dict)
    overflow_held: Mapping[str, int | None] = field(default_factory=dict)
    poll_loop_alive: bool = False
    heartbeat_alive: bool = False
    maintenance_alive: bool = False
    shutting_down: bool = False
    leader: bool = False

    @property
    def healthy(self) -> bool:
        """Whether everything runs, given a database that answers."""
        return (
            self.poll_loop_alive
            and self.heartbeat_alive
            and self.maintenance_alive
            and not self.shutting_down
        )


def own_version() -> str:
    """The version that this process reports: the awa release it is compatible with, and its own as build metadata."""
    return f"{COMPATIBLE_WITH}+awa-django.{re.sub('[^0-9A-Za-z.-]', '.', __version__)}"


@dataclass(frozen=True, slots=True)
class Instance:
    """One worker process.

    ``kinds`` describes every kind it handles, ``described`` those of its queues that code said something about.
    ``is_canonical`` says that it serves the canonical tables, which makes it a worker that only drains them once new
    jobs go elsewhere.
    """

    settings: Settings
    queues: Sequence[QueueConfig]
    kinds: Mapping[str, Descriptor] = field(default_factory=dict)
    described: Mapping[str, Descriptor] = field(default_factory=dict)
    is_canonical: bool = False
    instance_id: uuid.UUID = field(default_factory=uuid.uuid4)
    hostname: str = field(default_factory=lambda: os.environ.get("HOSTNAME") or socket.gethostname())
    pid: int = field(default_factory=os.getpid)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def interval_ms(self) -> int:
        """Milliseconds between two reports."""
        return max(1, round(self.settings.snapshot_interval / timedelta(milliseconds=1)))

    @property
    def queue_descriptors(self) -> dict[str, Descriptor]:
        """Every queue served, and every other one that code describes."""
        return {queue.name: Descriptor() for queue in self.queues} | dict(self.described)

    def report(self, cursor: Cursor, numbers: Numbers) -> None:
        """Write the process's row, in the caller's transaction."""
        cursor.execute(
            statement("control/instance", "report"),
            {
                "instance_id": self.instance_id,
                "hostname": self.hostname,
                "pid": self.pid,
                "version": own_version(),
                "started_at": self.started_at,
                "interval_ms": self.interval_ms,
                "healthy": numbers.healthy,
                "poll_loop_alive": numbers.poll_loop_alive,
                "heartbeat_alive": numbers.heartbeat_alive,
                "maintenance_alive": numbers.maintenance_alive,
                "shutting_down": numbers.shutting_down,
                "leader": numbers.leader,
                "global_max_workers": self.settings.global_max_workers,
                "queues": json.dumps([self._queue(queue, numbers) for queue in self.queues]),
                "queue_hashes": json.dumps(hashes(self.queue_descriptors)),
                "kind_hashes": json.dumps(hashes(self.kinds)),
                "is_canonical": self.is_canonical,
                "role": self.settings.transition_role,
            },
        )

    def describe(self, cursor: Cursor) -> None:
        """Declare the queues and kinds of this process, in the caller's transaction."""
        sync(cursor, "queues", self.queue_descriptors, self.interval_ms)
        sync(cursor, "kinds", self.kinds, self.interval_ms)

    def _queue(self, queue: QueueConfig, numbers: Numbers) -> dict[str, Any]:
        """One element of ``queues``; seconds are whole, and keys without a meaning here are present and null."""
        limit = queue.rate_limit
        dead_letters = self.settings.dlq_enabled if queue.dlq_enabled is None else queue.dlq_enabled
        in_all = self.settings.global_max_workers
        reserved = in_all is None
        return {
            "queue": queue.name,
            "in_flight": numbers.in_flight.get(queue.name, 0),
            "overflow_held": None if reserved else numbers.overflow_held.get(queue.name) or 0,
            "config": {
                "mode": "hard_reserved" if reserved else "weighted",
                "max_workers": queue.max_workers if reserved else None,
                "min_workers": None if reserved else queue.min_workers,
                "weight": None if reserved else queue.weight,
                "global_max_workers": in_all,
                "poll_interval_ms": round(self.settings.poll_interval / timedelta(milliseconds=1)),
                "deadline_duration_secs": int(queue.deadline.total_seconds()),
                "priority_aging_interval_secs": int(queue.priority_aging_interval.total_seconds()),
                "claimers": queue.claimers,
                "claim_batch_size": queue.claim_batch_size,
                "dlq_enabled": dead_letters,
                "rate_limit": None if limit is None else {"max_rate": limit.max_rate, "burst": limit.burst},
            },
        }


class Reporter(Service):
    """Reports every ``SNAPSHOT_INTERVAL``, at the start of a shutdown (:meth:`report_now`), and once more at its end.

    ``numbers`` is asked from this thread. ``beside`` may ask the database something in the transaction of each report,
    which spares it a transaction of its own. An error is logged and the next report tries again.
    """

    def __init__(
        self,
        instance: Instance,
        numbers: Callable[[], Numbers],
        *,
        connection: Callable[[], psycopg.Connection[Any]] | None = None,
        beside: Callable[[Cursor], None] = lambda cursor: None,
    ) -> None:
        super().__init__("reporter")
        self._beside = beside
        self.instance = instance
        self.numbers = numbers
        self._open = connection or (
            lambda: connect(instance.settings.database, application_name="awa reporter")
        )
        self._telemetry = telemetry.current()
        self._wake = threading.Event()

    def report_now(self) -> None:
        """Report again without waiting for the interval to pass; from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Ask the loop to end. Its last report says that the process is shutting down."""
        super().stop()
        self._wake.set()

    def run(self) -> None:
        with self._open() as connection:
            self.alive = True
            interval = self.instance.settings.snapshot_interval.total_seconds()
            settling_in = True
            while not self.stopping.is_set():
                numbers = self.numbers()
                self._report(connection, numbers)
                # What was just being started need not be called unwell for a whole interval.
                soon = settling_in and not numbers.healthy and not numbers.shutting_down
                self._wake.wait(min(interval, SETTLING_IN) if soon else interval)
                self._wake.clear()
                settling_in = False
            self._report(connection, replace(self.numbers(), shutting_down=True))

    def _report(self, connection: psycopg.Connection[Any], numbers: Numbers) -> None:
        try:
            with connection.transaction(), connection.cursor() as cursor:
                self.instance.report(cursor, numbers)
                if not numbers.shutting_down:
                    self.instance.describe(cursor)
                    self._beside(cursor)
            if not numbers.shutting_down:
                show(
                    self._telemetry,
                    connection,
                    queues=self.instance.queue_descriptors,
                    kinds=self.instance.kinds,
                )
        except psycopg.Error as error:
            if connection.closed or connection.broken:
                raise
            logger.warning("this worker could not report itself, and tries again: %s", said(error))
