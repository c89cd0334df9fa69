"""Claiming: never more than there are slots, and as soon as there is something to claim."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import psycopg
import pytest

from awa_django.conf import QueueConfig, RateLimit
from awa_django.jobs import Attempt
from awa_django.planes.base import Claimed
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.worker.claimers import Claimer
from awa_django.worker.dispatcher import Dispatcher, TokenBucket
from awa_django.worker.executor import ThreadPool
from awa_django.worker.flights import Flight
from awa_django.worker.permits import Permits, permits_for
from tests import invariants
from tests.workers import (
    backends,
    count,
    drain,
    insert,
    insert_many,
    runs,
    states,
    terminate,
    wait_until,
    worker,
)

SLOTS = {"QUEUES": {"default": 3}}


# Rates --------------------------------------------------------------------------------------------------


def test_a_bucket_starts_full_and_refills_with_time() -> None:
    now = [100.0]
    bucket = TokenBucket(5, 5, clock=lambda: now[0])
    assert bucket.take(30) == 5
    assert bucket.take(30) == 0
    assert bucket.wait_seconds() == pytest.approx(0.2)
    now[0] += 0.5
    assert bucket.take(1) == 1
    assert bucket.take(30) == 1
    bucket.give_back(2)
    assert bucket.take(30) == 2
    now[0] += 1000
    assert bucket.take(30) == 5


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(1, 2, clock=lambda: 0.0)
    bucket.give_back(50)
    assert bucket.take(30) == 2


@pytest.mark.parametrize(("rate", "burst", "capacity"), [(2.5, 0, 3), (0.1, 0, 1), (5, 7, 7)])
def test_a_burst_that_is_not_given_is_one_second_of_the_rate(rate: float, burst: int, capacity: int) -> None:
    assert RateLimit(rate, burst).capacity == capacity


# The dispatcher by itself -------------------------------------------------------------------------------


class FakePlane(QueueStoragePlane):
    """Hands out what a test puts in, or raises it."""

    def __init__(self) -> None:
        self.answers: list[list[Attempt] | Exception] = []
        self.asked: list[int] = []
        self.called = threading.Event()

    claims_may_miss = True

    def claim(self, cursor: Any, queue: str, limit: int, **options: Any) -> Claimed:
        self.asked.append(limit)
        answer = self.answers.pop(0) if self.answers else []
        self.called.set()
        if isinstance(answer, Exception):
            raise answer
        return Claimed(answer[:limit], [])

    def advance(self, cursor: Any, attempts: Sequence[Attempt]) -> None:
        pass

    def has_backlog(self, cursor: Any, queue: str) -> bool:
        return False


def _attempt(number: int) -> Attempt:
    return cast("Attempt", _Numbered(number))


class _Numbered:
    def __init__(self, number: int) -> None:
        self.job_id = number
        self.run_lease = 1


class FakeClaimer(Claimer):
    """Answers as a test says, and notes what it is asked; without a database."""

    def __init__(self) -> None:
        super().__init__("q", uuid.uuid4(), most=4)
        self.admits = True
        self.calls: list[str] = []
        self.left = threading.Event()
        self.refused = threading.Semaphore(0)

    @property
    def slot(self) -> int | None:
        return 0 if self.admits and not self.left.is_set() else None

    def may_claim(self, cursor: Any) -> bool:
        if not self.admits:
            self.refused.release()
        return self.admits

    def claimed(self, cursor: Any) -> None:
        self.calls.append("claimed")

    def leave(self, cursor: Any) -> None:
        self.calls.append("leave")
        self.left.set()


Dispatching = Callable[..., tuple[Dispatcher, list[Flight]]]


@pytest.fixture
def dispatching(awa_database: str) -> Iterator[Dispatching]:
    """A function that starts a dispatcher; it returns that and the list of flights that it starts."""
    running: list[Dispatcher] = []

    def start(
        config: QueueConfig,
        plane: FakePlane,
        *,
        claimer: Claimer | None = None,
        permits: Permits | None = None,
        poll: float = 0.05,
    ) -> tuple[Dispatcher, list[Flight]]:
        started: list[Flight] = []
        dispatcher = Dispatcher(
            config,
            permits=permits or permits_for([config], None)[config.name],
            claimer=claimer,
            bucket=TokenBucket.of(config.rate_limit),
            plane=plane,
            connect=lambda: psycopg.connect(awa_database, autocommit=True),
            start_flights=started.extend,
            poll_seconds=lambda: poll,
            held_back=lambda: False,
            nudge=lambda: None,
        )
        dispatcher.start()
        running.append(dispatcher)
        return dispatcher, started

    yield start
    for dispatcher in running:
        dispatcher.stop()
        assert dispatcher.join(30)


def test_permits_of_a_claim_that_failed_are_free_again(dispatching: Dispatching) -> None:
    fakes = FakePlane()
    fakes.answers = [psycopg.OperationalError("the server went away"), [_attempt(n) for n in range(10)]]
    config = QueueConfig("q", max_workers=4, rate_limit=RateLimit(0.001, 4))
    dispatcher, started = dispatching(config, fakes)
    wait_until(lambda: len(started) == 4)
    assert fakes.asked[:2] == [4, 4], "the tokens came back, too"
    assert dispatcher._permits.in_flight == 4


def test_permits_of_jobs_that_were_not_found_are_free_again(dispatching: Dispatching) -> None:
    fakes = FakePlane()
    fakes.answers = [[_attempt(1)]]
    dispatcher, started = dispatching(QueueConfig("q", max_workers=4), fakes)
    wait_until(lambda: len(fakes.asked) >= 3)
    assert fakes.asked[:3] == [4, 3, 3]
    assert len(started) == dispatcher._permits.in_flight == 1
    dispatcher.release()
    assert dispatcher._permits.in_flight == 0


def test_a_queue_without_slots_claims_nothing(dispatching: Dispatching) -> None:
    fakes = FakePlane()
    fakes.answers = [[_attempt(1)]]
    dispatcher, started = dispatching(QueueConfig("q", max_workers=0), fakes)
    dispatcher.wake()
    assert not fakes.called.wait(0.3)
    assert started == []


def test_an_empty_claim_costs_no_token(dispatching: Dispatching) -> None:
    fakes = FakePlane()
    dispatching(QueueConfig("q", max_workers=9, rate_limit=RateLimit(0.001, 4)), fakes)
    wait_until(lambda: len(fakes.asked) >= 5)
    assert set(fakes.asked) == {4}


def test_no_more_permits_are_taken_than_there_are_tokens(dispatching: Dispatching) -> None:
    fakes = FakePlane()
    fakes.answers = [[_attempt(n) for n in range(10)]]
    config = QueueConfig("q", max_workers=9, rate_limit=RateLimit(0.001, 3))
    permits = permits_for([config], None)["q"]
    _, started = dispatching(config, fakes, permits=permits)
    wait_until(lambda: len(started) == 3)
    assert (fakes.asked, permits.available(99)) == ([3], 6)


def test_without_a_claimer_slot_nothing_is_claimed_and_nothing_is_kept(dispatching: Dispatching) -> None:
    fakes, claimer = FakePlane(), FakeClaimer()
    fakes.answers = [[_attempt(1)]]
    claimer.admits, claimer.backlog = False, 1
    config = QueueConfig("q", max_workers=4, rate_limit=RateLimit(0.001, 4))
    dispatcher, started = dispatching(config, fakes, claimer=claimer, poll=60)
    for _ in range(4):
        assert claimer.refused.acquire(timeout=30), "it looks again by itself while something waits"
    assert (fakes.asked, started) == ([], [])
    assert not dispatcher.empty.is_set(), "jobs wait that somebody else is to claim"
    claimer.admits = True
    wait_until(lambda: started)
    assert fakes.asked[0] == 4, "neither permits nor tokens were lost"
    wait_until(lambda: "claimed" in claimer.calls, what="the slot to be renewed, once the job has started")


def test_a_queue_where_nothing_waits_is_empty_and_left_alone_without_a_slot(dispatching: Dispatching) -> None:
    fakes, claimer = FakePlane(), FakeClaimer()
    claimer.admits = False
    dispatcher, _ = dispatching(QueueConfig("q", max_workers=4), fakes, claimer=claimer, poll=60)
    assert dispatcher.empty.wait(30)
    assert claimer.refused.acquire(timeout=30)
    assert not claimer.refused.acquire(timeout=0.3), "until it is woken"
    dispatcher.wake()
    assert claimer.refused.acquire(timeout=30)


def test_a_loop_that_may_have_left_jobs_behind_gives_its_claimer_slot_up(dispatching: Dispatching) -> None:
    fakes, claimer = FakePlane(), FakeClaimer()
    fakes.answers = [[_attempt(1), _attempt(2)]]
    dispatching(QueueConfig("q", max_workers=2), fakes, claimer=claimer, poll=60)
    assert claimer.left.wait(30)
    assert claimer.calls == ["claimed", "leave"]


def test_a_loop_that_left_nothing_behind_keeps_its_claimer_slot(dispatching: Dispatching) -> None:
    fakes, claimer = FakePlane(), FakeClaimer()
    fakes.answers = [[_attempt(1), _attempt(2)], [], [_attempt(3)]]
    dispatcher, _ = dispatching(QueueConfig("q", max_workers=3), fakes, claimer=claimer, poll=60)
    wait_until(lambda: len(fakes.asked) == 2)
    assert not claimer.left.wait(0.3)
    dispatcher.stop()
    assert dispatcher.join(30)
    assert claimer.calls == ["claimed", "leave"], "at its end it leaves it to others"


def test_queues_that_share_slots_are_woken_by_each_other(dispatching: Dispatching) -> None:
    """A job of one queue ends, and the other one gets its slot without waiting for a poll."""
    configs = [QueueConfig("a"), QueueConfig("b")]
    permits = permits_for(configs, 2)
    first, second = FakePlane(), FakePlane()
    first.answers = [[_attempt(1), _attempt(2)]]
    one, started = dispatching(configs[0], first, permits=permits["a"], poll=60)
    wait_until(lambda: len(started) == 2)
    second.answers = [[_attempt(3)]]
    _, others = dispatching(configs[1], second, permits=permits["b"], poll=60)
    assert not second.called.wait(0.2)
    one.release()
    wait_until(lambda: len(others) == 1)


# The threads --------------------------------------------------------------------------------------------


@contextmanager
def pool(size: int, run: Callable[[Any], None]) -> Iterator[ThreadPool]:
    threads = ThreadPool(size, run)
    try:
        yield threads
    finally:
        threads.close()
        wait_until(lambda: not any(thread.is_alive() for thread in threads._threads))


def test_as_many_blocking_jobs_run_at_once_as_there_are_threads() -> None:
    together = threading.Barrier(17)  # sixteen jobs and this thread
    with pool(16, lambda flight: together.wait(10)) as threads:
        threads.submit(cast("list[Flight]", range(16)))
        together.wait(10)


def test_jobs_handed_over_one_by_one_run_at_once_too() -> None:
    together = threading.Barrier(17)
    with pool(16, lambda flight: together.wait(10)) as threads:
        for number in range(16):
            threads.submit([cast("Flight", number)])
        together.wait(10)


def test_a_job_is_not_held_up_by_one_that_blocks() -> None:
    release, ran = threading.Event(), threading.Event()

    def run(flight: Any) -> None:
        if flight == "blocks":
            release.wait(60)
        else:
            ran.set()

    with pool(2, run) as threads:
        threads.submit(cast("list[Flight]", ["blocks", "short"]))
        assert ran.wait(30)
        release.set()


def test_no_job_is_lost_when_many_threads_hand_over_at_once() -> None:
    seen: Counter[int] = Counter()
    lock = threading.Lock()
    done = threading.Event()
    total = 10_000

    def run(flight: Any) -> None:
        with lock:
            seen[flight] += 1
            if len(seen) == total:
                done.set()
        if flight % 100 == 0:
            time.sleep(0.001)  # so that threads go to sleep and are woken

    with pool(8, run) as threads:

        def submit(first: int) -> None:
            for number in range(first, total, 4):
                threads.submit([cast("Flight", number)])

        submitters = [threading.Thread(target=submit, args=[first]) for first in range(4)]
        for thread in submitters:
            thread.start()
        for thread in submitters:
            thread.join(30)
        assert done.wait(30), f"{total - len(seen)} jobs never ran"
    assert set(seen.values()) == {1}


def test_no_wake_up_is_lost_between_single_jobs() -> None:
    ran = threading.Semaphore(0)
    with pool(4, lambda flight: ran.release()) as threads:
        for number in range(3000):
            threads.submit([cast("Flight", number)])
            assert ran.acquire(timeout=30), f"job {number} never ran"


def test_a_pool_that_cannot_start_another_thread_goes_on_with_those_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = threading.Semaphore(0)
    with pool(4, lambda flight: ran.release()) as threads:
        threads.submit([cast("Flight", 1)])
        assert ran.acquire(timeout=30)

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        threads.submit(cast("Sequence[Flight]", range(50)))
        for _ in range(50):
            assert ran.acquire(timeout=30)


# Real workers -------------------------------------------------------------------------------------------


def most_at_once(connection: psycopg.Connection[Any]) -> int:
    """How many handlers of ``spell`` ran at the same time, as they noted themselves."""
    return count(
        connection,
        """
        SELECT max(running) FROM (
            SELECT sum(CASE label WHEN 'start' THEN 1 ELSE -1 END) OVER (ORDER BY at, label) AS running FROM probe
        ) AS course
        """,
    )


def noticed(connection: psycopg.Connection[Any]) -> float:
    """Seconds until a new job has run on a worker that polls once a minute: the best of three, on a busy machine."""
    found = []
    for _ in range(3):
        before = time.monotonic()
        job_id = insert(connection, "noop")
        wait_until(lambda: runs(connection).get(job_id))  # noqa: B023
        found.append(time.monotonic() - before)
    return min(found)


@pytest.mark.worker
def test_no_more_jobs_run_at_once_than_there_are_slots(awa_database: str) -> None:
    with psycopg.connect(awa_database, autocommit=True) as connection:
        for _ in range(10):
            insert(connection, "spell", {"seconds": 0.2})
        drain(awa_database, **SLOTS)
        assert most_at_once(connection) == 3
        assert states(connection) == {"completed": 10}


@pytest.mark.worker
def test_a_new_job_and_a_free_slot_are_noticed_at_once(awa_database: str) -> None:
    with (
        psycopg.connect(awa_database, autocommit=True) as connection,
        worker(awa_database, LISTEN_POLL_INTERVAL=60, **SLOTS) as process,
    ):
        process.wait_started()
        wait_until(lambda: "awa_worker listen" in backends(connection))
        first = insert(connection, "noop")
        wait_until(lambda: runs(connection).get(first))
        assert noticed(connection) < 1
        # Four jobs on three slots: the last one waits for a slot only. Without word of it, it would for a minute.
        gaps = []
        for _ in range(2):
            connection.execute("TRUNCATE probe")
            for _ in range(4):
                insert(connection, "spell", {"seconds": 0.3})
            wait_until(lambda: count(connection, "SELECT count(*) FROM probe WHERE label = 'end'") == 4)
            gap = connection.execute(
                "SELECT max(at) FILTER (WHERE label = 'start') - min(at) FILTER (WHERE label = 'end') FROM probe"
            ).fetchone()
            assert gap is not None
            gaps.append(gap[0])
        assert timedelta(0) <= min(gaps) < timedelta(seconds=0.5)


@pytest.mark.worker
def test_a_rate_is_kept(awa_database: str) -> None:
    limits = {"default": {"max_workers": 50, "rate_limit": {"max_rate": 5, "burst": 5}, "deadline": 60}}
    with (
        psycopg.connect(awa_database, autocommit=True) as connection,
        worker(awa_database, QUEUES=limits, STALE_AFTER=60) as process,
    ):
        process.wait_started()
        wait_until(lambda: "awa_worker listen" in backends(connection))
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        insert_many(connection, "noop", 15)
        wait_until(lambda: states(connection) == {"completed": 15})
        # When they were claimed: a handler may start later than that, and closer to the next one.
        times = [
            (at - row[0]).total_seconds()
            for (at,) in connection.execute("SELECT attempted_at FROM awa.jobs ORDER BY attempted_at")
        ]
    assert len(set(times[:5])) == 1, "the burst is claimed at once"
    assert 1.7 <= times[14] < 20, "ten more at five a second"


@pytest.mark.worker
def test_a_paused_queue_is_left_alone_until_it_is_resumed(awa_database: str) -> None:
    with psycopg.connect(awa_database, autocommit=True) as connection:
        connection.execute("INSERT INTO awa.queue_meta (queue, paused) VALUES ('default', true)")
        with worker(awa_database, LISTEN_POLL_INTERVAL=0.3, QUEUES={"default": 5, "other": 5}) as process:
            process.wait_started()
            paused = insert(connection, "noop")
            other = insert(connection, "noop", queue="other")
            wait_until(lambda: runs(connection).get(other))
            # A second round on the other queue: the paused one was woken before, and more than polled.
            time_to_claim = insert(connection, "spell", {"seconds": 0.7}, queue="other")
            wait_until(lambda: runs(connection).get(time_to_claim) == 2)
            assert paused not in runs(connection)
            connection.execute("UPDATE awa.queue_meta SET paused = false")
            wait_until(lambda: runs(connection).get(paused))


#: Claiming sessions that have had nothing to do for a while: the look around after a wake-up is over.
RESTING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'awa_worker claim%%' AND state = 'idle'
        AND state_change < clock_timestamp() - interval '0.3 seconds'
"""


