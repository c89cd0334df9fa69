"""When duties run, what slows them down, and what an idle leader costs."""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from awa_django.conf import Settings
from awa_django.maintenance import Context, Duty, Governor, Timetable, timetable
from awa_django.maintenance.canonical import RECOUNT_SHARE, FullRecount
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.planes.queue_storage.rings import Look, Ring
from tests.planes.world import World, job

PLANES = (QueueStoragePlane(), CanonicalPlane())
EMPTY = Ring(0, (0,) * 16)
NOTHING = Look(datetime(2026, 1, 1, tzinfo=UTC), None, EMPTY, EMPTY, EMPTY, False)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


@dataclass
class Scene:
    """A timetable on a clock that moves only when it is told to."""

    context: Context
    now: float = 0.0
    seen: Look = NOTHING
    looks: list[float] = field(default_factory=list)
    runs: list[tuple[str, float]] = field(default_factory=list)
    takes: dict[str, float] = field(default_factory=dict)

    def timetable(self, *duties: Duty) -> Timetable:
        table = Timetable(duties, look=self._look, clock=lambda: self.now)
        table.begin()
        return table

    def duty(self, name: str, interval: float, **options: Any) -> Duty:
        def run(context: Context) -> bool:
            self.runs.append((name, round(self.now, 3)))
            self.now += self.takes.get(name, 0.0)
            return False

        return Duty(name, seconds(interval), run, **options)

    def play(self, table: Timetable, until: float) -> None:
        """Step through the time, sleeping as long as the timetable says."""
        while self.now < until:
            pause = table.step(self.context)
            assert pause >= 0
            self.now += pause if pause else 1e-6

    def times(self, name: str) -> list[float]:
        return [at for who, at in self.runs if who == name]

    def _look(self, cursor: psycopg.Cursor[Any]) -> Look:
        self.looks.append(round(self.now, 3))
        return self.seen


@pytest.fixture
def scene(context: Context) -> Scene:
    return Scene(context)


def test_the_first_run_is_one_interval_after_the_election_or_at_once(scene: Scene) -> None:
    table = scene.timetable(scene.duty("later", 30), scene.duty("soon", 60, at_once=True))
    scene.play(table, 61)
    assert scene.times("later") == [30, 60]
    assert scene.times("soon") == [0, 60]


def test_a_late_run_stands_for_the_ticks_that_were_missed(scene: Scene) -> None:
    scene.takes["slow"] = 25
    table = scene.timetable(scene.duty("slow", 60, at_once=True), scene.duty("quick", 10))
    scene.play(table, 45)
    assert scene.times("quick") == [25, 30, 40]


def test_a_duty_with_more_to_do_lets_the_others_go_first(scene: Scene) -> None:
    left = iter([True, True, False])

    def run(context: Context) -> bool:
        scene.runs.append(("busy", scene.now))
        scene.now += 1
        return next(left)

    table = scene.timetable(Duty("busy", seconds(10), run, at_once=True), scene.duty("other", 1))
    scene.play(table, 5)
    assert [name for name, _ in scene.runs][:5] == ["busy", "other", "busy", "other", "busy"]


def test_an_idle_leader_looks_once_a_second_and_does_nothing_else(scene: Scene) -> None:
    table = scene.timetable(scene.duty("promotion", 0.25, when=lambda seen: seen.due_in))
    scene.play(table, 10)
    assert scene.looks == [float(second) for second in range(10)]
    assert scene.runs == []


def test_promotion_happens_when_a_job_falls_due_and_not_at_the_next_tick(scene: Scene) -> None:
    table = scene.timetable(scene.duty("promotion", 0.25, when=lambda seen: seen.due_in))
    scene.seen = replace(NOTHING, due_in=0.4)
    table.step(scene.context)
    scene.seen = NOTHING
    scene.play(table, 2)
    assert scene.times("promotion") == [0.4]


def test_while_jobs_are_due_promotion_keeps_to_its_interval(scene: Scene) -> None:
    scene.seen = replace(NOTHING, due_in=-3.0)
    table = scene.timetable(scene.duty("promotion", 0.25, when=lambda seen: seen.due_in))
    scene.play(table, 1.1)
    assert scene.times("promotion") == [0.25, 0.5, 0.75, 1.0]


def test_a_job_that_this_process_put_off_briefly_is_looked_for_in_time(scene: Scene) -> None:
    table = scene.timetable(scene.duty("promotion", 0.25, when=lambda seen: seen.due_in))
    table.step(scene.context)
    table.expect(0.3)
    assert table.wake.is_set()
    scene.play(table, 0.9)
    assert scene.looks == [0, 0.3]


def wanted(seen: Look) -> set[str]:
    """The watchful duties of a leader that make something of a look at once."""
    duties = timetable(Settings(), PLANES).duties
    return {duty.name for duty in duties if duty.when is not None and duty.when(seen) == 0}


def test_nobody_looks_for_the_dead_where_nothing_was_written() -> None:
    used = Ring(0, (8192, *(0,) * 15))
    assert wanted(NOTHING) == set()
    assert {name for name in wanted(replace(NOTHING, claim=used)) if "rescue" in name} == {
        "rescue of stale receipts", "rescue past deadline",
    }  # fmt: skip
    assert {name for name in wanted(replace(NOTHING, lease=used)) if "rescue" in name} == {
        "rescue of stale leases", "rescue past deadline", "rescue of unanswered callbacks",
    }  # fmt: skip
    assert wanted(replace(NOTHING, canonical=True)) == {
        "rescue of stale leases (canonical)", "rescue past deadline (canonical)",
        "rescue of unanswered callbacks (canonical)", "ageing of priorities", "recount of all queues",
    }  # fmt: skip
    assert wanted(replace(NOTHING, dirty=True)) == {"recount of touched queues"}
    assert wanted(replace(NOTHING, operations=True)) == {"batch operations"}


