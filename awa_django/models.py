# ruff: noqa: DJ001
# NULL is what the tables say, not what a model would choose.
"""What schema ``awa`` holds, as read-only models.

For looking: in shells, admin pages, reports, tests. Jobs are changed by awa_django's functions, which keep
the rules between these tables; ``save``, ``delete`` and their kin raise. A queryset takes locks like any
other (``select_for_update()``, but never with ``of=``: PostgreSQL wants bare names there).

Django neither makes nor changes these tables. Partitions are reached through their parents. Where the
real key has several columns and one of them tells rows apart in practice, that one is the primary key
here, since the admin cannot show a model with a composite key; the others have their real, composite one.

At any size, think before using ``Job``: each query on that view reads every job first (contract: schema,
section 4.5).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from django.contrib.postgres.fields import ArrayField
from django.core.checks import CheckMessage
from django.core.exceptions import EmptyResultSet
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.lookups import In
from django.utils.translation import gettext_lazy as _

from awa_django.states import JobState

__all__ = [
    "AttemptState",
    "BatchOperation",
    "BatchOperationItem",
    "ClaimRingSlot",
    "ClaimRingState",
    "CronJob",
    "DeferredJob",
    "DirtyKind",
    "DirtyKindMark",
    "DirtyQueue",
    "DirtyQueueMark",
    "DlqEntry",
    "DoneEntry",
    "Job",
    "JobHot",
    "JobKind",
    "JobQueue",
    "KindDescriptor",
    "Lease",
    "LeaseClaim",
    "LeaseClaimBatch",
    "LeaseClaimClosure",
    "LeaseClaimClosureBatch",
    "LeaseRingSlot",
    "LeaseRingState",
    "QueueClaimHead",
    "QueueClaimerLease",
    "QueueClaimerState",
    "QueueDescriptor",
    "QueueEnqueueHead",
    "QueueLane",
    "QueueMeta",
    "QueueRingSlot",
    "QueueRingState",
    "QueueStateCount",
    "QueueTerminalCountDelta",
    "QueueTerminalLiveCount",
    "QueueTerminalRollup",
    "ReadyClaimAttemptBatch",
    "ReadyEntry",
    "ReadySegment",
    "ReadyTombstone",
    "ReceiptCompletionBatch",
    "ReceiptCompletionTombstone",
    "RuntimeInstance",
    "RuntimeStorageBackend",
    "ScheduledJob",
    "SchemaVersion",
    "StorageTransitionState",
    "TerminalJob",
    "UniqueClaim",
    "table",
]

STATE_LABELS = {
    JobState.SCHEDULED: _("scheduled"),
    JobState.AVAILABLE: _("available"),
    JobState.RUNNING: _("running"),
    JobState.COMPLETED: _("completed"),
    JobState.RETRYABLE: _("retryable"),
    JobState.FAILED: _("failed"),
    JobState.CANCELLED: _("cancelled"),
    JobState.WAITING_EXTERNAL: _("waiting for callback"),
}


def table(name: str) -> str:
    """The ``db_table`` of a relation in schema ``awa``: the one place that knows how Django is told."""
    return f'"awa"."{name}"'


if TYPE_CHECKING:
    _ArrayField = ArrayField[Any, Any]
    _CharField = models.CharField[Any, Any]
    _DateTimeField = models.DateTimeField[Any, Any]
    _Field = models.Field[Any, Any]
else:
    _ArrayField, _Field = ArrayField, models.Field
    _CharField, _DateTimeField = models.CharField, models.DateTimeField


# Columns ------------------------------------------------------------------------------------------------


class JobStateField(_CharField):
    """A column of the enum ``awa.job_state``; values are :class:`~awa_django.states.JobState`.

    A word that is no state matches nothing, instead of failing the statement: filters come from URLs.
    """

    description = _("Job state")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["choices"] = [(state.value, label) for state, label in STATE_LABELS.items()]
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        name, path, args, kwargs = super().deconstruct()
        kwargs.pop("choices", None)
        return name, path, list(args), dict(kwargs)

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "awa.job_state"

    def from_db_value(self, value: str | None, expression: object, connection: object) -> str | None:
        return JobState(value) if value in _STATE_WORDS else value

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        if isinstance(value, str):
            if value not in _STATE_WORDS:
                raise EmptyResultSet
            value = str(value)
        return super().get_db_prep_value(value, connection, prepared)


_STATE_WORDS = frozenset(state.value for state in JobState)


@JobStateField.register_lookup
class _KnownStates(In):
    """``state__in``: words that are no state are left out, and the others still match."""

    def get_prep_lookup(self) -> Any:
        if self.rhs_is_direct_value() and isinstance(self.rhs, Iterable):
            self.rhs = [item for item in self.rhs if not isinstance(item, str) or item in _STATE_WORDS]
        return super().get_prep_lookup()


class MaskField(_CharField):
    """A column ``bit(8)``, as eight characters, the leftmost for ``scheduled``."""

    description = _("State mask")

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "bit(8)"


class MultirangeField(_Field):
    """A column ``int8multirange``, as the driver's ``Multirange``."""

    description = _("Ranges of bigint")

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "int8multirange"