#: The session that listens, by its process number; 0 while there is none.
LISTENING = """
    SELECT coalesce(max(pid), 0) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'awa_worker listen'
"""


@pytest.mark.worker
def test_a_worker_whose_sessions_are_broken_off_goes_on(awa_database: str) -> None:
    with (
        psycopg.connect(awa_database, autocommit=True) as connection,
        worker(awa_database, LISTEN_POLL_INTERVAL=60, **SLOTS) as process,
    ):
        process.wait_started()
        wait_until(lambda: "awa_worker listen" in backends(connection))
        for _ in range(40):
            insert(connection, "spell", {"seconds": 0.1})
        for round_number in range(3):
            wait_until(
                lambda: count(connection, "SELECT count(*) FROM probe") >= 6 * (round_number + 1)  # noqa: B023
            )
            terminate(connection, "awa_worker claim%")
            terminate(connection, "awa_worker settle%")
        wait_until(lambda: states(connection).get("completed") == 40)
        assert most_at_once(connection) <= 3
        # And the listener: after it is back, a notification is all that tells of a job.
        before = count(connection, LISTENING)
        assert terminate(connection, "awa_worker listen") == 1
        wait_until(lambda: "listener lost the database" in process.output())
        wait_until(lambda: count(connection, LISTENING) not in (0, before), what="another session")
        wait_until(lambda: count(connection, RESTING) == 1)
        assert noticed(connection) < 1
        assert process.stop() == 0
        wait_until(lambda: backends(connection) == [])
    invariants.assert_all_hold(awa_database)


@pytest.mark.worker
def test_two_workers_share_a_backlog(awa_database: str) -> None:
    """A claimer that finds every lane held by another one looks again soon."""
    with (
        psycopg.connect(awa_database, autocommit=True) as connection,
        worker(awa_database, LISTEN_POLL_INTERVAL=60, **SLOTS) as one,
        worker(awa_database, LISTEN_POLL_INTERVAL=60, **SLOTS) as two,
    ):
        for process in (one, two):
            process.wait_started()
        wait_until(lambda: backends(connection).count("awa_worker listen") == 2)
        connection.execute(
            "SELECT awa.insert_job_compat('spell', p_args => '{\"seconds\": 0.2}') FROM generate_series(1, 72)"
        )
        wait_until(lambda: states(connection).get("completed") == 72)
        shares = connection.execute("SELECT count(*) FROM probe WHERE label = 'end' GROUP BY pid").fetchall()
        assert len(shares) == 2
        # Either may stand still for a while.
        assert min(share for (share,) in shares) >= 9
