"""What is known about a job that is not running, and the form of the answer (:mod:`awa_django.operations.why`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from awa_django.errors import JobNotFound
from awa_django.operations.desk import Desk
from awa_django.operations.leading import leader_session
from awa_django.operations.reading import JobRecord
from awa_django.operations.runtimes import Runtime, RuntimeQueue, runtime_overview
from awa_django.operations.words import span
from awa_django.sql import statement

__all__ = [
    "Case",
    "Why",
    "WhyReason",
    "absent",
    "case_of",
    "claims",
    "free_slots",
    "is_ours",
    "rate_limit",
    "serves",
]


class WhyReason(StrEnum):
    """Why a job is not running, or that it is."""

    NOT_DUE = "not_due"
    RETRYING = "retrying"
    UNKNOWN_KIND = "unknown_kind"
    NOT_PROMOTED = "not_promoted"
    PAUSED = "paused"
    STORAGE_TRANSITION = "storage_transition"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    NO_WORKER_FOR_KIND = "no_worker_for_kind"
    AT_CAPACITY = "at_capacity"
    RATE_LIMITED = "rate_limited"
    BEHIND_OTHERS = "behind_others"
    NEXT = "next"
    RUNNING = "running"
    STALE = "stale"
    PAST_DEADLINE = "past_deadline"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    FINISHED = "finished"
    DEAD_LETTERED = "dead_lettered"


@dataclass(frozen=True, slots=True)
class Why:
    """The answer about one job.

    ``sentence`` is the reason in words and ``hint`` what to do about it, which may be empty. ``facts`` are the figures
    behind them, by name, in plain values.
    """

    job: JobRecord
    reason: WhyReason
    sentence: str
    hint: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What is known about the job that is asked about."""

    record: JobRecord
    now: datetime
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    #: Which plane takes new jobs.
    routing: str
    leads: bool
    #: Live workers that take no leave: those of the queue and plane, and all others.
    serving: tuple[tuple[Runtime, RuntimeQueue], ...]
    others: tuple[Runtime, ...]
    #: Workers of the queue that finish what they run and claim no more, and those that went silent.
    leaving: tuple[tuple[Runtime, RuntimeQueue], ...]
    silent: tuple[Runtime, ...]

    @property
    def doubt(self) -> str:
        """That every worker of the queue is late to report and may be gone, in words; empty if one is not."""
        late = [
            runtime.last_seen_at
            for runtime, _ in self.serving
            if self.now - runtime.last_seen_at > 2 * runtime.snapshot_interval
        ]
        if not late or len(late) < len(self.serving):
            return ""
        them, they = ("it", "it") if len(late) == 1 else ("them", "they")
        return f" But nothing was heard of {them} for {span(self.now - max(late))}: {they} may be gone."

    def answer(self, reason: WhyReason, sentence: str, hint: str = "", **facts: Any) -> Why:
        """The answer about this job."""
        return Why(self.record, reason, sentence, hint, {"plane": self.record.plane, **facts})


def case_of(at: Desk, record: JobRecord, using: str | None) -> Case:
    """What is known about a job that has not ended; takes no locks."""
    queue = record.job.queue
    at.cursor.execute(statement("control/diagnosis", "standing"), {"queue": queue})
    row = at.cursor.fetchone()
    assert row is not None
    now, paused, paused_at, paused_by = row
    routing = at.planes[0].name
    serving: list[tuple[Runtime, RuntimeQueue]] = []
    others: list[Runtime] = []
    leaving: list[tuple[Runtime, RuntimeQueue]] = []
    silent: list[Runtime] = []
    for runtime in runtime_overview(using=using).instances:
        mine = next((item for item in runtime.queues if item.queue == queue), None)
        if runtime.stale:
            if mine is not None and not runtime.shutting_down:
                silent.append(runtime)
        elif runtime.shutting_down:
            if mine is not None:
                leaving.append((runtime, mine))
        elif mine is not None and serves(runtime, record.plane, routing):
            serving.append((runtime, mine))
        else:
            others.append(runtime)
    return Case(
        record=record,
        now=now,
        paused=paused,
        paused_at=paused_at,
        paused_by=paused_by,
        routing=routing,
        leads=leader_session(at.cursor) is not None,
        serving=tuple(serving),
        others=tuple(others),
        leaving=tuple(leaving),
        silent=tuple(silent),
    )


def absent(at: Desk, job_id: int) -> JobNotFound:
    """Why there is no job with an id: nobody was given it yet, or its job is gone or not committed."""
    at.cursor.execute(statement("control/diagnosis", "newest_id"), {})
    (newest,) = at.cursor.fetchone() or (0,)
    if job_id > newest:
        there = f"ids here go up to {newest}" if newest else "no job was ever stored here"
        return JobNotFound(
            f"there is no job {job_id}: {there}, so it is one of another database (--database)"
        )
    return JobNotFound(
        f"there is no job {job_id}: it has finished and is forgotten, or whoever enqueued it has not committed, or "
        "took it back"
    )


def serves(runtime: Runtime, plane: str, routing: str) -> bool:
    """Whether a process claims jobs of a plane, while new ones go to ``routing`` (contract: runtime/instances 3)."""
    if routing == "queue_storage":
        return (runtime.storage_capability == "queue_storage") == (plane == "queue_storage")
    return (runtime.transition_role == "queue_storage_target") == (plane == "queue_storage")


def free_slots(runtime: Runtime, queue: RuntimeQueue) -> int | None:
    """Slots that a process has left for a queue by its last report; None if it does not say how many there are."""
    config = queue.config
    if config.get("mode") != "weighted":
        most = config.get("max_workers")
        return most - queue.in_flight if isinstance(most, int) else None
    in_all = runtime.global_max_workers
    if in_all is None:
        return None
    lent = sum(item.overflow_held or 0 for item in runtime.queues)
    guaranteed = sum(int(item.config.get("min_workers") or 0) for item in runtime.queues)
    own = int(config.get("min_workers") or 0) - (queue.in_flight - (queue.overflow_held or 0))
    return max(own, 0) + max(in_all - guaranteed - lent, 0)


def claims(runtime: Runtime) -> bool:
    """Whether a process looks for jobs, by its last report."""
    return runtime.poll_loop_alive and runtime.postgres_connected


def is_ours(runtime: Runtime) -> bool:
    """Whether a process is one of this package: others fail a job for good whose kind they do not know."""
    return "awa-django" in runtime.version


def rate_limit(queue: RuntimeQueue) -> float | None:
    """Jobs that a process may start in a second; None without a limit."""
    limit = queue.config.get("rate_limit")
    rate = limit.get("max_rate") if isinstance(limit, Mapping) else None
    return float(rate) if isinstance(rate, int | float) and rate > 0 else None
