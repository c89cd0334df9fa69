"""A job as it lies in the database, with what operators see of it beside."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from awa_django.jobs import Callback, Job
from awa_django.states import JobState
from awa_django.unreadable import Unreadable

__all__ = ["DeadLetter", "JobRecord", "PlaneName"]

PlaneName = Literal["queue_storage", "canonical"]


class DeadLetter(NamedTuple):
    """Why and when a job became a dead letter, and the run lease of its last attempt."""

    reason: str | None
    at: datetime
    original_run_lease: int


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job and what operators see of it beside.

    ``plane`` says where it is stored: ids of the two planes overlap. ``callback`` is set while an answer is waited for
    or may come, ``dead_letter`` for a job in the dead-letter table, which reads as failed.
    """

    job: Job
    plane: PlaneName
    heartbeat_at: datetime | None = None
    unique_states: str | None = None
    callback: Callback | None = None
    dead_letter: DeadLetter | None = None
    #: Whether metadata, tags and errors are missing here because they hold what Python cannot.
    payload_is_unreadable: bool = False
    #: When the last attempt was claimed, where nothing but the lane knows.
    claimed_at: datetime | None = None

    @property
    def started_at(self) -> datetime | None:
        """When the last attempt began; a job that completed compactly has no ``attempted_at`` of its own."""
        return self.job.attempted_at or self.claimed_at

    @property
    def is_unreadable(self) -> bool:
        """Whether anything in it holds what Python cannot (D2); it is shown without that."""
        parts = (self.job.args, self.job.progress)
        return self.payload_is_unreadable or any(isinstance(part, Unreadable) for part in parts)

    @property
    def original_priority(self) -> int:
        """The priority before anybody changed it."""
        stamped = self.job.metadata.get("_awa_original_priority")
        return stamped if isinstance(stamped, int) else self.job.priority

    @property
    def can_retry(self) -> bool:
        """Whether an operator's retry may change it now."""
        states = (JobState.FAILED, JobState.CANCELLED, JobState.WAITING_EXTERNAL)
        return self.dead_letter is None and self.job.state in states

    @property
    def can_cancel(self) -> bool:
        """Whether an operator's cancel may change it now."""
        return self.dead_letter is None and not self.job.state.is_terminal

    @property
    def can_move(self) -> bool:
        """Whether its queue and priority may change now."""
        return self.dead_letter is None and self.job.state in (JobState.AVAILABLE, JobState.SCHEDULED)
