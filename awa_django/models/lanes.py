# ruff: noqa: DJ001
# NULL is what the tables say, not what a model would choose.
"""Lanes of queue storage, and who claims from them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from awa_django.models.columns import InstantField, MultirangeField, ReadModel, table
from awa_django.models.jobs import LaneModel, SlotModel


class ReadySegment(SlotModel, LaneModel):
    """A range of a lane's positions that lies in one slot."""

    pk = models.CompositePrimaryKey(
        "ready_slot", "ready_generation", "queue", "priority", "enqueue_shard", "first_lane_seq"
    )
    first_lane_seq = models.BigIntegerField(_("first position"))
    next_lane_seq = models.BigIntegerField(_("position after the last"))
    first_run_at = InstantField(_("first available since"))
    created_at = InstantField(_("created at"))

    class Meta(ReadModel.Meta):
        db_table = table("ready_segments")
        verbose_name = _("segment of a lane")
        verbose_name_plural = _("segments of lanes")


class ReadyTombstone(SlotModel, LaneModel):
    """A position that must not be handed out any more."""

    pk = models.CompositePrimaryKey(
        "ready_slot", "queue", "priority", "enqueue_shard", "lane_seq", "ready_generation"
    )
    lane_seq = models.BigIntegerField(_("position"))
    job_id = models.BigIntegerField(_("job"))
    tombstoned_at = InstantField(_("since"))

    class Meta(ReadModel.Meta):
        db_table = table("ready_tombstones")
        verbose_name = _("tombstone of a position")
        verbose_name_plural = _("tombstones of positions")


class ReadyClaimAttemptBatch(SlotModel, LaneModel):
    """Positions that one claim handed out. The real key is (ready_slot, batch_id); batch numbers are
    drawn from one sequence."""

    batch_id = models.BigIntegerField(_("batch"), primary_key=True)
    claim_slot = models.IntegerField(_("claim slot"), null=True)
    first_lane_seq = models.BigIntegerField(_("first position"))
    next_lane_seq = models.BigIntegerField(_("position after the last"))
    claimed_count = models.IntegerField(_("positions"))
    lane_ranges = MultirangeField()
    claimed_at = InstantField(_("claimed at"))

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


class QueueEnqueueHead(LaneModel):
    """Where a lane's next position comes from: the sequence ``seq_name``."""

    pk = models.CompositePrimaryKey("queue", "priority", "enqueue_shard")
    next_seq = models.BigIntegerField(_("input of a trigger"))
    seq_name = models.TextField(_("sequence"), null=True)

    class Meta(ReadModel.Meta):
        db_table = table("queue_enqueue_heads")
        verbose_name = _("enqueue head")
        verbose_name_plural = _("enqueue heads")


class QueueClaimHead(LaneModel):
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
    updated_at = InstantField(_("updated at"))

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
    leased_at = InstantField(_("leased at"))
    last_claimed_at = InstantField(_("last claimed at"))
    expires_at = InstantField(_("expires at"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_claimer_leases")
        verbose_name = _("claimer")
        verbose_name_plural = _("claimers")
