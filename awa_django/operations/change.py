"""One change of some jobs: each is taken from where it is, decided, and placed or dropped.

The state of a job is asked under its lock, by the plane. What may not be changed is put back by undoing
everything to a savepoint and doing it again without that job, so that the others are changed whole or not at all. So
is a piece that was the victim of a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from psycopg.errors import DeadlockDetected

from awa_django.errors import JobNotFound, UniqueConflict, WrongState
from awa_django.jobs import Job, Landed, Landing, Taken
from awa_django.operations.desk import Desk
from awa_django.operations.reading import JobFilter, JobRecord, load
from awa_django.planes.arrays import ints
from awa_django.planes.base import Ids, Plane
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = [
    "CHUNK",
    "Changed",
    "Reason",
    "Skipped",
    "Verb",
    "change",
    "change_chosen",
    "change_on",
    "chunks",
    "narrowed",
]

#: Jobs that are taken and placed at once.
CHUNK = 1000
#: Deadlocks of one piece after which its caller hears of it. Pieces that follow each other in one transaction, and jobs
#: that moved on while they were looked for, may meet others in another order than theirs.
DEADLOCKS = 5


class Reason(StrEnum):
    """Why a job was not changed."""

    MISSING = "missing"
    WRONG_STATE = "wrong_state"
    DEAD_LETTERED = "dead_lettered"
    NOT_DEAD_LETTERED = "not_dead_lettered"
    UNCHANGED = "unchanged"
    UNIQUE_CONFLICT = "unique_conflict"
    NO_DEAD_LETTERS = "no_dead_letters"
    NOT_MEANT = "not_meant"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A job that was not changed, and why.

    ``state`` is where it is, None for one that does not exist; ``holder_id`` the job that holds its unique key.
    """

    job_id: int
    reason: Reason
    state: JobState | None = None
    holder_id: int | None = None
    unique_key: bytes | None = None
    kind: str = ""

    @property
    def why(self) -> str:
        """What keeps it from changing."""
        match self.reason:
            case Reason.MISSING:
                return "there is no such job; finished ones are forgotten in time"
            case Reason.WRONG_STATE:
                return f"it is {self.state}"
            case Reason.DEAD_LETTERED:
                return "it is a dead letter; retry or purge it as one"
            case Reason.NOT_DEAD_LETTERED:
                return f"it is {self.state} and no dead letter"
            case Reason.UNCHANGED:
                return "there is nothing to change"
            case Reason.NOT_MEANT:
                return "it is not what was asked for any more"
            case Reason.UNIQUE_CONFLICT:
                holder = "another job" if self.holder_id is None else f"job {self.holder_id}"
                return f"{holder} holds its unique key"
            case Reason.NO_DEAD_LETTERS:
                return f"it is {self.state} in the canonical tables, which have no dead letters"

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.why}"


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a selection of jobs: those that changed, as they are now or were last, and those that did not.

    ``pruned_failed`` says, for failed jobs of a queue, how many failures the queue's history has already forgotten.
    """

    jobs: Sequence[Job] = ()
    skipped: Sequence[Skipped] = ()
    pruned_failed: int | None = None

    @property
    def count(self) -> int:
        """How many jobs changed."""
        return len(self.jobs)

    @property
    def ids(self) -> list[int]:
        """Which jobs changed, lowest first."""
        return sorted(job.id for job in self.jobs)

    @property
    def matched(self) -> int:
        """How many jobs were selected."""
        return len(self.jobs) + len(self.skipped)

    @property
    def job(self) -> Job:
        """The only job that was selected.

        Raises why it did not change: ``JobNotFound``, ``WrongState`` or ``UniqueConflict``.
        """
        if self.matched != 1:
            raise ValueError(f"{self.matched} jobs were selected, not one")
        for skipped in self.skipped:
            match skipped.reason:
                case Reason.MISSING:
                    raise JobNotFound(str(skipped))
                case Reason.UNIQUE_CONFLICT:
                    raise UniqueConflict(skipped.unique_key or b"", skipped.holder_id, skipped.kind)
                case _:
                    raise WrongState(str(skipped))
        return self.jobs[0]


Decide = Callable[[Taken], Landing | Reason | None]


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that can be done to a job.

    ``states`` are those it may be in outside the dead-letter table, and ``dead`` whether it may be in that.
    ``decide`` says where a taken job goes, None for nowhere, or why it stays. ``closes`` is the label that ends a
    running attempt. A job that cannot have its unique key where it goes stays; one that ``yields_key`` goes without.
    """

    decide: Decide
    states: frozenset[JobState] = frozenset()
    dead: bool = False
    closes: str = "cancelled"
    yields_key: bool = False
    notifies: bool = False
    to_dead_letters: bool = False

    def fits(self, record: JobRecord) -> bool:
        """Whether a job, as it was read, is in a state for it."""
        return self.dead if record.dead_letter is not None else record.job.state in self.states


