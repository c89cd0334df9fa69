"""What a plane should make of jobs, as a dict: no SQL, no time, one entry a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from awa_django.outcomes import (
    Cancel,
    Completed,
    Failed,
    Outcome,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.states import JobState

__all__ = ["Model", "ModelJob", "Move"]


@dataclass
class ModelJob:
    """One job. ``callback`` and ``resumed`` are of its current attempt; ``dead`` means the dead-letter table."""

    id: int
    state: JobState
    max_attempts: int
    key: bytes | None = None
    mask: str = "0" * 8
    attempt: int = 0
    run_lease: int = 0
    errors: int = 0
    dead: bool = False
    callback: UUID | None = None
    registered: bool = False
    resumed: bool = False

    @property
    def pair(self) -> tuple[int, int]:
        return self.id, self.run_lease

    def claims(self, state: JobState) -> bool:
        """Whether it holds its key in this state."""
        return self.key is not None and self.mask[state.bit] == "1"


@dataclass(frozen=True)
class Move:
    """A job on its way to another state, and whether the plane says that it ended as a duplicate instead."""

    job: ModelJob
    state: JobState
    attempt: int
    errors: int = 0
    dead: bool = False
    duplicate: bool = False


@dataclass
class Model:
    """All jobs that there are, who holds which key, and what is gone for good."""

    canonical: bool
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    holders: dict[bytes, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)

    def within(self, *states: JobState) -> list[ModelJob]:
        """The jobs in these states, by id; dead letters are in none."""
        return [job for job in self.jobs.values() if job.state in states and not job.dead]

    def counts(self) -> Counter[str]:
        """How many jobs are in which state; dead letters are ``dead``."""
        return Counter("dead" if job.dead else job.state.value for job in self.jobs.values())

    def is_refused(self, key: bytes | None, mask: str, state: JobState) -> bool:
        """Whether a job that begins in this state finds its key held."""
        return key is not None and mask[state.bit] == "1" and key in self.holders

    def add(self, job: ModelJob) -> None:
        assert job.id not in self.jobs
        assert job.id not in self.gone
        self.jobs[job.id] = job
        if job.claims(job.state):
            assert job.key not in self.holders
            assert job.key is not None
            self.holders[job.key] = job.id

    def forget(self, job: ModelJob) -> None:
        """A job is gone for good, and its key is free."""
        self._release(job)
        del self.jobs[job.id]
        self.gone.add(job.id)

    def move(self, moves: Sequence[Move]) -> None:
        """Carry out what one transaction did, and see that it may have done so.

        Keys that are given up are free for others of the batch; of those that want the same, one gets it.
        """
        before = {move.job.id: move.job.claims(move.job.state) for move in moves}
        for move in moves:
            if before[move.job.id] and not move.job.claims(move.state):
                self._release(move.job)
        entering = [move for move in moves if move.job.claims(move.state) and not before[move.job.id]]
        for move in entering:
            assert move.job.key is not None
            if not move.duplicate:
                assert move.job.key not in self.holders, f"two jobs hold the key of {move.job}"
                self.holders[move.job.key] = move.job.id
        for move in moves:
            if move.duplicate:
                assert move in entering, f"{move.job} gave way to nobody"
                assert move.job.key in self.holders, f"{move.job} gave way to nobody"
                self._arrive(move, JobState.CANCELLED)
                bit = JobState.CANCELLED.bit
                move.job.mask = f"{move.job.mask[:bit]}0{move.job.mask[bit + 1 :]}"
            else:
                self._arrive(move, move.state)

    def conflicts(self, job: ModelJob, state: JobState) -> bool:
        """Whether a newer job keeps this one from entering a state."""
        return job.claims(state) and not job.claims(job.state) and job.key in self.holders

    def _arrive(self, move: Move, state: JobState) -> None:
        job = move.job
        job.state = state
        job.attempt = move.attempt if not move.duplicate else job.attempt
        job.errors += move.errors + move.duplicate
        job.dead = move.dead and not move.duplicate
        if state is not JobState.RUNNING and state is not JobState.WAITING_EXTERNAL:
            job.callback, job.registered, job.resumed = None, False, False

    def _release(self, job: ModelJob) -> None:
        if job.key is not None and self.holders.get(job.key) == job.id:
            del self.holders[job.key]

    # -- what each verb should lead to ---------------------------------------------------------------------------

    def claimed(self, granted: Iterable[int], refused: Iterable[int]) -> None:
        """A claim handed out these; those had to give way, and end as duplicates."""
        given, gone = [self.jobs[job_id] for job_id in granted], [self.jobs[job_id] for job_id in refused]
        for job in (*given, *gone):
            assert job.state is JobState.AVAILABLE, f"{job} was handed out"
        self.move(
            [Move(job, JobState.RUNNING, job.attempt + 1) for job in given]
            + [Move(job, JobState.RUNNING, job.attempt, duplicate=True) for job in gone]
        )
        for job in given:
            job.run_lease += 1
        if not self.canonical:  # there the claim of those that had to give way is a fact by then
            for job in gone:
                job.attempt += 1
                job.run_lease += 1

    def ended(self, job: ModelJob, outcome: Outcome, *, dead_letters: bool) -> Move | None:
        """Where an outcome of the current attempt leads, before its key is looked at; None if it comes too late."""
        waits = job.state is JobState.WAITING_EXTERNAL
        if waits and not (type(outcome) is Completed and not self.canonical):
            return None
        if job.state is not JobState.RUNNING and not waits:
            return None
        dead = dead_letters and not self.canonical
        match outcome:
            case Completed():
                return Move(job, JobState.COMPLETED, job.attempt)
            case Cancel():
                return Move(job, JobState.CANCELLED, job.attempt, errors=1)
            case Terminal():
                return Move(job, JobState.FAILED, job.attempt, errors=1, dead=dead)
            case Failed() if job.attempt >= job.max_attempts:
                return Move(job, JobState.FAILED, job.attempt, errors=1, dead=dead)
            case Failed():
                return Move(job, JobState.RETRYABLE, job.attempt, errors=1)
            case RetryAfter():
                return Move(job, JobState.RETRYABLE, job.attempt)
            case Snooze():
                return Move(job, JobState.SCHEDULED, max(job.attempt - 1, 0))
            case WaitForCallback() if job.callback is not None:
                return Move(job, JobState.WAITING_EXTERNAL, job.attempt)
            case WaitForCallback() if job.resumed:
                return Move(job, JobState.SCHEDULED, max(job.attempt - 1, 0))
            case WaitForCallback():
                return Move(job, JobState.FAILED, job.attempt, errors=1, dead=dead)
        raise AssertionError(f"the model does not know {outcome}")
