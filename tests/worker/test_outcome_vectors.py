"""The recorded cases of ``vectors/outcomes.json`` through a whole worker, on either storage.

One kind of job carries out what the recorded handler did. All cases of a storage run at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg.rows import dict_row

from awa_django import (
    CallbackToken,
    Cancel,
    Job,
    JobContext,
    RetryAfter,
    Snooze,
    TerminalError,
    WaitForCallback,
    callbacks,
    job,
    operations,
    registry,
    signals,
)
from awa_django.conf import QueueConfig
from awa_django.planes.base import Ids
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.registry import JobKind
from awa_django.states import JobState
from awa_django.transitions import promote
from awa_django.worker.process import Worker
from tests import invariants
from tests.inprocess import working
from tests.planes.outcome_cases import DEADLINE, RECORDED, differences, expected
from tests.planes.rows import rows_of_jobs
from tests.planes.world import World, use_canonical_tables
from tests.workers import insert, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 60
QUICK: dict[str, Any] = {
    "rescue_interval": timedelta(seconds=0.2),
    "leader_election_interval": timedelta(seconds=0.2),
    # The tests promote what is to get further. All else stays where it was put off to, however late one looks.
    "promote_interval": timedelta(hours=1),
    # What closed an attempt stays to be looked at.
    "ring_rotate_interval": timedelta(hours=1),
    "unknown_kind": "fail",
}
#: A token that another job registered.
FOREIGN = "foreign"
#: Rescues that the recording describes by what the handler does; the others have tests of their own.
RESCUES = [case for case in RECORDED["rescue"] if "handler" in case]
REGISTERS: dict[str, Any] = {
    "id": FOREIGN,
    "handler": [
        {"op": "register_callback", "as": FOREIGN, "timeout": 3600},
        {"op": "return", "outcome": "wait_for_callback", "token": FOREIGN},
    ],
    "settle_s": 2,
    "expect": {name: {"state": "waiting_external", "callback": True} for name in ("canonical", "queue")},
}
CASES: list[dict[str, Any]] = [*RECORDED["cases"], *RESCUES, REGISTERS]

CANONICAL_ROWS = """
    SELECT 'jobs_hot' AS "table", hot.*, hot.state::text AS state FROM awa.jobs_hot AS hot
    UNION ALL
    SELECT 'scheduled_jobs', waiting.*, waiting.state::text FROM awa.scheduled_jobs AS waiting
"""
#: Tables of queue storage that a job is found in, wherever else it has left traces.
PLACES = ("deferred_jobs", "leases", "done_entries", "dlq_entries", "receipt_completion_batches (item)")


@pytest.fixture
def declared() -> Iterator[None]:
    with registry.registry.isolated():
        yield


@dataclass
class Storage:
    """Django's test database in a session beside Django's, and what the recording calls its storage."""

    session: psycopg.Connection[Any]
    name: str

    @property
    def is_canonical(self) -> bool:
        return self.name == "canonical"

    @property
    def deferred(self) -> tuple[str, str]:
        """The table of jobs that wait for their time, and how it calls a job's id."""
        return ("scheduled_jobs", "id") if self.is_canonical else ("deferred_jobs", "job_id")

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        with self.session.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, values or None).fetchall()

    def found(self) -> dict[int, dict[str, Any]]:
        """Every job that readers see, by id, with the table it is in and how its last attempt was closed."""
        if self.is_canonical:
            return {row["id"]: row for row in self.rows(CANONICAL_ROWS)}
        lying = rows_of_jobs(self.session)
        return {
            row["id"]: {**row, **_traces(lying[row["id"]], row["run_lease"])}
            for row in self.rows("SELECT *, state::text AS state FROM awa.jobs")
        }

    def bring_forward(self, row: Mapping[str, Any], seconds: float) -> None:
        """Make a job available that is deferred as in this row, and due within this time."""
        table, column = self.deferred
        found = self.session.execute(
            f"UPDATE awa.{table} SET run_at = now() WHERE {column} = %s "
            "AND run_lease = %s AND run_at <= now() + make_interval(secs => %s)",
            [row["id"], row["run_lease"], seconds],
        )
        if not found.rowcount:
            return
        plane = CanonicalPlane() if self.is_canonical else QueueStoragePlane()
        with self.session.transaction(), self.session.cursor() as cursor:
            taken = plane.take(cursor, Ids([row["id"]], [JobState.SCHEDULED, JobState.RETRYABLE]))
            plane.place(cursor, [promote(each) for each in taken])

    @contextmanager
    def working(self, queues: Mapping[str, QueueConfig], **settings: Any) -> Iterator[Worker]:
        """A worker of these queues that serves this storage, and leads."""
        role = "canonical_drain" if self.is_canonical else "auto"
        changes = {**QUICK, **settings, "transition_role": role, "queues": queues}
        with working({name: queue.max_workers for name, queue in queues.items()}, lead=True, **changes) as at:
            yield at


