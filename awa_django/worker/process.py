"""One worker process from start to end (contract: runtime/shutdown-health sections 1 and 2)."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from django.db import OperationalError as DjangoOperationalError

from awa_django.conf import QueueConfig, Settings
from awa_django.db import connect, pool_size
from awa_django.jobs import Landed
from awa_django.operations.batch import BULK_CHANNEL
from awa_django.operations.rights import missing_rights
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.registry import registry
from awa_django.schema import check_schema
from awa_django.worker.bulk import Bulk
from awa_django.worker.descriptors import Descriptor
from awa_django.worker.exit_codes import Exit
from awa_django.worker.health import HealthListener, Look, readiness_of_worker
from awa_django.worker.instance import Instance, Numbers, Reporter
from awa_django.worker.leader import Leadership
from awa_django.worker.runtime import Runtime, Stopped, session_opener
from awa_django.worker.scheduler import Scheduler
from awa_django.worker.service import Service
from awa_django.worker.storage import Storage, resolve_storage

__all__ = ["Worker"]

logger = logging.getLogger("awa_django.worker")

#: The interpreter lets a waiting thread in after this time. Its default of 5 ms lets one handler that computes hold
#: up claiming and settling for longer than those take.
SWITCH_SECONDS = 0.0005
#: Time for the leader and the reporter to end.
LEAVE_SECONDS = 2.0


class Worker:
    """Runs jobs of some queues and takes part in leading the fleet. ``queues`` may be empty: then it only leads.
    ``listening`` is the socket at which it says how it does, if it is asked to.

    ``prepare`` checks that it can start and decides which storage it serves, ``start`` starts, ``stop`` drains and
    answers with the exit code.
    """

    def __init__(
        self,
        settings: Settings,
        queues: Sequence[QueueConfig],
        *,
        lead: bool = True,
        listening: socket.socket | None = None,
    ) -> None:
        self.settings = settings
        self.queues = queues
        self.lead = lead
        self.listening = listening

    def _build(self, storage: Storage) -> None:
        settings, instance_id = self.settings, uuid.uuid4()
        self.bulk = (
            Bulk(settings, self._leads, connection=session_opener(settings, "bulk")) if self.lead else None
        )
        self.runtime = Runtime(
            settings,
            self.queues,
            plane=storage.plane,
            instance_id=instance_id,
            shares_ids=storage.shares_ids,
            notices={} if self.bulk is None else {BULK_CHANNEL: self.bulk.wake},
        )
        self.leader = (
            Leadership(
                settings,
                [QueueStoragePlane(), CanonicalPlane()],
                rescued=self._rescued,
                connection=session_opener(settings, "lead"),
            )
            if self.lead
            else None
        )
        if self.leader is not None:
            self.runtime.put_off = self.leader.expect
        self.scheduler = (
            Scheduler(settings, self._leads, connection=session_opener(settings, "schedule"))
            if self.leader is not None
            else None
        )
        kinds = {name: Descriptor(*kind.descriptor) for name, kind in registry.items()}
        self.reporter = Reporter(
            Instance(
                settings,
                self.queues,
                kinds,
                is_canonical=storage.is_canonical,
                instance_id=instance_id,
            ),
            self._numbers,
            connection=session_opener(settings, "report", repeatable=True),
            **({} if self.bulk is None else {"beside": self.bulk.look}),
        )
        self.health: list[Service] = []
        if self.listening is not None:
            look = Look(session_opener(settings, "health"))
            self.health = [look, HealthListener(self.listening, readiness_of_worker(self._numbers, look))]

    def prepare(self) -> str:
        """Check schema and storage; a line that says what this worker works on.

        Raises ``SchemaOutOfDate`` or ``ConfigurationError`` with the way out, and Django's
        ``OperationalError`` when the database cannot be reached.
        """
        try:
            with connect(
                self.settings.database, application_name="awa_worker start", prepare=False
            ) as session:
                facts = check_schema(session)
                storage = resolve_storage(session, self.settings.transition_role)
                self._warn_of_rights(session)
                info = session.info
                where = f"{info.dbname} at {info.host or 'local socket'}"
                server = info.server_version
        except psycopg.OperationalError as error:
            raise DjangoOperationalError(str(error)) from error
        self._build(storage)
        for kind in registry.values():
            kind.prepare()
        self._warn_of_thread_limits()
        queues = ", ".join(f"{queue.name} ({self._slots(queue)})" for queue in self.queues)
        return (
            f"{len(registry)} kinds of jobs; queues: {queues or 'none, maintenance only'}; {storage}, "
            f"schema {facts.version}, PostgreSQL {server // 10000}.{server % 10000}, database {where}"
        )

    def _of_leader(self) -> list[Leadership | Scheduler | Bulk]:
        """What a process that may lead has beside its runtime."""
        return [service for service in (self.leader, self.scheduler, self.bulk) if service is not None]

    def _leads(self) -> bool:
        return self.leader is not None and self.leader.is_leader

    def _slots(self, queue: QueueConfig) -> str:
        in_all = self.settings.global_max_workers
        if in_all is None:
            return f"{queue.max_workers} at once"
        return f"{queue.min_workers} to {self.runtime.permits[queue.name].most} of {in_all} at once"

    def start(self) -> None:
        """Start everything; returns at once."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self.runtime.start()
        for service in self._of_leader():
            service.start()
        self.reporter.start()
        for asked in self.health:
            asked.start()

    def wait_idle(self, ahead: timedelta, stop: threading.Event) -> bool:
        """Wait until the queues hold nothing that is due within ``ahead``; False if ``stop`` was set first."""
        return self.runtime.wait_idle(ahead, stop)

    def stop(self, hurry: threading.Event) -> Exit:
        """Drain within the grace time, hand the rest back, and end. ``hurry`` cuts the grace time short."""
        self.runtime.claiming_stopped.set()
        self.reporter.report_now()
        stopped = self.runtime.stop(hurry)
        for service in self._of_leader():
            service.stop()
            if hurry.is_set():
                service.cancel()
        for service in self._of_leader():
            service.join(LEAVE_SECONDS)
        # Last, so that what they say is final.
        self.reporter.stop()
        self.reporter.join(LEAVE_SECONDS)
        for asked in self.health:
            asked.stop()
        for asked in self.health:
            asked.join(LEAVE_SECONDS)
        return self._exit_code(stopped, hurried=hurry.is_set())

    @staticmethod
    def _exit_code(stopped: Stopped, *, hurried: bool) -> Exit:
        if stopped.handed_back:
            logger.warning("%d attempts were handed back", stopped.handed_back)
        if stopped.left_behind or (hurried and stopped.handed_back):
            return Exit.LEFT_BEHIND
        return Exit.OK

    def _numbers(self) -> Numbers:
        runtime = self.runtime
        return Numbers(
            in_flight={name: permits.in_flight for name, permits in runtime.permits.items()},
            overflow_held={name: permits.overflow_held for name, permits in runtime.permits.items()},
            poll_loop_alive=all(item.alive for item in runtime.dispatchers.values()),
            heartbeat_alive=runtime.heartbeat.alive,
            maintenance_alive=all(service.alive for service in self._of_leader()),
            shutting_down=runtime.claiming_stopped.is_set(),
            leader=self._leads(),
        )

    def _rescued(self, kind: str, landed: Sequence[Landed]) -> None:
        """Attempts were taken away; those that run here are told to stop. Ids mean other jobs in the other storage.

        One whose callback did not come in time is not told: its handler is gone, or finds out by itself.
        """
        if kind == "callback_timeout":
            return
        for item in landed:
            if item.landing.taken.canonical == self.runtime.is_canonical:
                self.runtime.cancel(item.landing.taken.job_id, item.landing.taken.run_lease)

    def _warn_of_rights(self, session: psycopg.Connection[Any]) -> None:
        with session.cursor() as cursor:
            _, lacks = missing_rights(cursor, leads=self.lead)
        for lack in lacks:
            logger.warning("%s %s", lack.sentence, lack.hint)

    def _warn_of_thread_limits(self) -> None:
        timed = sorted(name for name, kind in registry.items() if kind.timeout and not kind.is_async)
        if timed:
            logger.warning(
                "threads cannot be stopped: on timeout these kinds are failed while their handler goes on and "
                "keeps its slot: %s",
                ", ".join(timed),
            )
        wanted = self.runtime.capacity
        if connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
            return
        if (size := pool_size(DEFAULT_DB_ALIAS)) is not None and size < wanted:
            logger.warning(
                "the database pool holds %d connections for %d jobs at once; handlers will wait for one, and fail if "
                "that takes too long: raise max_size in OPTIONS['pool']",
                size,
                wanted,
            )
