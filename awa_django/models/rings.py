"""The rings of queue storage, and its counters of finished jobs."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from awa_django.models.columns import CursorTimeField, InstantField, ReadModel, table
from awa_django.models.jobs import LaneModel, SlotModel


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

    terminal_counter_trusted_at = InstantField(_("counters exact since"), null=True)

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


class QueueTerminalCountDelta(SlotModel, LaneModel):
    """A signed increment of a count of done entries. The table has no key: rows with this one add up."""

    pk = models.CompositePrimaryKey(
        "ready_slot", "ready_generation", "queue", "priority", "enqueue_shard", "counter_bucket"
    )
    counter_bucket = models.SmallIntegerField(_("bucket"))
    terminal_delta = models.BigIntegerField(_("increment"))
    recorded_at = InstantField(_("recorded at"))

    class Meta(ReadModel.Meta):
        db_table = table("queue_terminal_count_deltas")
        verbose_name = _("increment of a count of done entries")
        verbose_name_plural = _("increments of counts of done entries")


class QueueTerminalLiveCount(LaneModel):
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
