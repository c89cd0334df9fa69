# ruff: noqa: DJ001
# NULL is what the tables say, not what a model would choose.
"""Jobs in queue storage, wherever they are when they do not run."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from awa_django.models.columns import InstantField, JobStateField, Named, ReadModel, table


class SlotModel(ReadModel):
    """Where in the queue ring the ready row of a fact is."""

    ready_slot = models.IntegerField(_("slot"))
    ready_generation = models.BigIntegerField(_("generation"))

    class Meta(ReadModel.Meta):
        abstract = True


class LaneModel(ReadModel):
    queue = models.TextField(_("queue"))
    priority = models.SmallIntegerField(_("priority"))
    enqueue_shard = models.SmallIntegerField(_("shard"))

    class Meta(ReadModel.Meta):
        abstract = True


class CarriedModel(ReadModel):
    """What a job carries from row to row: its unique key and the payload."""

    unique_key = models.BinaryField(_("unique key"), null=True)
    unique_states = models.TextField(_("states that hold the unique key"), null=True)
    payload = models.JSONField(_("payload"), null=True)

    class Meta(ReadModel.Meta):
        abstract = True


class StoredJob(CarriedModel, Named):
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
    run_at = InstantField(_("run at"))
    attempted_at = InstantField(_("attempted at"), null=True)
    finalized_at = InstantField(_("finalized at"), null=True)
    created_at = InstantField(_("created at"))

    class Meta(ReadModel.Meta):
        abstract = True

    __str__ = Named.__str__


class FinishedJob(CarriedModel, SlotModel, LaneModel, Named):
    """A finished job. Its real key is its place in the ring and the lane; a job finishes once."""

    job_id = models.BigIntegerField(_("job"), primary_key=True)
    kind = models.TextField(_("kind"))
    args = models.JSONField(_("arguments"), null=True)
    state = JobStateField(_("state"))
    attempt = models.SmallIntegerField(_("attempt"))
    run_lease = models.BigIntegerField(_("lease"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"), null=True)
    lane_seq = models.BigIntegerField(_("position"))
    run_at = InstantField(_("run at"), null=True)
    attempted_at = InstantField(_("attempted at"), null=True)
    finalized_at = InstantField(_("finalized at"))
    created_at = InstantField(_("created at"), null=True)

    class Meta(ReadModel.Meta):
        abstract = True

    __str__ = Named.__str__


class ReadyEntry(CarriedModel, SlotModel, LaneModel, Named):
    """An emission of a job: each enqueue, promotion and retry writes one. The real key is its place in
    the ring and the lane; rows of one job differ in ``run_lease`` and ``lane_seq``."""

    job_id = models.BigIntegerField(_("job"), primary_key=True)
    kind = models.TextField(_("kind"))
    args = models.JSONField(_("arguments"))
    attempt = models.SmallIntegerField(_("attempts so far"))
    run_lease = models.BigIntegerField(_("last lease"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    lane_seq = models.BigIntegerField(_("position"))
    run_at = InstantField(_("available since"))
    attempted_at = InstantField(_("attempted at"), null=True)
    created_at = InstantField(_("created at"))

    class Meta(ReadModel.Meta):
        db_table = table("ready_entries")
        verbose_name = _("ready entry")
        verbose_name_plural = _("ready entries")

    __str__ = Named.__str__


class DeferredJob(StoredJob):
    """A job that is scheduled or waits for its next attempt."""

    class Meta(StoredJob.Meta):
        db_table = table("deferred_jobs")
        verbose_name = _("deferred job")
        verbose_name_plural = _("deferred jobs")


class DoneEntry(FinishedJob):
    """A finished job; what is NULL is read from its ready row."""

    class Meta(FinishedJob.Meta):
        db_table = table("done_entries")
        verbose_name = _("done entry")
        verbose_name_plural = _("done entries")


class TerminalJob(FinishedJob):
    """View: every finished job of queue storage in one shape, compact successes included."""

    class Meta(FinishedJob.Meta):
        db_table = table("terminal_jobs")
        verbose_name = _("finished job")
        verbose_name_plural = _("finished jobs")


class DlqEntry(StoredJob):
    """A dead letter: a job that failed for good, with everything needed to run it again."""

    finalized_at = InstantField(_("finalized at"))
    dlq_reason = models.TextField(_("reason"))
    dlq_at = InstantField(_("dead since"))
    original_run_lease = models.BigIntegerField(_("lease it failed with"))

    class Meta(StoredJob.Meta):
        db_table = table("dlq_entries")
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        permissions = [
            ("retry_dlqentry", _("Can retry dead letters")),
            ("move_dlqentry", _("Can move failed jobs to the dead letters")),
            ("purge_dlqentry", _("Can purge dead letters")),
        ]
