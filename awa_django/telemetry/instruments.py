"""The metrics by their names, units and attributes, the spans, and what the duties of the timetable are called.

Plain data, without opentelemetry. (contract: runtime/observability sections 1 and 2)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

__all__ = ["DUTIES", "INSTRUMENTS", "SPANS", "Instrument", "duty_names"]

KIND, QUEUE, STATE = "awa.job.kind", "awa.job.queue", "awa.job.state"
REASON, RING, RING_OUTCOME = "awa.dispatch.reason", "awa.ring", "awa.ring.outcome"
SHARD, DLQ_REASON, RESCUE = "awa.completion.shard", "awa.dlq.reason", "awa.rescue.kind"
BRANCH, BLOCKER, RING_REASON = "awa.maintenance.branch", "awa.ring.blocker", "awa.ring.reason"
OUTCOME, ENQUEUE_SHARD, TERMINAL = "awa.outcome", "awa.enqueue.shard", "awa.job.terminal"
#: What ``awa.queue.info`` and ``awa.job_kind.info`` say of each, where code says it.
DESCRIBED = ("display_name", "description", "owner", "docs_url", "tags")


class Instrument(NamedTuple):
    """One metric: ``type`` is ``counter``, ``histogram``, or one that is read when the project collects:
    ``up-down counter`` and ``gauge``."""

    name: str
    type: str
    unit: str
    attributes: tuple[str, ...]
    description: str
    buckets: tuple[float, ...] | None = None


_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_QUEUE_INFO = (QUEUE, *(f"awa.queue.{name}" for name in DESCRIBED))
_KIND_INFO = (KIND, *(f"awa.job_kind.{name}" for name in DESCRIBED))
_ENGINES = ("current_engine", "active_engine", "prepared_engine")
_STORAGE_STATE = ("awa.storage.state", *(f"awa.storage.{name}" for name in _ENGINES))
_Q, _KQ, _QR, _S = (QUEUE,), (KIND, QUEUE), (QUEUE, REASON), (STATE,)
_ROTATE, _PRUNE = (RING, RING_OUTCOME, BLOCKER), (RING, RING_OUTCOME, RING_REASON)

# fmt: off
INSTRUMENTS: Mapping[str, Instrument] = {item.name: item for item in (
    Instrument("awa.job.inserted", "counter", "{job}", _KQ, "Jobs stored"),
    Instrument("awa.enqueue.batch_size", "histogram", "{job}", _Q, "Jobs stored by one bulk enqueue"),
    Instrument("awa.enqueue.duration", "histogram", "s", _Q, "Duration of a bulk enqueue", _SECONDS),
    Instrument("awa.job.claimed", "counter", "{job}", (QUEUE, ENQUEUE_SHARD), "Jobs handed out to this worker"),
    Instrument("awa.job.wait_duration", "histogram", "s", _Q, "From the creation of a job to its claim", _SECONDS),
    Instrument("awa.job.in_flight", "up-down counter", "{job}", _Q, "Handlers that are running"),
    Instrument("awa.job.completed", "counter", "{job}", _KQ, "Jobs that succeeded"),
    Instrument("awa.job.duration", "histogram", "s", _KQ, "Time in the handler of jobs that succeeded"),
    Instrument("awa.job.retried", "counter", "{job}", _KQ, "Attempts that end with another one due"),
    Instrument("awa.job.failed", "counter", "{job}", (*_KQ, TERMINAL), "Jobs that failed for good"),
    Instrument("awa.job.cancelled", "counter", "{job}", _KQ, "Jobs that their handler cancelled"),
    Instrument("awa.job.waiting_external", "counter", "{job}", _KQ, "Attempts parked until a callback comes"),
    Instrument("awa.job.dlq_moved", "counter", "{job}", (*_KQ, DLQ_REASON), "Jobs moved to the dead letters"),
    Instrument("awa.job.dlq_retried", "counter", "{job}", _Q, "Dead letters put back to work"),
    Instrument("awa.job.dlq_purged", "counter", "{job}", _Q, "Dead letters deleted"),
    Instrument("awa.job.dlq_depth", "gauge", "{job}", _Q, "Dead letters"),
    Instrument("awa.queue.depth", "gauge", "{job}", (QUEUE, STATE), "Jobs that are not finished, and failed ones"),
    Instrument("awa.queue.lag", "gauge", "s", _Q, "Age of the oldest job that could be claimed"),
    Instrument("awa.queue.info", "gauge", "{queue}", _QUEUE_INFO, "1 for each queue of this worker"),
    Instrument("awa.job_kind.info", "gauge", "{kind}", _KIND_INFO, "1 for each kind that this worker handles"),
    Instrument("awa.dispatch.wakeups", "counter", "{wake}", _QR, "Wake-ups of the claim loop"),
    Instrument("awa.dispatch.wake_to_claim_duration", "histogram", "s", _QR, "From a wake-up to its first claim"),
    Instrument("awa.dispatch.capacity_available", "histogram", "{permit}", _QR, "Free permits at the first claim"),
    Instrument("awa.dispatch.empty_claims", "counter", "{wake}", _QR, "Wake-ups whose first claim found nothing"),
    Instrument("awa.dispatch.rate_limited", "counter", "{wake}", _QR, "Wake-ups that the rate limit held back"),
    Instrument("awa.dispatch.unused_permits", "counter", "{permit}", _Q, "Permits given back after a claim"),
    Instrument("awa.dispatch.claim_batches", "counter", "{batch}", _Q, "Claim rounds, also empty ones"),
    Instrument("awa.dispatch.claim_batch_size", "histogram", "{job}", _Q, "Jobs found by a claim round"),
    Instrument("awa.dispatch.claim_duration", "histogram", "s", _Q, "Duration of a claim round"),
    Instrument("awa.completion.flushes", "counter", "{batch}", (SHARD,), "Batches of outcomes written, or tried"),
    Instrument("awa.completion.flush_batch_size", "histogram", "{job}", (SHARD,), "Outcomes in such a batch"),
    Instrument("awa.completion.flush_duration", "histogram", "s", (SHARD,), "Time to write such a batch"),
    Instrument("awa.completion.deadlock_retry", "counter", "", (), "Batches tried again after a deadlock"),
    Instrument("awa.heartbeat.batches", "counter", "{batch}", (), "Statements that renewed heartbeats"),
    Instrument("awa.maintenance.rescues", "counter", "{job}", (RESCUE,), "Attempts taken away from their worker"),
    Instrument("awa.maintenance.promote_batches", "counter", "{batch}", _S, "Statements that promoted due jobs"),
    Instrument("awa.maintenance.promote_batch_size", "histogram", "{job}", _S, "Jobs that one of them promoted"),
    Instrument("awa.maintenance.promote_duration", "histogram", "s", _S, "Duration of one of them"),
    Instrument("awa.maintenance.branch.duration", "histogram", "s", (BRANCH,), "Duration of a duty", _SECONDS),
    Instrument("awa.maintenance.branch.overrun", "counter", "{episode}", (BRANCH,), "Duties that became too slow"),
    Instrument("awa.maintenance.rotate.attempts", "counter", "{attempt}", _ROTATE, "Attempts to turn a ring"),
    Instrument("awa.maintenance.rotate.skipped_rows", "histogram", "{row}", _ROTATE, "Rows in the way of a turn"),
    Instrument("awa.maintenance.prune.attempts", "counter", "{attempt}", _PRUNE, "Attempts to empty a slot"),
    Instrument("awa.maintenance.prune.skipped_rows", "histogram", "{row}", _PRUNE, "Rows that keep a slot in use"),
    Instrument("awa.ring.current_slot", "gauge", "{slot}", (RING,), "The slot that new rows go to"),
    Instrument("awa.ring.generation", "gauge", "{generation}", (RING,), "Turns of the ring"),
    Instrument("awa.storage.state", "gauge", "{state}", _STORAGE_STATE, "1 for the state of the storage move"),
    Instrument("awa.storage.transition_ready", "gauge", "{state}", ("awa.storage.action",), "1 if it may be done"),
    Instrument("awa.storage.canonical_live_backlog", "gauge", "{job}", (), "Unfinished jobs in canonical tables"),
    Instrument("awa.storage.live_runtime_capability", "gauge", "{runtime}", ("awa.storage.capability",),
               "Live runtimes by what they serve"),
    Instrument("awa.followup.failed", "counter", "{job}", (KIND, OUTCOME), "Follow-ups that could not be stored"),
    Instrument("awa.event.dropped", "counter", "{event}", (KIND, OUTCOME), "Lifecycle events nobody had time for"),
)}

#: A duty of the timetable by how its name begins: its branch in metrics, and its spans from the outermost.
DUTIES: Mapping[str, tuple[str, ...]] = {
    "rescue of stale leases": ("rescue_stale_heartbeats", "maintenance.rescue_stale", "queue_storage.rescue"),
    "rescue of stale receipts": ("rescue_stale_heartbeats", "maintenance.rescue_stale", "queue_storage.rescue"),
    "rescue past deadline": ("rescue_expired_deadlines", "maintenance.rescue_deadline", "queue_storage.rescue"),
    "rescue of unanswered callbacks": (
        "rescue_expired_callbacks", "maintenance.rescue_callback_timeout", "queue_storage.rescue",
    ),
    "promotion": ("promote_scheduled", "maintenance.promote", "queue_storage.promote"),
    "queue ring": ("rotate_queue", "queue_storage.rotate"),
    "lease ring": ("rotate_lease", "queue_storage.rotate"),
    "claim ring": ("rotate_claim", "queue_storage.rotate"),
    "counter roll-up": ("terminal_count_rollup", "queue_storage.rollup"),
    "ageing of priorities": ("priority_aging", "maintenance.priority_aging"),
    "recount of touched queues": ("recompute_dirty_admin_metadata", "maintenance.recompute_dirty_metadata"),
    "recount of all queues": ("refresh_admin_metadata", "maintenance.refresh_admin_metadata"),
    "cron sync": ("cron_sync", "maintenance.cron_sync"),
    "batch operations": ("batch_operations", "maintenance.batch_operations"),
    "queue metrics": ("queue_stats", "maintenance.queue_stats"),
    "cleanup of canonical jobs": ("cleanup", "maintenance.cleanup"),
    "cleanup of bulk operations": ("cleanup", "maintenance.cleanup"),
    "cleanup of dead letters": ("cleanup", "maintenance.cleanup_dlq"),
    "cleanup of runtimes": ("cleanup", "maintenance.cleanup_runtime_snapshots"),
    "cleanup of queue labels": ("cleanup", "maintenance.cleanup_stale_descriptors"),
    "cleanup of kind labels": ("cleanup", "maintenance.cleanup_stale_descriptors"),
    "sweep of orphaned unique keys": ("sweep_unique_keys", "maintenance.sweep_unique_keys"),
    "sweep of orphaned heartbeats": ("sweep_heartbeats", "maintenance.sweep_heartbeats"),
    "repair of double ends": ("repair_double_ends", "maintenance.repair_double_ends"),
    "leadership check": ("leadership_check", "maintenance.leadership_check"),
}

_JOB = ("job.id", "job.kind", "job.queue", "job.attempt")
_MESSAGE = ("messaging.system", "messaging.operation.type", "messaging.destination.name")

#: Every span, with its attributes. ``<kind>`` stands for the kind of job.
SPANS: Mapping[str, tuple[str, ...]] = {
    "enqueue <kind>": ("job.kind", "job.queue", *_MESSAGE),
    "enqueue": ("job.count", "messaging.batch.message_count", "messaging.system", "messaging.operation.type"),
    "dispatch.poll": ("queue",),
    "queue_storage.claim": ("queue", "instance"),
    "canonical.claim": ("queue", "instance"),
    "job.execute <kind>": (*_JOB, *_MESSAGE, "messaging.message.id"),
    "completion.flush": ("shard", "batch_size"),
    "queue_storage.complete": ("instance",),
    "canonical.complete": ("instance",),
    "job.finalize <kind>": (*_JOB, "job.state"),
    "heartbeat.tick": ("interval",),
    "maintenance.cron_eval": (),
} | {span: ("instance",) for _, *spans in DUTIES.values() for span in spans}
# fmt: on


@cache
def duty_names(name: str) -> tuple[str, tuple[str, ...]]:
    """The branch and the spans of a duty, by its name in the timetable."""
    for beginning, (branch, *spans) in DUTIES.items():
        if name.startswith(beginning):
            canonical = name.endswith("(canonical)")
            return branch, tuple(
                span for span in spans if not (canonical and span.startswith("queue_storage."))
            )
    slug = re.sub(r"\W+", "_", name).strip("_")
    return slug, (f"maintenance.{slug}",)