def _traces(rows: Mapping[str, Sequence[Mapping[str, Any]]], run_lease: int) -> dict[str, Any]:
    places = [name for name in PLACES if name in rows]
    closures = [row for row in rows.get("lease_claim_closures", ()) if row["run_lease"] == run_lease]
    if closures:
        closure = closures[-1]["outcome"]
    else:
        closure = "batch" if "lease_claim_closure_batches (item)" in rows else None
    return {
        "table": places[0].removesuffix(" (item)") if places else "ready_entries",
        "closure": closure,
        "attempt_state_rows": len(rows.get("attempt_state", ())),
    }


@contextmanager
def opened(name: str) -> Iterator[Storage]:
    params = {**connection.get_connection_params(), "cursor_factory": None, "context": None}
    params = {key: value for key, value in params.items() if value is not None}
    with psycopg.connect(**params, autocommit=True) as session:
        if name == "canonical":
            use_canonical_tables(session)
        yield Storage(session, name)
        if name == "queue":
            assert invariants.violated(session) == []


@pytest.fixture(params=["queue", "canonical"])
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    """Either storage, by the name that the recording has for it."""
    with opened(request.param) as found:
        yield found


@dataclass
class Script:
    """What handlers do, by job, and what they know of each other."""

    kind: JobKind[Any, Any] = field(init=False)
    cases: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    runs: Counter[int] = field(default_factory=Counter)
    running: set[tuple[int, int]] = field(default_factory=set)
    foreign: CallbackToken | None = None
    registered: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        @job(kind="scripted")
        def scripted(ctx: JobContext) -> Any:
            return self.handle(ctx)

        self.kind = scripted

    def handle(self, ctx: JobContext) -> Any:
        """Do what the recorded handler of this job did in this run."""
        job_id = ctx.job.id
        key = (job_id, ctx.job.run_lease)
        self.runs[job_id] += 1
        self.running.add(key)
        try:
            return self._perform(ctx, self.cases[job_id]["handler"], self.runs[job_id], {})
        finally:
            self.running.discard(key)

    def _perform(
        self,
        ctx: JobContext,
        steps: Sequence[Mapping[str, Any]],
        run: int,
        tokens: dict[str, CallbackToken],
    ) -> Any:
        for step in steps:
            match step["op"]:
                case "set_progress":
                    ctx.set_progress(step["percent"], step["message"])
                case "update_metadata":
                    ctx.update_metadata(step["updates"])
                case "flush":
                    ctx.flush_progress()
                case "register_callback":
                    tokens[step["as"]] = ctx.register_callback(step["timeout"])
                    if step["as"] == FOREIGN:
                        self.foreign = tokens[FOREIGN]
                        self.registered.set()
                case "complete_external":
                    callbacks.complete(tokens[step["token"]])
                case "fail_external":
                    callbacks.fail(tokens[step["token"]], step["error"])
                case "resume_external":
                    callbacks.resume(tokens[step["token"]], step["payload"])
                case "resume_later":
                    _later(step["after"], partial(callbacks.resume, tokens[step["token"]], step["payload"]))
                case "wait":
                    self._wait(ctx, tokens[step["token"]], step.get("give_up_after"))
                case "admin_cancel":
                    assert operations.cancel(ctx.job.id).jobs
                case "sleep":
                    time.sleep(step["seconds"])
                case "sleep_until_cancelled":
                    wait_until(ctx.is_cancelled, seconds=SECONDS, what="the attempt to be taken away")
                case "if_attempt" | "if_run" as condition:
                    wanted, actual = (
                        (step["attempt"], ctx.attempt) if condition == "if_attempt" else (step["run"], run)
                    )
                    if wanted == actual:
                        return self._perform(ctx, step["then"], run, tokens)
                case "return":
                    return self._returned(step, tokens)
                case "raise":
                    raise {
                        "exception": ValueError,
                        "terminal": TerminalError,
                        "cancelled_error": asyncio.CancelledError,
                    }[step["error"]](step["message"])
                case unknown:
                    raise AssertionError(
                        f"the recording knows an operation that this test does not: {unknown}"
                    )
        raise AssertionError("the recorded handler does not end")

    def _wait(self, ctx: JobContext, token: CallbackToken, give_up_after: float | None) -> None:
        if give_up_after is None:
            assert ctx.wait_for_callback(token) == {"v": 2}
            return
        with pytest.raises(TimeoutError):
            ctx.wait_for_callback(token, give_up_after)

    def _returned(self, step: Mapping[str, Any], tokens: Mapping[str, CallbackToken]) -> Any:
        match step["outcome"]:
            case "completed":
                return None
            case "other":
                return step["value"]
            case "retry_after":
                return RetryAfter(step["seconds"])
            case "snooze":
                return Snooze(step["seconds"])
            case "cancel":
                return Cancel(step["reason"])
            case "wait_for_callback" if step["token"] == FOREIGN and FOREIGN not in tokens:
                assert self.registered.wait(SECONDS)
                return WaitForCallback(self.foreign)
            case "wait_for_callback":
                return WaitForCallback(tokens[step["token"]])
        raise AssertionError(f"the recording knows an outcome that this test does not: {step['outcome']}")


