# ruff: noqa: DJ001
# NULL is what the tables say, not what a model would choose.
"""Attempts in queue storage: claims, closures, leases, completions."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from awa_django.models.columns import (
    ArrayColumn,
    InstantField,
    JobStateField,
    MultirangeField,
    ReadModel,
    numbers,
    small_numbers,
    table,
)
from awa_django.models.jobs import LaneModel, SlotModel


class Lease(SlotModel, LaneModel):
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
    heartbeat_at = InstantField(_("heartbeat at"), null=True)
    deadline_at = InstantField(_("deadline at"), null=True)
    attempted_at = InstantField(_("attempted at"), null=True)
    callback_id = models.UUIDField(_("callback"), null=True)
    callback_timeout_at = InstantField(_("callback times out at"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("leases")
        verbose_name = _("lease")
        verbose_name_plural = _("leases")


class WaitingCallback(Lease):
    """A lease, as what it is to an operator who looks for answers that have not come."""

    class Meta(ReadModel.Meta):
        proxy = True
        verbose_name = _("callback")
        verbose_name_plural = _("callbacks")


class AttemptState(ReadModel):
    """What a running attempt changes: heartbeat, progress, callback. Most short jobs have none."""

    pk = models.CompositePrimaryKey("job_id", "run_lease")
    job_id = models.BigIntegerField(_("job"))
    run_lease = models.BigIntegerField(_("lease"))
    heartbeat_at = InstantField(_("heartbeat at"), null=True)
    progress = models.JSONField(_("progress"), null=True)
    callback_filter = models.TextField(null=True)
    callback_on_complete = models.TextField(null=True)
    callback_on_fail = models.TextField(null=True)
    callback_transform = models.TextField(null=True)
    callback_result = models.JSONField(_("callback result"), null=True)
    updated_at = InstantField(_("updated at"))

    class Meta(ReadModel.Meta):
        db_table = table("attempt_state")
        verbose_name = _("state of an attempt")
        verbose_name_plural = _("states of attempts")


class LeaseClaim(SlotModel, LaneModel):
    """The receipt of an attempt with a deadline. The real key is (claim_slot, job_id, run_lease); receipt
    numbers are drawn from one sequence."""

    receipt_id = models.BigIntegerField(_("receipt"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"))
    job_id = models.BigIntegerField(_("job"))
    run_lease = models.BigIntegerField(_("lease"))
    attempt = models.SmallIntegerField(_("attempt"))
    max_attempts = models.SmallIntegerField(_("attempts allowed"))
    lane_seq = models.BigIntegerField(_("position"))
    claimed_at = InstantField(_("claimed at"))
    materialized_at = InstantField(_("materialized at"), null=True)
    closed_at = InstantField(_("closed at"), null=True)
    deadline_at = InstantField(_("deadline at"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("lease_claims")
        verbose_name = _("receipt")
        verbose_name_plural = _("receipts")


class LeaseClaimBatch(SlotModel, LaneModel):
    """The receipts of one claim without a deadline. The real key is (claim_slot, batch_id); batch
    numbers are drawn from one sequence."""

    batch_id = models.BigIntegerField(_("batch"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"))
    claimed_count = models.IntegerField(_("jobs"))
    job_ids = numbers()
    run_leases = numbers()
    receipt_ids = numbers()
    receipt_ranges = MultirangeField()
    lane_seqs = numbers()
    attempts = small_numbers()
    max_attempts = small_numbers()
    deadline_at = InstantField(_("deadline at"), null=True)
    claimed_at = InstantField(_("claimed at"))

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
    closed_at = InstantField(_("closed at"))

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
    receipt_ids = numbers()
    receipt_ranges = MultirangeField()
    closed_at = InstantField(_("closed at"))

    class Meta(ReadModel.Meta):
        db_table = table("lease_claim_closure_batches")
        verbose_name = _("closure of many receipts")
        verbose_name_plural = _("closures of many receipts")


class ReceiptCompletionBatch(SlotModel, LaneModel):
    """Successes of one claim, compact. The real key is (ready_slot, batch_id); batch numbers are drawn
    from one sequence."""

    batch_id = models.BigIntegerField(_("batch"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"))
    completed_count = models.IntegerField(_("jobs"))
    job_ids = numbers()
    run_leases = numbers()
    lane_seqs = numbers()
    attempts = small_numbers()
    attempted_ats = ArrayColumn(InstantField(null=True))
    finalized_at = InstantField(_("finalized at"))

    class Meta(ReadModel.Meta):
        db_table = table("receipt_completion_batches")
        verbose_name = _("batch of completed jobs")
        verbose_name_plural = _("batches of completed jobs")


class ReceiptCompletionTombstone(SlotModel, LaneModel):
    """A job that was deleted from a batch of completed ones."""

    pk = models.CompositePrimaryKey("ready_slot", "job_id", "run_lease")
    job_id = models.BigIntegerField(_("job"))
    run_lease = models.BigIntegerField(_("lease"))
    lane_seq = models.BigIntegerField(_("position"))
    deleted_at = InstantField(_("deleted at"))

    class Meta(ReadModel.Meta):
        db_table = table("receipt_completion_tombstones")
        verbose_name = _("deleted completed job")
        verbose_name_plural = _("deleted completed jobs")