def test_a_slow_count_of_everything_is_taken_less_often(world: World, context: Context) -> None:
    now = iter([10.0, 13.0, 13.0, 113.0, 500.0])
    recount = FullRecount(lambda: next(now))
    recount.run(context)
    full = replace(NOTHING, canonical=True)
    assert [recount.when(full) for _ in range(3)] == [3 / RECOUNT_SHARE, 200.0, 0.0]
    assert recount.when(NOTHING) is None


def test_a_slow_look_is_taken_less_often(scene: Scene) -> None:
    def slow(cursor: psycopg.Cursor[Any]) -> Look:
        scene.looks.append(scene.now)
        scene.now += 0.5
        return NOTHING

    table = scene.timetable(scene.duty("promotion", 0.25, when=lambda seen: seen.due_in))
    table.look = slow
    scene.play(table, 30)
    assert scene.looks == [0, 10.5, 21]


def test_three_overruns_in_a_row_thin_a_duty_out_until_it_is_fast_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.takes["heavy"] = 25
    table = scene.timetable(scene.duty("heavy", 10))
    with caplog.at_level(logging.INFO, "awa_django.maintenance"):
        scene.play(table, 96)
        assert scene.times("heavy") == [10, 40, 70]
        assert "heavy took 25.00 s" in caplog.text
        # Six ticks are skipped: twice the duration.
        scene.takes["heavy"] = 1
        scene.play(table, 400)
    times = scene.times("heavy")
    assert times[3] == 100 + 6 * 10
    assert {later - earlier for earlier, later in itertools.pairwise(times[5:])} == {10}
    assert "keeps to its interval" in caplog.text


def test_the_governor_counts_only_what_is_clearly_late_or_early() -> None:
    governor = Governor(10)
    assert [governor.record(duration) for duration in (16, 16, 12, 16, 16)] == [0] * 5
    assert governor.record(16) == 4
    assert [governor.record(duration) for duration in (6, 6, 8)] == [2, 2, 2]
    assert [governor.record(duration) for duration in (6, 6, 6)] == [2, 2, 0]
    assert not governor.delayed


def test_no_more_than_120_ticks_are_skipped() -> None:
    governor = Governor(0.25)
    assert [governor.record(100) for _ in range(3)] == [0, 0, 120]


def test_a_failing_duty_is_logged_and_the_others_go_on(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(context: Context) -> bool:
        raise ValueError("no such thing")

    table = scene.timetable(Duty("broken", seconds(1), fail), scene.duty("sound", 1))
    scene.play(table, 3.5)
    assert scene.times("sound") == [1, 2, 3]
    assert caplog.text.count("broken failed") == 3


def test_the_victim_of_a_deadlock_tries_again_at_once(scene: Scene) -> None:
    tries: list[int] = []

    def unlucky(context: Context) -> bool:
        tries.append(1)
        if len(tries) < 3:
            raise psycopg.errors.DeadlockDetected("deadlock detected")
        return False

    table = scene.timetable(Duty("unlucky", seconds(60), unlucky, at_once=True))
    scene.play(table, 1)
    assert len(tries) == 3


def test_losing_the_connection_ends_the_round(scene: Scene) -> None:
    def lose(context: Context) -> bool:
        context.connection.close()
        context.connection.execute("SELECT 1")
        return False

    table = scene.timetable(Duty("any", seconds(60), lose, at_once=True))
    with pytest.raises(psycopg.OperationalError):
        table.step(scene.context)


def test_an_idle_leader_commits_little_more_than_once_a_second(awa_database: str, tmp_path: Path) -> None:
    """Runs the real timetable for four seconds on an empty queue, of which the look is all there is to do.

    Ends of transactions are counted in the protocol: the server's own figures hold those of an autovacuum as well.
    """
    sent = tmp_path / "protocol"
    with psycopg.connect(awa_database, autocommit=True) as connection, sent.open("w") as file:
        connection.execute("SET jit = off")
        context = Context(connection=connection, settings=Settings())
        table, stop = timetable(Settings(), PLANES), threading.Event()
        connection.pgconn.trace(file.fileno())
        began = time.monotonic()
        threading.Timer(4.0, lambda: (stop.set(), table.wake.set())).start()
        table.run(context, stop)
        took = time.monotonic() - began
        connection.pgconn.untrace()
    commits = len(re.findall(r"\tReadyForQuery\t.* I$", sent.read_text(), re.MULTILINE))
    assert 1 <= commits <= 2.5 * took + 2


def test_the_real_timetable_promotes_a_job_when_it_falls_due(world: World, context: Context) -> None:
    due = world.one("SELECT clock_timestamp() + interval '1.5 seconds'")
    world.enqueue(job(run_at=due))
    table = timetable(Settings(), PLANES)
    stop = threading.Event()
    settings = Settings()
    assert settings.promote_interval == timedelta(milliseconds=250)
    timer = threading.Timer(60.0, stop.set)
    timer.start()
    table.begin()
    while not stop.is_set() and world.one("SELECT count(*) FROM awa.ready_entries") == 0:
        table.wake.wait(table.step(context))
    timer.cancel()
    promoted_at = world.one("SELECT run_at FROM awa.ready_entries")
    assert timedelta(0) <= promoted_at - due < timedelta(seconds=10)
