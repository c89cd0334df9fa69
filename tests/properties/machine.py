"""Hypothesis drives a plane beside the model of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from awa_django import operations
from awa_django.errors import UniqueConflict
from awa_django.jobs import Attempt, JobInsert, Landed
from awa_django.outcomes import (
    CallbackFailed,
    CallbackRetried,
    Cancel,
    Completed,
    Failed,
    OperatorCancel,
    OperatorRetry,
    Outcome,
    Rescued,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.planes.base import Answered, Beat, Cursor, Due, Ids, Stale
from awa_django.planes.queue_storage import rings
from awa_django.planes.queue_storage.rings import Prune
from awa_django.states import JobState
from awa_django.transitions import RULES, land_one, plan
from tests import invariants
from tests.planes.conformance.worlds import LONG, NO_EXPRESSIONS, SILENCE, AnyWorld
from tests.properties.model import Model, ModelJob, Move

OUTCOMES: list[Outcome] = [
    Completed(),
    Failed("no"),
    RetryAfter(60),
    Snooze(60),
    Cancel("no"),
    Terminal("no"),
    WaitForCallback(None),
]
FUTURE = datetime(2999, 1, 1, tzinfo=UTC)
KEYS = [b"key of the first", b"key of a second."]
LIVE = [state for state in JobState if not state.is_terminal]
EITHER = (JobState.WAITING_EXTERNAL, JobState.RUNNING)
KEEP_FAILED = timedelta(hours=72)
#: Where new jobs of a plane may be found.
NEW = {
    True: "SELECT id FROM awa.jobs_hot UNION ALL SELECT id FROM awa.scheduled_jobs",
    False: "SELECT job_id FROM awa.ready_entries UNION ALL SELECT job_id FROM awa.deferred_jobs",
}

#: Which of the jobs that a rule could be about.
picks = st.integers(0, 1000)


class PlaneMachine(RuleBasedStateMachine):
    """Everything that can be done to jobs, in any order. A subclass says in which world, and by which alias."""

    world: ClassVar[AnyWorld]
    alias: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.world.empty()
        self.model = Model(self.world.is_canonical)
        #: Every attempt that was ever handed out: old ones must stay without effect.
        self.attempts: list[Attempt] = []
        self.newest = self.world.one(
            f"SELECT coalesce(max(id), 0) FROM ({NEW[self.model.canonical]}) AS job (id)"
        )

    # -- help ------------------------------------------------------------------------------------------------

    def pick(self, number: int, *states: JobState) -> ModelJob | None:
        """One of the jobs in these states, if there is any."""
        found = self.model.within(*states)
        return found[number % len(found)] if found else None

    def attempt_of(self, job: ModelJob) -> Attempt:
        """The current attempt of a job that runs or waits."""
        return next(each for each in reversed(self.attempts) if (each.job_id, each.run_lease) == job.pair)

    def change(self, guard: Any, outcome: Outcome | None = None) -> list[Landed]:
        return self.world.change(guard, outcome)

    def moved(self, landed: list[Landed], moves: list[Move]) -> None:
        """Compare what was written with what should have been, and have the model follow."""
        by_id = {move.job.id: move for move in moves}
        assert sorted(item.landing.taken.job_id for item in landed) == sorted(by_id)
        followed = []
        for item in landed:
            move = replace(by_id[item.landing.taken.job_id], duplicate=item.duplicate)
            wanted = JobState.CANCELLED if item.duplicate else move.state
            assert item.job.state is wanted, move
            assert item.duplicate or item.job.attempt == move.attempt, move
            followed.append(move)
        self.model.move(followed)

    # -- producers -------------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 4),
        priority=st.integers(1, 4),
        later=st.booleans(),
        max_attempts=st.integers(1, 3),
    )
    def enqueue(self, count: int, priority: int, later: bool, max_attempts: int) -> None:
        self.store(
            [
                JobInsert("k", {}, "q", priority, max_attempts, run_at=FUTURE if later else None)
                for _ in range(count)
            ]
        )

    @rule(
        key=st.sampled_from(KEYS),
        mask=st.integers(1, 255),
        later=st.booleans(),
        max_attempts=st.integers(1, 3),
    )
    def enqueue_unique(self, key: bytes, mask: int, later: bool, max_attempts: int) -> None:
        bits = f"{mask:08b}"
        wanted = JobInsert(
            "k",
            {},
            "q",
            max_attempts=max_attempts,
            run_at=FUTURE if later else None,
            unique_key=key,
            unique_states=bits,
        )
        if not self.model.is_refused(key, bits, wanted.state):
            self.store([wanted])
            return
        with pytest.raises(UniqueConflict) as caught:
            self.world.enqueue(wanted)
        assert caught.value.holder_id == self.model.holders[key]

    def store(self, jobs: list[JobInsert]) -> None:
        self.world.enqueue(*jobs)
        query = f"SELECT id FROM ({NEW[self.model.canonical]}) AS job (id) WHERE id > %s ORDER BY id"
        found = [row["id"] for row in self.world.rows(query, self.newest)]
        assert len(found) == len(jobs)
        self.newest = found[-1]
        for job_id, job in zip(found, jobs, strict=True):
            self.model.add(
                ModelJob(job_id, job.state, job.max_attempts, job.unique_key, job.unique_states or "0" * 8)
            )

    # -- workers ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.within(JobState.AVAILABLE))
    @rule(limit=st.integers(1, 8), deadline=st.sampled_from([timedelta(0), LONG]))
    def claim(self, limit: int, deadline: timedelta) -> None:
        available = len(self.model.within(JobState.AVAILABLE))
        got = self.world.within(
            lambda cursor: self.world.plane.claim(cursor, "q", limit, deadline=deadline, aging=timedelta(0))
        )
        taken = [*got.attempts, *got.refused]
        assert 1 <= len(taken) <= min(limit, available)
        self.world.within(lambda cursor: self.world.plane.advance(cursor, taken))
        if got.refused:
            self.world.within(lambda cursor: self.world.plane.refuse(cursor, got.refused))
        self.model.claimed(
            [attempt.job_id for attempt in got.attempts], [attempt.job_id for attempt in got.refused]
        )
        for attempt in got.attempts:
            job = self.model.jobs[attempt.job_id]
            assert (attempt.run_lease, attempt.attempt) == (job.run_lease, job.attempt)
            assert len(attempt.job.errors) == job.errors
        self.attempts += got.attempts

    @precondition(lambda self: self.attempts)
    @rule(
        chosen=st.lists(picks, min_size=1, max_size=4),
        outcome=st.sampled_from(OUTCOMES),
        dead_letters=st.booleans(),
    )
    def settle(self, chosen: list[int], outcome: Outcome, dead_letters: bool) -> None:
        """Any attempts, also such as ended long ago, end the same way."""
        attempts = {
            (attempt.job_id, attempt.run_lease): attempt
            for attempt in (self.attempts[-1 - number % len(self.attempts)] for number in chosen)
        }
        transitions, moves = [], {}
        for pair, attempt in attempts.items():
            job = self.model.jobs.get(attempt.job_id)
            current = job is not None and job.run_lease == attempt.run_lease
            transitions.append(
                plan(attempt, outcome, dead_letters=dead_letters)._replace(
                    has_lease=bool(current and job and job.registered)
                )
            )
            if current and job and (move := self.model.ended(job, outcome, dead_letters=dead_letters)):
                moves[pair] = move
        settlement = self.world.within(lambda cursor: self.world.plane.settle(cursor, transitions))
        assert {item.pair for item in settlement.stale} == attempts.keys() - moves.keys()
        self.model.move([moves.pop(item.pair) for item in settlement.completed])
        self.moved(list(settlement.landed), list(moves.values()))

    @precondition(lambda self: self.attempts)
    @rule(progress=st.none() | st.integers(0, 100))
    def beat(self, progress: int | None) -> None:
        """Signs of life of all attempts that there ever were."""
        beats = [Beat(each, None if progress is None else {"percent": progress}) for each in self.attempts]
        found = self.world.within(lambda cursor: self.world.plane.heartbeat(cursor, beats))
        running = {job.pair for job in self.model.within(JobState.RUNNING)}
        waiting = {job.pair for job in self.model.within(JobState.WAITING_EXTERNAL)}
        assert running <= found <= running | waiting

    # -- callbacks ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.within(JobState.RUNNING, JobState.WAITING_EXTERNAL))
    @rule(number=picks)
    def register(self, number: int) -> None:
        job = self.pick(number, JobState.RUNNING, JobState.WAITING_EXTERNAL)
        assert job is not None
        attempt, token = self.attempt_of(job), uuid.uuid4()
        done = self.world.within(
            lambda cursor: self.world.plane.register_callback(cursor, attempt, token, LONG, NO_EXPRESSIONS)
        )
        assert done is (job.state is JobState.RUNNING)
        if done:
            job.callback, job.registered = token, True

    @precondition(lambda self: any(job.callback for job in self.model.jobs.values()))
    @rule(number=picks, outcome=st.sampled_from([Completed(), CallbackFailed("no"), CallbackRetried()]))
    def answer(self, number: int, outcome: Outcome) -> None:
        found = [job for job in self.model.jobs.values() if job.callback is not None]
        job = found[number % len(found)]
        retries = isinstance(outcome, CallbackRetried)
        states = (JobState.WAITING_EXTERNAL,) if retries else EITHER
        assert job.callback is not None
        token, target = job.callback, RULES[type(outcome)].state
        conflicts = self.model.conflicts(job, target)

        def work(cursor: Cursor) -> list[Landed]:
            taken = self.world.plane.take(cursor, Answered(token, None, states, RULES[type(outcome)].closes))
            landed = self.world.plane.place(cursor, [land_one(item, outcome) for item in taken])
            if any(item.duplicate for item in landed):
                raise _Undone
            return landed

        try:
            landed = self.world.within(work)
        except _Undone:
            assert conflicts
            return
        assert not conflicts or not landed
        if job.state in states:
            errors = 1 if isinstance(outcome, CallbackFailed) else 0
            self.moved(landed, [Move(job, target, 0 if retries else job.attempt, errors=errors)])
        else:
            assert landed == []

    @precondition(lambda self: any(job.callback for job in self.model.jobs.values()))
    @rule(number=picks)
    def resume(self, number: int) -> None:
        found = [job for job in self.model.jobs.values() if job.callback is not None]
        job = found[number % len(found)]
        token = job.callback
        assert token is not None

        def work(cursor: Cursor) -> None:
            pending = self.world.plane.find_callback(cursor, token, None, EITHER)
            assert pending is not None
            self.world.plane.resume(cursor, pending, {"v": 1})

        if self.model.conflicts(job, JobState.RUNNING):
            with pytest.raises(UniqueConflict):
                self.world.within(work)
            return
        self.world.within(work)
        self.model.move([Move(job, JobState.RUNNING, job.attempt)])
        job.callback, job.resumed = None, True

    @rule(token=st.uuids())
    def answer_a_stranger(self, token: uuid.UUID) -> None:
        assert self.change(Answered(token), Completed()) == []

    # -- the leader --------------------------------------------------------------------------------------------

    @rule()
    def rescue(self) -> None:
        """Every worker was silent for long."""
        running = self.model.within(JobState.RUNNING)
        self.world.age()
        for receipts in (True, False):
            landed = self.change(Stale(SILENCE, receipts=receipts), Rescued("silent"))
            found = {item.landing.taken.job_id for item in landed}
            moves = [
                Move(job, JobState.RETRYABLE, job.attempt, errors=1) for job in running if job.id in found
            ]
            self.moved(landed, moves)
        assert not self.model.within(JobState.RUNNING)

    @rule()
    def promote(self) -> None:
        """The time of everything that waits has come."""
        self.world.run(f"UPDATE awa.{self.world.deferred} SET run_at = now() - interval '1 second'")
        for state in (JobState.SCHEDULED, JobState.RETRYABLE):
            moves = [Move(job, JobState.AVAILABLE, job.attempt) for job in self.model.within(state)]
            self.moved(self.change(Due(state)), moves)

    @precondition(lambda self: not self.model.canonical)
    @rule()
    def turn_and_empty(self) -> None:
        """The rings turn once, and whatever can be emptied is: only what has finished may go."""
        for turn in (rings.rotate_queue_ring, rings.rotate_claim_ring, rings.rotate_lease_ring):
            self.world.within(turn)
        for name, count in (("claim", 8), ("lease", 8)):
            for slot in range(count):
                prune = rings.prune_claim_slot if name == "claim" else rings.prune_lease_slot
                self.empties(lambda cursor, prune=prune, slot=slot: prune(cursor, slot))
        look = self.world.rows("SELECT slot_count, generation FROM awa.queue_ring_state")[0]
        emptied = False
        for slot, _ in rings.sealed_slots(look["slot_count"], look["generation"]):
            emptied |= self.empties(
                lambda cursor, slot=slot: rings.prune_queue_slot(cursor, slot, failed_retention=KEEP_FAILED)
            )
        if emptied:
            seen = self.world.jobs().keys()
            for job in self.model.within(JobState.COMPLETED, JobState.CANCELLED):
                if job.id not in seen:
                    self.model.forget(job)

    def empties(self, prune: Callable[[Cursor], tuple[Prune, Any]]) -> bool:
        """Whether a slot is emptied. One at which an autovacuum is just then stays for later, as leaders have it."""
        try:
            result, _ = self.world.within(prune)
        except psycopg.errors.LockNotAvailable:
            return False
        return result is Prune.PRUNED

    # -- operators ---------------------------------------------------------------------------------------------

    @rule(number=picks)
    def cancel(self, number: int) -> None:
        job = self.pick(number, *JobState)
        if job is None:
            return
        if self.model.conflicts(job, JobState.CANCELLED) and not job.state.is_terminal:
            return  # the desk has it yield its key first
        landed = self.change(Ids([job.id], LIVE), OperatorCancel())
        moves = [] if job.state.is_terminal else [Move(job, JobState.CANCELLED, job.attempt)]
        self.moved(landed, moves)

    @rule(number=picks)
    def retry(self, number: int) -> None:
        states = (JobState.FAILED, JobState.CANCELLED, JobState.WAITING_EXTERNAL)
        self.retry_if_free(self.pick(number, *states), states, dead=False)

    @rule(number=picks)
    def retry_dead(self, number: int) -> None:
        found = [job for job in self.model.jobs.values() if job.dead]
        self.retry_if_free(found[number % len(found)] if found else None, (JobState.FAILED,), dead=True)

    def retry_if_free(self, job: ModelJob | None, states: tuple[JobState, ...], *, dead: bool) -> None:
        """As the desk does it: a job whose key another one holds stays as it is."""
        if job is None or self.model.conflicts(job, JobState.AVAILABLE):
            return
        landed = self.change(Ids([job.id], states, dead=dead), OperatorRetry())
        self.moved(landed, [Move(job, JobState.AVAILABLE, 0)])

    @rule(number=picks, dead=st.booleans())
    def discard(self, number: int, dead: bool) -> None:
        found = [job for job in self.model.jobs.values() if job.state is JobState.FAILED and job.dead is dead]
        if not found:
            return
        job = found[number % len(found)]

        def drop(cursor: Cursor) -> None:
            taken = self.world.plane.take(cursor, Ids([job.id], [JobState.FAILED], dead=dead))
            assert [each.pair for each in taken] == [job.pair]
            self.world.plane.drop(cursor, taken)

        self.world.within(drop)
        self.model.forget(job)

    # -- what must hold after every step -------------------------------------------------------------------------

    @invariant()
    def every_job_is_where_the_model_says(self) -> None:
        """No job is lost, none lives twice, and leases only grow: the model only counts up."""
        jobs = self.model.jobs
        found = self.world.within(lambda cursor: self.world.plane.standings(cursor, list(jobs)))
        assert {job_id: (each.state, each.run_lease) for job_id, each in found.items()} == {
            job.id: (job.state, job.run_lease) for job in jobs.values()
        }

    @invariant()
    def keys_are_held_as_the_masks_say(self) -> None:
        assert self.world.holders() == self.model.holders

    def teardown(self) -> None:
        """What readers, counts and the contract's queries say at the end."""
        rows = self.world.jobs()
        assert not rows.keys() & self.model.gone
        for job in self.model.jobs.values():
            row = rows.get(job.id)
            if row is None:
                assert job.state is JobState.RUNNING
                continue
            assert (row["state"], row["attempt"], row["run_lease"]) == (job.state, job.attempt, job.run_lease)
            assert len(row["errors"] or []) == job.errors
            assert (row["dlq_reason"] is not None) is job.dead
        counted = operations.state_counts(using=self.alias)
        states = [*(state.value for state in JobState), "dead"]
        assert {name: getattr(counted, name) for name in states if getattr(counted, name)} == dict(
            self.model.counts()
        )
        if not self.model.canonical:
            assert invariants.violated(self.world.connection) == []


class _Undone(Exception):
    """The transaction is to leave no trace."""