def narrowed(verb: Verb, filter: JobFilter, *, passes: Callable[[Taken], bool] = lambda taken: True) -> Verb:
    """The verb for jobs that a filter chose a while ago: asked again, under the lock, whether they are still meant.

    ``passes`` is asked of each beside the filter.
    """

    def decide(taken: Taken) -> Landing | Reason | None:
        meant = (
            passes(taken)
            and (filter.kind is None or taken.kind == filter.kind)
            and (filter.queue is None or taken.queue == filter.queue)
            and (filter.tag is None or filter.tag in taken.tags)
            and (filter.created_from is None or taken.created_at >= filter.created_from)
            and (filter.created_before is None or taken.created_at < filter.created_before)
        )
        return verb.decide(taken) if meant else Reason.NOT_MEANT

    return replace(verb, decide=decide, states=verb.states & filter.wanted)


class _Refused(Exception):
    """Undoes a change so that it can be made again without these jobs."""

    def __init__(self, refused: dict[int, Skipped]) -> None:
        self.refused = refused


def chunks(ids: Iterable[int]) -> Iterator[list[int]]:
    """Ids in pieces that are changed at once."""
    rest = iter(ids)
    while piece := list(islice(rest, CHUNK)):
        yield piece


def change(at: Desk, verb: Verb, job_ids: Collection[int]) -> Changed:
    """Change the jobs with these ids, on the first plane that has them; ids that repeat count once."""
    jobs: list[Job] = []
    skipped: list[Skipped] = []
    for piece in chunks(sorted(set(job_ids))):
        rest = piece
        for plane in at.planes:
            done = change_on(at, plane, verb, rest)
            jobs += done.jobs
            skipped += [item for item in done.skipped if item.reason is not Reason.MISSING]
            rest = [item.job_id for item in done.skipped if item.reason is Reason.MISSING]
            if not rest:
                break
        skipped += [Skipped(job_id, Reason.MISSING) for job_id in rest]
    return Changed(jobs, skipped)


def change_on(at: Desk, plane: Plane, verb: Verb, job_ids: Sequence[int]) -> Changed:
    """Change jobs of one plane, at most a chunk of them; every id is in the answer."""
    jobs, refused = _change(at, plane, verb, job_ids)
    rest = [job_id for job_id in job_ids if job_id not in jobs and job_id not in refused]
    found = {record.job.id: record for record in load(at.cursor, plane, rest)} if rest else {}
    skipped = [
        refused.get(job_id) or _skipped(job_id, found.get(job_id), verb, plane)
        for job_id in job_ids
        if job_id not in jobs
    ]
    return Changed(list(jobs.values()), skipped)


def change_chosen(at: Desk, plane: Plane, verb: Verb, job_ids: Sequence[int]) -> Changed:
    """:func:`change_on`, but ids that are not of a job in one of the verb's states are left out of the answer."""
    jobs, refused = _change(at, plane, verb, job_ids)
    return Changed(list(jobs.values()), list(refused.values()))


def _change(
    at: Desk, plane: Plane, verb: Verb, job_ids: Sequence[int]
) -> tuple[dict[int, Job], dict[int, Skipped]]:
    """The jobs that changed and those that may not, by the ids they were named by."""
    if verb.to_dead_letters and plane.name == "canonical":
        return {}, {}
    landed, dropped, refused = _move(at, plane, verb, job_ids)
    jobs = {item.landing.taken.job_id: item.job for item in landed}
    jobs.update((job.job_id, _last_seen(job)) for job in dropped)
    return {job_id: jobs[job_id] for job_id in sorted(jobs)}, refused


def _skipped(job_id: int, record: JobRecord | None, verb: Verb, plane: Plane) -> Skipped:
    if record is None:
        return Skipped(job_id, Reason.MISSING)
    state = record.job.state
    if record.dead_letter is not None:
        reason = Reason.DEAD_LETTERED
    elif not verb.states:
        reason = Reason.NOT_DEAD_LETTERED
    elif verb.to_dead_letters and plane.name == "canonical" and state in verb.states:
        reason = Reason.NO_DEAD_LETTERS
    else:
        reason = Reason.WRONG_STATE
    return Skipped(job_id, reason, state, kind=record.job.kind)


