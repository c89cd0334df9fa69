# ruff: noqa: DJ001
# NULL is what the tables say, not what a model would choose.
"""Jobs in the canonical tables, and the unique keys of both planes."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from awa_django.models.columns import (
    ArrayColumn,
    InstantField,
    JobStateField,
    MaskField,
    Named,
    ReadModel,
    table,
    texts,
)


class _CanonicalJob(Named):
    """The 27 columns of a canonical job."""

    id = models.BigIntegerField(primary_key=True)
    kind = models.TextField(_("kind"))
    queue = models.TextField(_("queue"))
    args = models.JSONField(_("arguments"))
    state = JobStateField(_("state"))
    priority = models.SmallIntegerField(_("priority"))
    attempt = models.SmallIntegerField(_("attempt"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    run_at = InstantField(_("run at"))
    heartbeat_at = InstantField(_("heartbeat at"), null=True)
    deadline_at = InstantField(_("deadline at"), null=True)
    attempted_at = InstantField(_("attempted at"), null=True)
    finalized_at = InstantField(_("finalized at"), null=True)
    created_at = InstantField(_("created at"))
    errors = ArrayColumn(models.JSONField(), verbose_name=_("errors"), null=True)
    metadata = models.JSONField(_("metadata"))
    tags = texts(verbose_name=_("tags"))
    unique_key = models.BinaryField(_("unique key"), null=True)
    unique_states = MaskField(_("states that hold the unique key"), null=True)
    callback_id = models.UUIDField(_("callback"), null=True)
    callback_timeout_at = InstantField(_("callback times out at"), null=True)
    callback_filter = models.TextField(null=True)
    callback_on_complete = models.TextField(null=True)
    callback_on_fail = models.TextField(null=True)
    callback_transform = models.TextField(null=True)
    run_lease = models.BigIntegerField(_("lease"))
    progress = models.JSONField(_("progress"), null=True)

    class Meta(Named.Meta):
        abstract = True


class Job(_CanonicalJob):
    """View: every job of the storage engine in force, the finished ones too. Slow at any size."""

    class Meta(_CanonicalJob.Meta):
        db_table = table("jobs")
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = [
            ("view_job_payload", _("Can see arguments, metadata, errors and progress of jobs")),
            ("retry_job", _("Can retry jobs")),
            ("run_job_now", _("Can make jobs due that wait for their time")),
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