@pytest.fixture
def script(declared: None) -> Script:
    """The handler of all cases."""
    return Script()


def _later(seconds: float, work: Callable[[], object]) -> None:
    def run() -> None:
        work()
        connection.close()

    threading.Timer(seconds, run).start()


def queue_of(case: Mapping[str, Any]) -> QueueConfig:
    """The queue that a case runs on: those with a deadline of their own have one of their own.

    It is three times what was recorded, for all but the first attempt have to be done by then.
    """
    millis = case.get("queue_config", {}).get("deadline_duration_ms")
    deadline = DEADLINE if millis is None else timedelta(milliseconds=3 * millis)
    name = f"deadline_{int(deadline.total_seconds() * 1000)}"
    return QueueConfig(name, max_workers=40, deadline=deadline)


def enqueue(storage: Storage, case: Mapping[str, Any]) -> int:
    spec = dict(case.get("job", {}))
    args = spec.pop("args", {})
    kind = case.get("kind", "scripted")
    return insert(storage.session, kind, args, queue=queue_of(case).name, **spec)


def wanted_of(case: Mapping[str, Any], plane: str) -> dict[str, Any]:
    """What a case leaves, with what is decided elsewhere left open."""
    expect = expected(case, plane)
    if case["id"] == "args_do_not_fit":  # any message of a validation
        expect["errors"] = [{**entry, "error_starts": ""} for entry in expect["errors"]]
    if case["id"] == "abandoned_wait_then_error":  # recorded where the wait goes on; here the error counts
        expect["errors"] = [{"error_starts": "ValueError: gave up", "attempt": 1}]
        del expect["callback"]
    if case["id"] == "wait_callback_resumed_first":  # between its runs it looks the same
        expect["run_lease"] = 2
    return expect


def faults_of(row: Mapping[str, Any] | None, case: Mapping[str, Any], plane: str) -> list[str]:
    """In what the row of a case is not as it should be."""
    if row is None:
        return ["nowhere to be seen"]
    wanted = wanted_of(case, plane)
    if row["state"] != wanted["state"]:
        return [f"it is {row['state']}, not {wanted['state']}"]
    for key in wanted.keys() & {"table", "closure"}:
        if isinstance(wanted[key], list) and row[key] in wanted[key]:
            wanted[key] = row[key]
    return differences(row, wanted)


@dataclass
class Watch:
    """Looks at the jobs of cases until each is as it should be."""

    storage: Storage
    jobs: Mapping[int, Mapping[str, Any]]

    def look(self) -> dict[str, list[str]]:
        """What is wrong, by case. A job that should get further is not left to wait."""
        found = self.storage.found()
        verdicts = {}
        for job_id, case in self.jobs.items():
            row = found.get(job_id)
            if faults := faults_of(row, case, self.storage.name):
                verdicts[case["id"]] = faults
                # What was seen, and not what has become of it since: that may be as it should.
                if row is not None and row["state"] in ("scheduled", "retryable"):
                    self.storage.bring_forward(row, case["settle_s"])
        return verdicts


