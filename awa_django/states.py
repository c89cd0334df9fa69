"""The eight states of a job, and masks over them (contract: api/unique_keys section 4)."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["NON_TERMINAL_STATES", "JobState", "mask_bits", "state_mask"]


class JobState(StrEnum):
    """Where a job is in its life; the values are those of the enum ``awa.job_state``, in its order."""

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    RUNNING = "running"
    COMPLETED = "completed"
    RETRYABLE = "retryable"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING_EXTERNAL = "waiting_external"

    @property
    def bit(self) -> int:
        """The state's number in a mask, 0 to 7."""
        return _BITS[self]

    @property
    def is_terminal(self) -> bool:
        """Whether the job is finished for good."""
        return self in _TERMINAL


_BITS = {state: number for number, state in enumerate(JobState)}
_TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})


def state_mask(*states: JobState) -> int:
    """The mask of these states: bit *n* is the state numbered *n*, the least significant bit first."""
    return sum(1 << state.bit for state in set(states))


def mask_bits(mask: int) -> str:
    """A mask as the database writes it: eight characters, the leftmost for ``scheduled``."""
    return format(mask, "08b")[::-1]


#: 151: the key is held while the job can still run, and is free once it has finished.
NON_TERMINAL_STATES = state_mask(*(state for state in JobState if not state.is_terminal))