class CursorTimeField(_DateTimeField):
    """An instant that starts at ``-infinity``, which no Python value stands for; read as None."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return f"NULLIF({sql}, '-infinity')", params


class ArrayColumn(_ArrayField):
    """An array, read without more than PostgreSQL.

    Django's field wants ``django.contrib.postgres`` installed, which is for what that app adds to forms and
    to connections. None of it is needed here, so a project need not install it for us.
    """

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return [message for message in super().check(**kwargs) if message.id != "postgres.E005"]


def _numbers(**options: Any) -> ArrayColumn:
    return ArrayColumn(models.BigIntegerField(), **options)


def _small_numbers(**options: Any) -> ArrayColumn:
    return ArrayColumn(models.SmallIntegerField(), **options)


def _texts(**options: Any) -> ArrayColumn:
    return ArrayColumn(models.TextField(), **options)


# Reading only -------------------------------------------------------------------------------------------


def _refuse(model: type[models.Model]) -> NoReturn:
    raise TypeError(
        f"{model.__name__} is read-only: its rows belong to the queue. "
        "Use the functions of awa_django, or `manage.py awa`, to change jobs"
    )


class ReadOnlyQuerySet(models.QuerySet[Any]):
    """A queryset that reads and locks, and writes nothing."""

    def _refused(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self.model)

    create = bulk_create = get_or_create = update_or_create = _refused
    update = bulk_update = delete = _update = _insert = _raw_delete = _refused


class ReadModel(models.Model):
    """The base of every model here."""

    objects: ClassVar[models.Manager[Any]] = ReadOnlyQuerySet.as_manager()

    class Meta:
        abstract = True
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(type(self))

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(type(self))


class _Named(ReadModel):
    """Rows that people call by a job's kind and number."""

    class Meta(ReadModel.Meta):
        abstract = True

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"  # type: ignore[attr-defined]


# Canonical plane ----------------------------------------------------------------------------------------