EVENTS = {
    "completed": signals.job_completed,
    "retried": signals.job_retried,
    "exhausted": signals.job_exhausted,
    "cancelled": signals.job_cancelled,
    "waiting": signals.job_waiting,
    "rescued": signals.job_rescued,
}


def follow_everything(kind: JobKind[Any, Any]) -> None:
    """Have every outcome of a kind store a follow-up that names it and its job. Nobody serves their queue."""

    @job(queue="notes")
    def noted(of: int, event: str) -> None: ...

    for name in EVENTS:
        getattr(kind, f"on_{name}")(lambda done, name=name: noted.request(of=done.id, event=name))


@contextmanager
def listening() -> Iterator[Counter[tuple[int, str]]]:
    """What listeners hear of jobs: how often which event of which job."""
    heard: Counter[tuple[int, str]] = Counter()
    receivers = {}
    for name, signal in EVENTS.items():

        def hear(job: Job, name: str = name, **values: Any) -> None:
            heard[job.id, name] += 1

        receivers[name] = hear
        signal.connect(hear)
    try:
        yield heard
    finally:
        for name, signal in EVENTS.items():
            signal.disconnect(receivers[name])


def is_idle(worker: Worker) -> bool:
    """Whether no handler runs, and every outcome is written."""
    runtime = worker.runtime
    return not any(permits.in_flight for permits in runtime.permits.values()) and not runtime.flights


