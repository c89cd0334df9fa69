# ruff: noqa: DJ001
# NULL is what the tables say, not what a model would choose.
"""What is not about one job: queues, kinds, schedules, runtimes, bulk operations, the storage transition."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from awa_django.models.columns import STATE_LABELS, InstantField, ReadModel, table, texts
from awa_django.states import JobState


class SchemaVersion(ReadModel):
    """One step of the schema's history."""

    version = models.IntegerField(_("version"), primary_key=True)
    description = models.TextField(_("description"))
    applied_at = InstantField(_("applied at"))

    class Meta(ReadModel.Meta):
        db_table = table("schema_version")
        verbose_name = _("schema version")
        verbose_name_plural = _("schema versions")


class QueueMeta(ReadModel):
    """An operator's settings of a queue; a queue without a row has the defaults."""

    queue = models.TextField(_("queue"), primary_key=True)
    paused = models.BooleanField(_("paused"))
    paused_at = InstantField(_("paused at"), null=True)
    paused_by = models.TextField(_("paused by"), null=True)
    enqueue_shards = models.SmallIntegerField(_("enqueue shards"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_meta")
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
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
    tags = texts(verbose_name=_("tags"))
    metadata = models.JSONField(_("metadata"))
    missed_fire_policy = models.TextField(_("missed fires"))
    last_enqueued_at = InstantField(_("last fire"), null=True)
    created_at = InstantField(_("created at"))
    updated_at = InstantField(_("updated at"))
    paused_at = InstantField(_("paused at"), null=True)
    paused_by = models.TextField(_("paused by"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("cron_jobs")
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = [
            ("pause_cronjob", _("Can pause and resume schedules")),
            ("trigger_cronjob", _("Can trigger schedules")),
            ("delete_cronjob", _("Can delete schedules")),
        ]


class _Descriptor(ReadModel):
    """What code says about a queue or a kind."""

    display_name = models.TextField(_("display name"), null=True)
    description = models.TextField(_("description"), null=True)
    owner = models.TextField(_("owner"), null=True)
    docs_url = models.TextField(_("documentation"), null=True)
    tags = texts(verbose_name=_("tags"))
    extra = models.JSONField(_("extra"))
    descriptor_hash = models.TextField(_("hash"))
    sync_interval_ms = models.BigIntegerField(_("milliseconds between two writes"))
    created_at = InstantField(_("created at"))
    updated_at = InstantField(_("updated at"))
    last_seen_at = InstantField(_("last seen at"))

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
        verbose_name = _("kind")
        verbose_name_plural = _("kinds")


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
    touched_at = InstantField(_("touched at"))

    class Meta(ReadModel.Meta):
        abstract = True


class _KindMark(ReadModel):
    kind = models.TextField(_("kind"), primary_key=True)
    touched_at = InstantField(_("touched at"))

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
    started_at = InstantField(_("started at"))
    last_seen_at = InstantField(_("last seen at"))
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
    submitted_at = InstantField(_("submitted at"))
    started_at = InstantField(_("started at"), null=True)
    finalized_at = InstantField(_("finalized at"), null=True)
    cursor = models.JSONField(_("cursor"), null=True)
    total_matched = models.BigIntegerField(_("matched"), null=True)
    processed = models.BigIntegerField(_("processed"))
    skipped = models.BigIntegerField(_("skipped"))
    errored = models.BigIntegerField(_("errored"))
    last_error = models.TextField(_("last error"), null=True)
    runner_instance = models.UUIDField(_("run by"), null=True)
    retention_until = InstantField(_("kept until"), null=True)
    updated_at = InstantField(_("updated at"))

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
    processed_at = InstantField(_("processed at"), null=True)

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
    entered_at = InstantField(_("entered at"))
    updated_at = InstantField(_("updated at"))
    finalized_at = InstantField(_("finalized at"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("storage_transition_state")
        verbose_name = _("storage")
        verbose_name_plural = _("storage")
        permissions = [("manage_storage", _("Can move jobs from one storage engine to the other"))]


class RuntimeStorageBackend(ReadModel):
    """The marker that queue storage accepts work, and in which schema."""

    backend = models.TextField(_("engine"), primary_key=True)
    schema_name = models.TextField(_("schema"))
    updated_at = InstantField(_("updated at"))

    class Meta(ReadModel.Meta):
        db_table = table("runtime_storage_backends")
        verbose_name = _("storage engine")
        verbose_name_plural = _("storage engines")