class _CanonicalJob(_Named):
    """The 27 columns of a canonical job."""

    id = models.BigIntegerField(primary_key=True)
    kind = models.TextField(_("kind"))
    queue = models.TextField(_("queue"))
    args = models.JSONField(_("arguments"))
    state = JobStateField(_("state"))
    priority = models.SmallIntegerField(_("priority"))
    attempt = models.SmallIntegerField(_("attempt"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    run_at = models.DateTimeField(_("run at"))
    heartbeat_at = models.DateTimeField(_("heartbeat at"), null=True)
    deadline_at = models.DateTimeField(_("deadline at"), null=True)
    attempted_at = models.DateTimeField(_("attempted at"), null=True)
    finalized_at = models.DateTimeField(_("finalized at"), null=True)
    created_at = models.DateTimeField(_("created at"))
    errors = ArrayColumn(models.JSONField(), verbose_name=_("errors"), null=True)
    metadata = models.JSONField(_("metadata"))
    tags = _texts(verbose_name=_("tags"))
    unique_key = models.BinaryField(_("unique key"), null=True)
    unique_states = MaskField(_("states that hold the unique key"), null=True)
    callback_id = models.UUIDField(_("callback"), null=True)
    callback_timeout_at = models.DateTimeField(_("callback times out at"), null=True)
    callback_filter = models.TextField(null=True)
    callback_on_complete = models.TextField(null=True)
    callback_on_fail = models.TextField(null=True)
    callback_transform = models.TextField(null=True)
    run_lease = models.BigIntegerField(_("lease"))
    progress = models.JSONField(_("progress"), null=True)

    class Meta(_Named.Meta):
        abstract = True


class Job(_CanonicalJob):
    """View: every job of the storage engine in force, the finished ones too. Slow at any size."""

    class Meta(_CanonicalJob.Meta):
        db_table = table("jobs")
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = [
            ("retry_job", _("Can retry jobs")),
            ("cancel_job", _("Can cancel jobs")),
            ("change_job_priority", _("Can change the priority of jobs")),
            ("move_job", _("Can move jobs to another queue")),
            ("discard_job", _("Can discard failed jobs")),
            ("resolve_callback", _("Can complete, fail, retry and resume waiting callbacks")),
        ]


class JobHot(_CanonicalJob):
    """A canonical job that is not deferred."""

    class Meta(_CanonicalJob.Meta):
        db_table = table("jobs_hot")
        verbose_name = _("canonical job")
        verbose_name_plural = _("canonical jobs")


class ScheduledJob(_CanonicalJob):
    """A canonical job that is scheduled or waits for its next attempt."""

    class Meta(_CanonicalJob.Meta):
        db_table = table("scheduled_jobs")
        verbose_name = _("deferred canonical job")
        verbose_name_plural = _("deferred canonical jobs")


class UniqueClaim(ReadModel):
    """Which job holds a unique key. The table has a unique index and no primary key."""

    unique_key = models.BinaryField(_("unique key"), primary_key=True)
    job_id = models.BigIntegerField(_("job"))

    class Meta(ReadModel.Meta):
        db_table = table("job_unique_claims")
        verbose_name = _("unique claim")
        verbose_name_plural = _("unique claims")

    def __str__(self) -> str:
        return f"{bytes(self.unique_key).hex()}: {self.job_id}"


# Control plane ------------------------------------------------------------------------------------------


class SchemaVersion(ReadModel):
    """One step of the schema's history."""

    version = models.IntegerField(_("version"), primary_key=True)
    description = models.TextField(_("description"))
    applied_at = models.DateTimeField(_("applied at"))

    class Meta(ReadModel.Meta):
        db_table = table("schema_version")
        verbose_name = _("schema version")
        verbose_name_plural = _("schema versions")


class QueueMeta(ReadModel):
    """An operator's settings of a queue; a queue without a row has the defaults."""

    queue = models.TextField(_("queue"), primary_key=True)
    paused = models.BooleanField(_("paused"))
    paused_at = models.DateTimeField(_("paused at"), null=True)
    paused_by = models.TextField(_("paused by"), null=True)
    enqueue_shards = models.SmallIntegerField(_("enqueue shards"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_meta")
        verbose_name = _("queue settings")
        verbose_name_plural = _("queue settings")
        permissions = [
            ("pause_queue", _("Can pause and resume queues")),
            ("drain_queue", _("Can drain queues")),
            ("change_queue_shards", _("Can change the enqueue shards of queues")),
        ]


class CronJob(ReadModel):
    """A periodic schedule. ``last_enqueued_at`` is a fire time of the schedule, not a wall time."""

    name = models.TextField(_("name"), primary_key=True)
    cron_expr = models.TextField(_("expression"))
    timezone = models.TextField(_("time zone"))
    kind = models.TextField(_("kind"))
    queue = models.TextField(_("queue"))
    args = models.JSONField(_("arguments"))
    priority = models.SmallIntegerField(_("priority"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    tags = _texts(verbose_name=_("tags"))
    metadata = models.JSONField(_("metadata"))
    missed_fire_policy = models.TextField(_("missed fires"))
    last_enqueued_at = models.DateTimeField(_("last fire"), null=True)
    created_at = models.DateTimeField(_("created at"))
    updated_at = models.DateTimeField(_("updated at"))
    paused_at = models.DateTimeField(_("paused at"), null=True)
    paused_by = models.TextField(_("paused by"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("cron_jobs")
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = [
            ("pause_cronjob", _("Can pause and resume schedules")),
            ("trigger_cronjob", _("Can trigger schedules")),
        ]


class _Descriptor(ReadModel):
    """What code says about a queue or a kind."""

    display_name = models.TextField(_("display name"), null=True)
    description = models.TextField(_("description"), null=True)
    owner = models.TextField(_("owner"), null=True)
    docs_url = models.TextField(_("documentation"), null=True)
    tags = _texts(verbose_name=_("tags"))
    extra = models.JSONField(_("extra"))
    descriptor_hash = models.TextField(_("hash"))
    sync_interval_ms = models.BigIntegerField(_("milliseconds between two writes"))
    created_at = models.DateTimeField(_("created at"))
    updated_at = models.DateTimeField(_("updated at"))
    last_seen_at = models.DateTimeField(_("last seen at"))

    class Meta(ReadModel.Meta):
        abstract = True


class QueueDescriptor(_Descriptor):
    """What code says about a queue."""

    queue = models.TextField(_("queue"), primary_key=True)

    class Meta(_Descriptor.Meta):
        db_table = table("queue_descriptors")
        verbose_name = _("queue descriptor")
        verbose_name_plural = _("queue descriptors")


class KindDescriptor(_Descriptor):
    """What code says about a kind of job."""

    kind = models.TextField(_("kind"), primary_key=True)

    class Meta(_Descriptor.Meta):
        db_table = table("job_kind_descriptors")
        verbose_name = _("kind descriptor")
        verbose_name_plural = _("kind descriptors")


class QueueStateCount(ReadModel):
    """Cached: canonical jobs of a queue by state, two seconds old. Says nothing of queue storage."""

    queue = models.TextField(_("queue"), primary_key=True)
    scheduled = models.BigIntegerField(STATE_LABELS[JobState.SCHEDULED])
    available = models.BigIntegerField(STATE_LABELS[JobState.AVAILABLE])
    running = models.BigIntegerField(STATE_LABELS[JobState.RUNNING])
    completed = models.BigIntegerField(STATE_LABELS[JobState.COMPLETED])
    retryable = models.BigIntegerField(STATE_LABELS[JobState.RETRYABLE])
    failed = models.BigIntegerField(STATE_LABELS[JobState.FAILED])
    cancelled = models.BigIntegerField(STATE_LABELS[JobState.CANCELLED])
    waiting_external = models.BigIntegerField(STATE_LABELS[JobState.WAITING_EXTERNAL])

    class Meta(ReadModel.Meta):
        db_table = table("queue_state_counts")
        verbose_name = _("canonical counts of a queue")
        verbose_name_plural = _("canonical counts of queues")


class JobQueue(ReadModel):
    """Cached: a queue with its number of canonical jobs."""

    queue = models.TextField(_("queue"), primary_key=True)
    ref_count = models.BigIntegerField(_("jobs"))

    class Meta(ReadModel.Meta):
        db_table = table("job_queue_catalog")
        verbose_name = _("queue with canonical jobs")
        verbose_name_plural = _("queues with canonical jobs")


class JobKind(ReadModel):
    """Cached: a kind with its number of canonical jobs."""

    kind = models.TextField(_("kind"), primary_key=True)
    ref_count = models.BigIntegerField(_("jobs"))

    class Meta(ReadModel.Meta):
        db_table = table("job_kind_catalog")
        verbose_name = _("kind with canonical jobs")
        verbose_name_plural = _("kinds with canonical jobs")


class _QueueMark(ReadModel):
    queue = models.TextField(_("queue"), primary_key=True)
    touched_at = models.DateTimeField(_("touched at"))

    class Meta(ReadModel.Meta):
        abstract = True


class _KindMark(ReadModel):
    kind = models.TextField(_("kind"), primary_key=True)
    touched_at = models.DateTimeField(_("touched at"))

    class Meta(ReadModel.Meta):
        abstract = True


class DirtyQueueMark(_QueueMark):
    """The counts of this queue changed. The table has no key, and a queue can have many marks."""

    class Meta(_QueueMark.Meta):
        db_table = table("admin_dirty_queue_marks")
        verbose_name = _("mark of a queue to count")
        verbose_name_plural = _("marks of queues to count")


class DirtyKindMark(_KindMark):
    """The count of this kind changed. The table has no key, and a kind can have many marks."""

    class Meta(_KindMark.Meta):
        db_table = table("admin_dirty_kind_marks")
        verbose_name = _("mark of a kind to count")
        verbose_name_plural = _("marks of kinds to count")


class DirtyQueue(_QueueMark):
    """Superseded by :class:`DirtyQueueMark`; always empty."""

    class Meta(_QueueMark.Meta):
        db_table = table("admin_dirty_queues")
        verbose_name = _("queue to count (superseded)")
        verbose_name_plural = _("queues to count (superseded)")


class DirtyKind(_KindMark):
    """Superseded by :class:`DirtyKindMark`; always empty."""

    class Meta(_KindMark.Meta):
        db_table = table("admin_dirty_kinds")
        verbose_name = _("kind to count (superseded)")
        verbose_name_plural = _("kinds to count (superseded)")


class RuntimeInstance(ReadModel):
    """One worker process. A stopped one leaves its row for a day."""

    instance_id = models.UUIDField(_("instance"), primary_key=True)
    hostname = models.TextField(_("host"), null=True)
    pid = models.IntegerField(_("process"))
    version = models.TextField(_("version"))
    started_at = models.DateTimeField(_("started at"))
    last_seen_at = models.DateTimeField(_("last seen at"))
    snapshot_interval_ms = models.BigIntegerField(_("milliseconds between two signs of life"))
    healthy = models.BooleanField(_("healthy"))
    postgres_connected = models.BooleanField(_("connected"))
    poll_loop_alive = models.BooleanField(_("claims"))
    heartbeat_alive = models.BooleanField(_("heartbeats"))
    maintenance_alive = models.BooleanField(_("maintenance"))
    shutting_down = models.BooleanField(_("shutting down"))
    leader = models.BooleanField(_("leader"))
    global_max_workers = models.IntegerField(_("worker limit"), null=True)
    queues = models.JSONField(_("queues"))
    queue_descriptor_hashes = models.JSONField(_("queue descriptors"))
    job_kind_descriptor_hashes = models.JSONField(_("kind descriptors"))
    storage_capability = models.TextField(_("storage capability"))
    transition_role = models.TextField(_("role in a storage transition"))

    class Meta(ReadModel.Meta):
        db_table = table("runtime_instances")
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return f"{self.hostname or '?'}:{self.pid}"


class BatchOperation(ReadModel):
    """A change of many jobs, run in chunks by the leader."""

    id = models.UUIDField(primary_key=True)
    op_kind = models.TextField(_("operation"))
    filter = models.JSONField(_("filter"))
    spec = models.JSONField(_("change"))
    state = models.TextField(_("state"))
    submitted_by = models.TextField(_("submitted by"), null=True)
    submitted_at = models.DateTimeField(_("submitted at"))
    started_at = models.DateTimeField(_("started at"), null=True)
    finalized_at = models.DateTimeField(_("finalized at"), null=True)
    cursor = models.JSONField(_("cursor"), null=True)
    total_matched = models.BigIntegerField(_("matched"), null=True)
    processed = models.BigIntegerField(_("processed"))
    skipped = models.BigIntegerField(_("skipped"))
    errored = models.BigIntegerField(_("errored"))
    last_error = models.TextField(_("last error"), null=True)
    runner_instance = models.UUIDField(_("run by"), null=True)
    retention_until = models.DateTimeField(_("kept until"), null=True)
    updated_at = models.DateTimeField(_("updated at"))

    class Meta(ReadModel.Meta):
        db_table = table("batch_operations")
        verbose_name = _("batch operation")
        verbose_name_plural = _("batch operations")
        permissions = [
            ("submit_batchoperation", _("Can submit batch operations")),
            ("cancel_batchoperation", _("Can cancel batch operations")),
        ]


class BatchOperationItem(ReadModel):
    """One job of a batch operation."""

    pk = models.CompositePrimaryKey("operation", "job_id")
    operation = models.ForeignKey(
        BatchOperation, on_delete=models.DO_NOTHING, db_constraint=False, related_name="items"
    )
    job_id = models.BigIntegerField(_("job"))
    state = models.TextField(_("state"))
    error = models.TextField(_("error"), null=True)
    processed_at = models.DateTimeField(_("processed at"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("batch_operation_items")
        verbose_name = _("item of a batch operation")
        verbose_name_plural = _("items of batch operations")


class StorageTransitionState(ReadModel):
    """Which storage engine takes new work; one row."""

    singleton = models.BooleanField(primary_key=True)
    current_engine = models.TextField(_("engine"))
    prepared_engine = models.TextField(_("engine moved to"), null=True)
    state = models.TextField(_("state"))
    transition_epoch = models.BigIntegerField(_("epoch"))
    details = models.JSONField(_("details"))
    entered_at = models.DateTimeField(_("entered at"))
    updated_at = models.DateTimeField(_("updated at"))
    finalized_at = models.DateTimeField(_("finalized at"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("storage_transition_state")
        verbose_name = _("storage transition")
        verbose_name_plural = _("storage transition")
        permissions = [("manage_storage", _("Can move jobs from one storage engine to the other"))]


class RuntimeStorageBackend(ReadModel):
    """The marker that queue storage accepts work, and in which schema."""

    backend = models.TextField(_("engine"), primary_key=True)
    schema_name = models.TextField(_("schema"))
    updated_at = models.DateTimeField(_("updated at"))

    class Meta(ReadModel.Meta):
        db_table = table("runtime_storage_backends")
        verbose_name = _("storage engine")
        verbose_name_plural = _("storage engines")


# Queue storage: shared columns --------------------------------------------------------------------------


class _Slot(ReadModel):
    """Where in the queue ring the ready row of a fact is."""

    ready_slot = models.IntegerField(_("slot"))
    ready_generation = models.BigIntegerField(_("generation"))

    class Meta(ReadModel.Meta):
        abstract = True


class _Lane(ReadModel):
    queue = models.TextField(_("queue"))
    priority = models.SmallIntegerField(_("priority"))
    enqueue_shard = models.SmallIntegerField(_("shard"))

    class Meta(ReadModel.Meta):
        abstract = True


class _Carried(ReadModel):
    """What a job carries from row to row: its unique key and the payload."""

    unique_key = models.BinaryField(_("unique key"), null=True)
    unique_states = models.TextField(_("states that hold the unique key"), null=True)
    payload = models.JSONField(_("payload"), null=True)

    class Meta(ReadModel.Meta):
        abstract = True


class _StoredJob(_Carried, _Named):
    """A job outside the lanes, with everything that belongs to it."""

    job_id = models.BigIntegerField(_("job"), primary_key=True)
    kind = models.TextField(_("kind"))
    queue = models.TextField(_("queue"))
    args = models.JSONField(_("arguments"))
    state = JobStateField(_("state"))
    priority = models.SmallIntegerField(_("priority"))
    attempt = models.SmallIntegerField(_("attempt"))
    run_lease = models.BigIntegerField(_("lease"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    run_at = models.DateTimeField(_("run at"))
    attempted_at = models.DateTimeField(_("attempted at"), null=True)
    finalized_at = models.DateTimeField(_("finalized at"), null=True)
    created_at = models.DateTimeField(_("created at"))

    class Meta(ReadModel.Meta):
        abstract = True

    __str__ = _Named.__str__


class _Finished(_Carried, _Slot, _Lane, _Named):
    """A finished job. Its real key is its place in the ring and the lane; a job finishes once."""

    job_id = models.BigIntegerField(_("job"), primary_key=True)
    kind = models.TextField(_("kind"))
    args = models.JSONField(_("arguments"), null=True)
    state = JobStateField(_("state"))
    attempt = models.SmallIntegerField(_("attempt"))
    run_lease = models.BigIntegerField(_("lease"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"), null=True)
    lane_seq = models.BigIntegerField(_("position"))
    run_at = models.DateTimeField(_("run at"), null=True)
    attempted_at = models.DateTimeField(_("attempted at"), null=True)
    finalized_at = models.DateTimeField(_("finalized at"))
    created_at = models.DateTimeField(_("created at"), null=True)

    class Meta(ReadModel.Meta):
        abstract = True

    __str__ = _Named.__str__


# Queue storage: jobs ------------------------------------------------------------------------------------


class ReadyEntry(_Carried, _Slot, _Lane, _Named):
    """An emission of a job: each enqueue, promotion and retry writes one. The real key is its place in
    the ring and the lane; rows of one job differ in ``run_lease`` and ``lane_seq``."""

    job_id = models.BigIntegerField(_("job"), primary_key=True)
    kind = models.TextField(_("kind"))
    args = models.JSONField(_("arguments"))
    attempt = models.SmallIntegerField(_("attempts so far"))
    run_lease = models.BigIntegerField(_("last lease"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    lane_seq = models.BigIntegerField(_("position"))
    run_at = models.DateTimeField(_("available since"))
    attempted_at = models.DateTimeField(_("attempted at"), null=True)
    created_at = models.DateTimeField(_("created at"))

    class Meta(ReadModel.Meta):
        db_table = table("ready_entries")
        verbose_name = _("ready entry")
        verbose_name_plural = _("ready entries")

    __str__ = _Named.__str__


class DeferredJob(_StoredJob):
    """A job that is scheduled or waits for its next attempt."""

    class Meta(_StoredJob.Meta):
        db_table = table("deferred_jobs")
        verbose_name = _("deferred job")
        verbose_name_plural = _("deferred jobs")


class DoneEntry(_Finished):
    """A finished job; what is NULL is read from its ready row."""

    class Meta(_Finished.Meta):
        db_table = table("done_entries")
        verbose_name = _("done entry")
        verbose_name_plural = _("done entries")


class TerminalJob(_Finished):
    """View: every finished job of queue storage in one shape, compact successes included."""

    class Meta(_Finished.Meta):
        db_table = table("terminal_jobs")
        verbose_name = _("finished job")
        verbose_name_plural = _("finished jobs")


class DlqEntry(_StoredJob):
    """A dead letter: a job that failed for good, with everything needed to run it again."""

    finalized_at = models.DateTimeField(_("finalized at"))
    dlq_reason = models.TextField(_("reason"))
    dlq_at = models.DateTimeField(_("dead since"))
    original_run_lease = models.BigIntegerField(_("lease it failed with"))

    class Meta(_StoredJob.Meta):
        db_table = table("dlq_entries")
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        permissions = [
            ("retry_dlqentry", _("Can retry dead letters")),
            ("move_dlqentry", _("Can move failed jobs to the dead letters")),
            ("purge_dlqentry", _("Can purge dead letters")),
        ]


# Queue storage: attempts --------------------------------------------------------------------------------


class Lease(_Slot, _Lane):
    """An attempt that needed a row of its own, such as one that waits for a callback. The real key is its
    lease slot and its place in the lane; a job has one at most."""

    job_id = models.BigIntegerField(_("job"), primary_key=True)
    lease_slot = models.IntegerField(_("lease slot"))
    lease_generation = models.BigIntegerField(_("lease generation"))
    state = JobStateField(_("state"))
    attempt = models.SmallIntegerField(_("attempt"))
    run_lease = models.BigIntegerField(_("lease"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    lane_seq = models.BigIntegerField(_("position"))
    heartbeat_at = models.DateTimeField(_("heartbeat at"), null=True)
    deadline_at = models.DateTimeField(_("deadline at"), null=True)
    attempted_at = models.DateTimeField(_("attempted at"), null=True)
    callback_id = models.UUIDField(_("callback"), null=True)
    callback_timeout_at = models.DateTimeField(_("callback times out at"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("leases")
        verbose_name = _("lease")
        verbose_name_plural = _("leases")


class AttemptState(ReadModel):
    """What a running attempt changes: heartbeat, progress, callback. Most short jobs have none."""

    pk = models.CompositePrimaryKey("job_id", "run_lease")
    job_id = models.BigIntegerField(_("job"))
    run_lease = models.BigIntegerField(_("lease"))
    heartbeat_at = models.DateTimeField(_("heartbeat at"), null=True)
    progress = models.JSONField(_("progress"), null=True)
    callback_filter = models.TextField(null=True)
    callback_on_complete = models.TextField(null=True)
    callback_on_fail = models.TextField(null=True)
    callback_transform = models.TextField(null=True)
    callback_result = models.JSONField(_("callback result"), null=True)
    updated_at = models.DateTimeField(_("updated at"))

    class Meta(ReadModel.Meta):
        db_table = table("attempt_state")
        verbose_name = _("state of an attempt")
        verbose_name_plural = _("states of attempts")


class LeaseClaim(_Slot, _Lane):
    """The receipt of an attempt with a deadline. The real key is (claim_slot, job_id, run_lease); receipt
    numbers are drawn from one sequence."""

    receipt_id = models.BigIntegerField(_("receipt"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"))
    job_id = models.BigIntegerField(_("job"))
    run_lease = models.BigIntegerField(_("lease"))
    attempt = models.SmallIntegerField(_("attempt"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    lane_seq = models.BigIntegerField(_("position"))
    claimed_at = models.DateTimeField(_("claimed at"))
    materialized_at = models.DateTimeField(_("materialized at"), null=True)
    closed_at = models.DateTimeField(_("closed at"), null=True)
    deadline_at = models.DateTimeField(_("deadline at"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("lease_claims")
        verbose_name = _("receipt")
        verbose_name_plural = _("receipts")


class LeaseClaimBatch(_Slot, _Lane):
    """The receipts of one claim without a deadline. The real key is (claim_slot, batch_id); batch
    numbers are drawn from one sequence."""

    batch_id = models.BigIntegerField(_("batch"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"))
    claimed_count = models.IntegerField(_("jobs"))
    job_ids = _numbers()
    run_leases = _numbers()
    receipt_ids = _numbers()
    receipt_ranges = MultirangeField()
    lane_seqs = _numbers()
    attempts = _small_numbers()
    max_attempts = _small_numbers()
    deadline_at = models.DateTimeField(_("deadline at"), null=True)
    claimed_at = models.DateTimeField(_("claimed at"))

    class Meta(ReadModel.Meta):
        db_table = table("lease_claim_batches")
        verbose_name = _("batch of receipts")
        verbose_name_plural = _("batches of receipts")


class LeaseClaimClosure(ReadModel):
    """The end of one receipt."""

    pk = models.CompositePrimaryKey("claim_slot", "job_id", "run_lease")
    claim_slot = models.IntegerField(_("claim slot"))
    job_id = models.BigIntegerField(_("job"))
    run_lease = models.BigIntegerField(_("lease"))
    outcome = models.TextField(_("outcome"))
    closed_at = models.DateTimeField(_("closed at"))

    class Meta(ReadModel.Meta):
        db_table = table("lease_claim_closures")
        verbose_name = _("closure of a receipt")
        verbose_name_plural = _("closures of receipts")


class LeaseClaimClosureBatch(ReadModel):
    """The end of many receipts. The real key is (claim_slot, batch_id); batch numbers are drawn from one
    sequence."""

    batch_id = models.BigIntegerField(_("batch"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"))
    ready_slot = models.IntegerField(_("slot"), null=True)
    ready_generation = models.BigIntegerField(_("generation"), null=True)
    outcome = models.TextField(_("outcome"))
    closed_count = models.IntegerField(_("receipts"))
    receipt_ids = _numbers()
    receipt_ranges = MultirangeField()
    closed_at = models.DateTimeField(_("closed at"))

    class Meta(ReadModel.Meta):
        db_table = table("lease_claim_closure_batches")
        verbose_name = _("closure of many receipts")
        verbose_name_plural = _("closures of many receipts")


class ReceiptCompletionBatch(_Slot, _Lane):
    """Successes of one claim, compact. The real key is (ready_slot, batch_id); batch numbers are drawn
    from one sequence."""

    batch_id = models.BigIntegerField(_("batch"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"))
    completed_count = models.IntegerField(_("jobs"))
    job_ids = _numbers()
    run_leases = _numbers()
    lane_seqs = _numbers()
    attempts = _small_numbers()
    attempted_ats = ArrayColumn(models.DateTimeField(null=True))
    finalized_at = models.DateTimeField(_("finalized at"))

    class Meta(ReadModel.Meta):
        db_table = table("receipt_completion_batches")
        verbose_name = _("batch of completed jobs")
        verbose_name_plural = _("batches of completed jobs")


class ReceiptCompletionTombstone(_Slot, _Lane):
    """A job that was deleted from a batch of completed ones."""

    pk = models.CompositePrimaryKey("ready_slot", "job_id", "run_lease")
    job_id = models.BigIntegerField(_("job"))
    run_lease = models.BigIntegerField(_("lease"))
    lane_seq = models.BigIntegerField(_("position"))
    deleted_at = models.DateTimeField(_("deleted at"))

    class Meta(ReadModel.Meta):
        db_table = table("receipt_completion_tombstones")
        verbose_name = _("deleted completed job")
        verbose_name_plural = _("deleted completed jobs")


# Queue storage: lanes -----------------------------------------------------------------------------------


class ReadySegment(_Slot, _Lane):
    """A range of a lane's positions that lies in one slot."""

    pk = models.CompositePrimaryKey(
        "ready_slot", "ready_generation", "queue", "priority", "enqueue_shard", "first_lane_seq"
    )
    first_lane_seq = models.BigIntegerField(_("first position"))
    next_lane_seq = models.BigIntegerField(_("position after the last"))
    first_run_at = models.DateTimeField(_("first available since"))
    created_at = models.DateTimeField(_("created at"))

    class Meta(ReadModel.Meta):
        db_table = table("ready_segments")
        verbose_name = _("segment of a lane")
        verbose_name_plural = _("segments of lanes")


class ReadyTombstone(_Slot, _Lane):
    """A position that must not be handed out any more."""

    pk = models.CompositePrimaryKey(
        "ready_slot", "queue", "priority", "enqueue_shard", "lane_seq", "ready_generation"
    )
    lane_seq = models.BigIntegerField(_("position"))
    job_id = models.BigIntegerField(_("job"))
    tombstoned_at = models.DateTimeField(_("since"))

    class Meta(ReadModel.Meta):
        db_table = table("ready_tombstones")
        verbose_name = _("tombstone of a position")
        verbose_name_plural = _("tombstones of positions")


class ReadyClaimAttemptBatch(_Slot, _Lane):
    """Positions that one claim handed out. The real key is (ready_slot, batch_id); batch numbers are
    drawn from one sequence."""

    batch_id = models.BigIntegerField(_("batch"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"), null=True)
    first_lane_seq = models.BigIntegerField(_("first position"))
    next_lane_seq = models.BigIntegerField(_("position after the last"))
    claimed_count = models.IntegerField(_("positions"))
    lane_ranges = MultirangeField()
    claimed_at = models.DateTimeField(_("claimed at"))

    class Meta(ReadModel.Meta):
        db_table = table("ready_claim_attempt_batches")
        verbose_name = _("positions of a claim")
        verbose_name_plural = _("positions of claims")


class QueueLane(ReadModel):
    """A lane: a queue at a priority."""

    pk = models.CompositePrimaryKey("queue", "priority")
    queue = models.TextField(_("queue"))
    priority = models.SmallIntegerField(_("priority"))
    next_seq = models.BigIntegerField(_("unused"))
    claim_seq = models.BigIntegerField(_("unused"))
    pruned_completed_count = models.BigIntegerField(_("completed and pruned (superseded)"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_lanes")
        verbose_name = _("lane")
        verbose_name_plural = _("lanes")


class QueueEnqueueHead(_Lane):
    """Where a lane's next position comes from: the sequence ``seq_name``."""

    pk = models.CompositePrimaryKey("queue", "priority", "enqueue_shard")
    next_seq = models.BigIntegerField(_("input of a trigger"))
    seq_name = models.TextField(_("sequence"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("queue_enqueue_heads")
        verbose_name = _("enqueue head")
        verbose_name_plural = _("enqueue heads")


class QueueClaimHead(_Lane):
    """How far a lane is claimed: the sequence ``seq_name``. Its row lock is the lane's lock."""

    pk = models.CompositePrimaryKey("queue", "priority", "enqueue_shard")
    claim_seq = models.BigIntegerField(_("input of a trigger"))
    seq_name = models.TextField(_("sequence"), null=True)
    ready_segment_slot = models.IntegerField(_("unused"), null=True)
    ready_segment_generation = models.BigIntegerField(_("unused"), null=True)
    ready_segment_next_lane_seq = models.BigIntegerField(_("unused"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("queue_claim_heads")
        verbose_name = _("claim head")
        verbose_name_plural = _("claim heads")


class QueueClaimerState(ReadModel):
    """How many claimers a queue should have."""

    queue = models.TextField(_("queue"), primary_key=True)
    target_claimers = models.SmallIntegerField(_("claimers"))
    updated_at = models.DateTimeField(_("updated at"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_claimer_state")
        verbose_name = _("claimers of a queue")
        verbose_name_plural = _("claimers of queues")


class QueueClaimerLease(ReadModel):
    """The right of one runtime to claim from a queue."""

    pk = models.CompositePrimaryKey("queue", "claimer_slot")
    queue = models.TextField(_("queue"))
    claimer_slot = models.SmallIntegerField(_("claimer"))
    owner_instance_id = models.UUIDField(_("instance"))
    lease_epoch = models.BigIntegerField(_("epoch"))
    leased_at = models.DateTimeField(_("leased at"))
    last_claimed_at = models.DateTimeField(_("last claimed at"))
    expires_at = models.DateTimeField(_("expires at"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_claimer_leases")
        verbose_name = _("claimer")
        verbose_name_plural = _("claimers")


# Queue storage: rings and counters ----------------------------------------------------------------------


class _RingState(ReadModel):
    singleton = models.BooleanField(primary_key=True)
    current_slot = models.IntegerField(_("current slot"))
    generation = models.BigIntegerField(_("generation"))
    slot_count = models.IntegerField(_("slots"))

    class Meta(ReadModel.Meta):
        abstract = True


class _RingSlot(ReadModel):
    slot = models.IntegerField(_("slot"), primary_key=True)
    generation = models.BigIntegerField(_("generation"))

    class Meta(ReadModel.Meta):
        abstract = True


class QueueRingState(_RingState):
    """The cursor of the queue ring; one row."""

    terminal_counter_trusted_at = models.DateTimeField(_("counters exact since"), null=True)

    class Meta(_RingState.Meta):
        db_table = table("queue_ring_state")
        verbose_name = _("queue ring")
        verbose_name_plural = _("queue ring")


class LeaseRingState(_RingState):
    """The cursor of the lease ring; one row."""

    class Meta(_RingState.Meta):
        db_table = table("lease_ring_state")
        verbose_name = _("lease ring")
        verbose_name_plural = _("lease ring")


class ClaimRingState(_RingState):
    """The cursor of the claim ring; one row."""

    class Meta(_RingState.Meta):
        db_table = table("claim_ring_state")
        verbose_name = _("claim ring")
        verbose_name_plural = _("claim ring")


class QueueRingSlot(_RingSlot):
    """A slot of the queue ring with the last generation it was current for, -1 before the first."""

    class Meta(_RingSlot.Meta):
        db_table = table("queue_ring_slots")
        verbose_name = _("slot of the queue ring")
        verbose_name_plural = _("slots of the queue ring")


class LeaseRingSlot(_RingSlot):
    """A slot of the lease ring; its generation stays as it was seeded."""

    class Meta(_RingSlot.Meta):
        db_table = table("lease_ring_slots")
        verbose_name = _("slot of the lease ring")
        verbose_name_plural = _("slots of the lease ring")


class ClaimRingSlot(_RingSlot):
    """A slot of the claim ring with the cursors of rescue; a time cursor at its start is None."""

    rescue_cursor_claimed_at = CursorTimeField(_("stale: claimed at"))
    rescue_cursor_job_id = models.BigIntegerField(_("stale: job"))
    rescue_cursor_run_lease = models.BigIntegerField(_("stale: lease"))
    deadline_cursor_deadline_at = CursorTimeField(_("deadline: deadline at"))
    deadline_cursor_job_id = models.BigIntegerField(_("deadline: job"))
    deadline_cursor_run_lease = models.BigIntegerField(_("deadline: lease"))

    class Meta(_RingSlot.Meta):
        db_table = table("claim_ring_slots")
        verbose_name = _("slot of the claim ring")
        verbose_name_plural = _("slots of the claim ring")


class QueueTerminalCountDelta(_Slot, _Lane):
    """A signed increment of a count of done entries. The table has no key: rows with this one add up."""

    pk = models.CompositePrimaryKey(
        "ready_slot", "ready_generation", "queue", "priority", "enqueue_shard", "counter_bucket"
    )
    counter_bucket = models.SmallIntegerField(_("bucket"))
    terminal_delta = models.BigIntegerField(_("increment"))
    recorded_at = models.DateTimeField(_("recorded at"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_terminal_count_deltas")
        verbose_name = _("increment of a count of done entries")
        verbose_name_plural = _("increments of counts of done entries")


class QueueTerminalLiveCount(_Lane):
    """Done entries of a slot and lane, as far as increments are folded in."""

    pk = models.CompositePrimaryKey("ready_slot", "queue", "priority", "enqueue_shard", "counter_bucket")
    ready_slot = models.IntegerField(_("slot"))
    counter_bucket = models.SmallIntegerField(_("bucket"))
    live_terminal_count = models.BigIntegerField(_("done entries"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_terminal_live_counts")
        verbose_name = _("count of done entries")
        verbose_name_plural = _("counts of done entries")


class QueueTerminalRollup(ReadModel):
    """Finished jobs of a lane that were pruned; never goes down."""

    pk = models.CompositePrimaryKey("queue", "priority")
    queue = models.TextField(_("queue"))
    priority = models.SmallIntegerField(_("priority"))
    pruned_completed_count = models.BigIntegerField(_("completed or cancelled"))
    pruned_failed_count = models.BigIntegerField(_("failed"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_terminal_rollups")
        verbose_name = _("count of pruned jobs")
        verbose_name_plural = _("counts of pruned jobs")