def play(storage: Storage, script: Script, cases: Sequence[Mapping[str, Any]], **settings: Any) -> None:
    """Enqueue cases together and have a worker run until all are as they should be, and stay so."""
    jobs = script.cases
    for case in cases:
        jobs[enqueue(storage, case)] = case
    queues = {queue.name: queue for queue in map(queue_of, cases)}
    watch = Watch(storage, jobs)
    with storage.working(queues, **settings) as worker:
        try:
            wait_until(lambda: not watch.look() and is_idle(worker), seconds=SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{watch.look()}; running: {script.running}") from error
    assert watch.look() == {}, "once the worker has stopped"


def test_every_recorded_case_ends_as_recorded(storage: Storage, script: Script) -> None:
    assert len(RECORDED["cases"]) == 31
    play(storage, script, CASES)


def test_every_recorded_case_ends_so_with_follow_ups_too_and_listeners_hear_the_same(
    storage: Storage, script: Script
) -> None:
    follow_everything(script.kind)
    with listening() as heard:
        play(storage, script, CASES)
        assert signals.outbox.wait_empty(SECONDS)
    table = "jobs_hot" if storage.is_canonical else "ready_entries"
    notes = storage.rows(f"SELECT args FROM awa.{table} WHERE kind = 'noted'")
    stored = Counter((note["args"]["of"], note["args"]["event"]) for note in notes)
    told = {key: times for key, times in heard.items() if script.cases[key[0]].get("kind") is None}
    assert stored == told


# Rescues that need a worker of their own -----------------------------------------------------------------------

LIVE = {
    "id": "live_canonical_attempt_of_capable_worker",
    "handler": [{"op": "sleep", "seconds": 5}, {"op": "return", "outcome": "completed"}],
    "settle_s": 5,
    "expect": {name: {"state": "completed", "attempt": 1, "run_lease": 1} for name in ("canonical", "queue")},
}
ERRORS = {
    ("canonical", False): "heartbeat stale: worker presumed dead",
    ("canonical", True): "heartbeat stale: worker presumed dead",
    ("queue", False): "receipt claim stale: worker presumed dead",
    ("queue", True): "heartbeat stale: worker presumed dead",
}


def test_the_tests_cover_every_recorded_rescue() -> None:
    covered = {case["id"] for case in RESCUES} | {LIVE["id"], "rescue_stale_heartbeat_ignores_max_attempts"}
    assert {case["id"] for case in RECORDED["rescue"]} == covered


def test_a_live_attempt_is_left_alone_however_long_it_takes(storage: Storage, script: Script) -> None:
    play(
        storage,
        script,
        [LIVE],
        heartbeat_interval=timedelta(seconds=0.2),
        stale_after=timedelta(seconds=3.5),
    )


@pytest.mark.parametrize("registered", [False, True], ids=["receipt", "lease"])
def test_a_silent_attempt_is_retried_after_the_backoff_also_if_it_was_the_last(
    storage: Storage, declared: None, registered: bool
) -> None:
    """Its worker is as good as dead: it sends no heartbeat. The handler finds out and is not listened to any more."""
    seen: list[Any] = []
    stored = threading.Event()

    @job(max_attempts=1)
    def silent(ctx: JobContext) -> None:
        seen.append(ctx.progress)
        if ctx.attempt > 1:
            return
        if registered:
            ctx.register_callback(3600)
        ctx.set_progress(40)
        ctx.flush_progress()
        stored.set()
        wait_until(ctx.is_cancelled, what="the attempt to be taken away")

    queue = QueueConfig("default", max_workers=2)
    job_id = insert(storage.session, "silent", max_attempts=1)
    silence = {"heartbeat_interval": timedelta(hours=1), "stale_after": timedelta(minutes=5)}
    with storage.working({"default": queue}, **silence):
        assert stored.wait(SECONDS)
        World(storage.session, QueueStoragePlane()).age()
        row = wait_until(lambda: _in_state(storage, job_id, "retryable"), seconds=SECONDS)
        assert (row["attempt"], row["run_lease"], row["progress"]) == (1, 1, {"percent": 40})
        assert 1.9 <= (row["run_at"] - row["finalized_at"]).total_seconds() <= 2.6
        (entry,) = row["errors"]
        assert (entry["error"], entry["attempt"]) == (ERRORS[storage.name, registered], 1)
        assert "terminal" not in entry
        storage.bring_forward(row, 3)
        row = wait_until(lambda: _in_state(storage, job_id, "completed"), seconds=SECONDS)
    assert (row["attempt"], row["run_lease"], row["errors"]) == (2, 2, [entry])
    assert seen == [None, {"percent": 40}]


def _in_state(storage: Storage, job_id: int, state: str) -> dict[str, Any]:
    """The job's row if it is in this state, else nothing."""
    row = storage.found().get(job_id, {})
    return row if row.get("state") == state else {}


# An attempt that waited so long that it was claimed at a better priority -----------------------------------------


@pytest.fixture
def queue_storage() -> Iterator[Storage]:
    with opened("queue") as found:
        yield found


def test_an_aged_attempt_is_found_again_whatever_it_does(queue_storage: Storage, declared: None) -> None:
    """DEC-24, DEC-25: it holds a lease, and its lane is that of its own priority."""
    storage = queue_storage
    runs: Counter[str] = Counter()
    seen: dict[str, int] = {}
    tokens: dict[str, CallbackToken] = {}

    @job
    def aged(ctx: JobContext, does: str) -> Any:
        runs[does] += 1
        seen[does] = ctx.job.priority
        tokens[does] = ctx.register_callback(3600)
        match does:
            case "wait":
                assert ctx.wait_for_callback(tokens[does]) == "go on"
            case "park" | "fail":
                return WaitForCallback(tokens[does])
            case "snooze":
                return Snooze(9000)
            case "retry":
                raise ValueError("once more")
        return None

    ends = {
        "complete": "completed",
        "wait": "completed",
        "park": "completed",
        "fail": "failed",
        "snooze": "scheduled",
        "retry": "retryable",
    }
    jobs = {does: insert(storage.session, "aged", {"does": does}, queue="aged", priority=4) for does in ends}
    wait_until(
        lambda: storage.rows("SELECT FROM awa.ready_entries HAVING min(now() - run_at) > interval '1.2 s'"),
        what="the jobs to have waited for more than two steps of priority",
    )
    queue = QueueConfig("aged", max_workers=10, priority_aging_interval=timedelta(seconds=0.5))
    with storage.working({"aged": queue}) as worker:
        waiting = [jobs[does] for does in ("wait", "park", "fail")]
        wait_until(lambda: all(_in_state(storage, job_id, "waiting_external") for job_id in waiting))
        callbacks.resume(tokens["wait"], "go on")
        assert callbacks.resolve(tokens["park"], default="complete").is_completed()
        callbacks.fail(tokens["fail"], "no")
        wait_until(
            lambda: (
                is_idle(worker) and all(_in_state(storage, jobs[does], end) for does, end in ends.items())
            ),
            seconds=SECONDS,
        )
    found = storage.found()
    assert [found[job_id]["priority"] for job_id in jobs.values()] == [4] * len(jobs)
    assert runs == Counter(ends.keys())
    assert all(priority < 4 for priority in seen.values()), "they were claimed at a better priority"