def _move(
    at: Desk, plane: Plane, verb: Verb, job_ids: Sequence[int]
) -> tuple[list[Landed], list[Taken], dict[int, Skipped]]:
    """What landed, what was dropped, and what may not be moved."""
    refused: dict[int, Skipped] = {}
    keyless: set[int] = set()
    deadlocks = 0
    while True:
        left = [job_id for job_id in job_ids if job_id not in refused]
        try:
            with at.savepoint():
                taken = _take(at, plane, verb, left)
                landings, dropped = _decide(verb, taken, keyless)
                if dropped:
                    plane.drop(at.cursor, dropped)
                landed = list(plane.place(at.cursor, landings)) if landings else []
                if lost := {item.landing.taken.job_id for item in landed if item.duplicate}:
                    # The landing of a duplicate says cancelled already; what it was taken from says the rest.
                    raise _Refused({job.job_id: _conflict(job) for job in taken if job.job_id in lost})
                if verb.notifies:
                    _notify(at, taken)
        except _Refused as fault:
            conflicts = [item for item in fault.refused.values() if item.reason is Reason.UNIQUE_CONFLICT]
            if verb.yields_key and conflicts:
                keyless |= {item.job_id for item in conflicts}
            else:
                refused |= _with_holders(at, fault.refused)
            continue
        except DeadlockDetected:
            # The other one goes on with what the savepoint let go of.
            deadlocks += 1
            if deadlocks == DEADLOCKS:
                raise
            continue
        at.spent.extend(_place_of(job) for job in taken if job.state is JobState.AVAILABLE)
        return landed, dropped, refused


def _take(at: Desk, plane: Plane, verb: Verb, job_ids: Sequence[int]) -> list[Taken]:
    taken = []
    if verb.states:
        taken += plane.take(at.cursor, Ids(job_ids, verb.states, closes=verb.closes))
    if verb.dead:
        had = {job.job_id for job in taken}
        rest = [job_id for job_id in job_ids if job_id not in had]
        taken += plane.take(at.cursor, Ids(rest, (JobState.FAILED,), dead=True))
    return taken


def _decide(
    verb: Verb, taken: Sequence[Taken], keyless: Collection[int]
) -> tuple[list[Landing], list[Taken]]:
    landings: list[Landing] = []
    dropped: list[Taken] = []
    refused: dict[int, Skipped] = {}
    for job in taken:
        decided = verb.decide(job)
        if isinstance(decided, Reason):
            refused[job.job_id] = Skipped(job.job_id, decided, job.state, kind=job.kind)
        elif decided is None:
            dropped.append(job)
        else:
            yields = job.job_id in keyless
            landings.append(
                decided.replace(taken=decided.taken.yielding(decided.state)) if yields else decided
            )
    if refused:
        raise _Refused(refused)
    return landings, dropped


def _conflict(job: Taken) -> Skipped:
    return Skipped(job.job_id, Reason.UNIQUE_CONFLICT, job.state, unique_key=job.unique_key, kind=job.kind)


def _with_holders(at: Desk, refused: dict[int, Skipped]) -> dict[int, Skipped]:
    """The same, with who holds the unique keys; None where that changed hands meanwhile."""
    keys = [item.unique_key for item in refused.values() if item.unique_key is not None]
    if not keys:
        return refused
    at.cursor.execute(statement("control/enqueue", "holders"), {"unique_keys": keys})
    holders = {bytes(key): job_id for key, job_id in at.cursor.fetchall()}
    return {
        job_id: Skipped(
            job_id, item.reason, item.state, holders.get(item.unique_key or b""), item.unique_key, item.kind
        )
        for job_id, item in refused.items()
    }


def _notify(at: Desk, taken: Iterable[Taken]) -> None:
    held = [job for job in taken if job.state in (JobState.RUNNING, JobState.WAITING_EXTERNAL)]
    if held:
        at.cursor.execute(
            statement("control/operations", "notify_cancelled"),
            {
                "job_ids": ints(job.job_id for job in held),
                "run_leases": ints(job.run_lease for job in held),
            },
        )


def _place_of(taken: Taken) -> Taken:
    """A taken job without what it carries: nothing of very many needs to be held until the commit."""
    return replace(
        taken, args=None, metadata={}, tags=(), errors=(), progress=None, stored_payload=None, callback=None
    )


def _last_seen(taken: Taken) -> Job:
    """A job that is no more, as it was."""
    return Job(
        id=taken.job_id,
        kind=taken.kind,
        queue=taken.queue,
        args=taken.args,
        state=taken.state,
        priority=taken.priority,
        attempt=taken.attempt,
        max_attempts=taken.max_attempts,
        run_at=taken.run_at,
        created_at=taken.created_at,
        attempted_at=taken.attempted_at,
        finalized_at=taken.finalized_at,
        metadata=taken.metadata,
        tags=taken.tags,
        errors=taken.errors,
        progress=taken.progress,
        run_lease=taken.run_lease,
        unique_key=taken.unique_key,
    )
