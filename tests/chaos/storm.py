"""A fleet of real workers on a server of its own, and everything that may happen to it while jobs flow."""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from django.db import Error as DatabaseError
from django.db import InterfaceError, OperationalError, connections

from awa_django import operations
from tests.interop.test_mixed_fleet import awa_pg_worker
from tests.worker.test_restart import Cluster
from tests.workers import PROBE_TABLE, Worker, terminate, wait_until

__all__ = ["ANYBODYS", "OURS", "SLOTS", "Produced", "Storm", "connected", "retried"]

#: The mask that unique jobs have by default.
NON_TERMINAL = "11101001"
#: What is served by our workers alone, and what any client may run.
OURS, ANYBODYS = "limited", "default"
#: Few: each holds a session of the server, which allows sixty.
SLOTS = 6
PATIENCE = 120

#: Kind, arguments, and how many of a hundred jobs are of it, on the queue that only our workers serve.
MIXTURE: list[tuple[str, dict[str, Any], int]] = [
    ("noop", {}, 40),
    ("async_noop", {}, 20),
    ("flaky", {"failures": 1}, 6),
    ("snoozing", {"times": 2}, 8),
    ("juggling", {"snoozes": 1, "failures": 0}, 6),
    ("later", {}, 6),
    ("cancelling", {}, 5),
    ("hopeless", {}, 5),
    ("spell", {"seconds": 0.2}, 4),
]
PLAIN: list[tuple[str, dict[str, Any], int]] = [
    ("noop", {}, 90),
    ("spell", {"seconds": 0.2}, 5),
    ("flaky", {"failures": 1}, 5),
]
INSERT = f"""
    SELECT stored.id
    FROM jsonb_to_recordset(%s::jsonb) AS wanted (kind text, args jsonb, queue text, priority smallint, key text),
        LATERAL awa.insert_job_compat(
            wanted.kind, wanted.queue, wanted.args, p_priority => wanted.priority,
            p_unique_key => decode(wanted.key, 'hex'),
            p_unique_states => CASE WHEN wanted.key IS NOT NULL THEN '{NON_TERMINAL}'::bit(8) END
        ) AS stored
"""
LOST = (psycopg.OperationalError, psycopg.InterfaceError, OperationalError, InterfaceError)


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of the test's own, which no storm cuts."""
    with psycopg.connect(url, autocommit=True, application_name="chaos test") as connection:
        yield connection


def retried(work: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What a piece of work answers once the server lets it."""
    until = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        try:
            return work()
        except LOST:
            if time.monotonic() > until:
                raise
            pause.wait(0.2)


@dataclass
class Produced:
    """Jobs that producers stored: those whose commit was answered, and those of which nobody knows."""

    sure: list[int] = field(default_factory=list)
    unsure: list[int] = field(default_factory=list)


class Producer(threading.Thread):
    """Stores jobs in small transactions, some of which it rolls back, until it is told to stop."""

    def __init__(self, url: str, seed: int, *, pause: float) -> None:
        super().__init__(name="chaos producer", daemon=True)
        self.url = url
        self.produced = Produced()
        self.stopping = threading.Event()
        self._random = random.Random(seed)
        self._pause = pause
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                # A rollback that meets a server which is just going comes out of its block.
                with contextlib.suppress(*LOST, psycopg.Rollback), connected(self.url) as connection:
                    self._produce(connection)
                self.stopping.wait(0.1)
        except BaseException as error:
            self.error = error

    def _produce(self, connection: psycopg.Connection[Any]) -> None:
        while not self.stopping.wait(self._pause):
            jobs = [self._job() for _ in range(self._random.randint(1, 20))]
            ids: list[int] = []
            try:
                with connection.transaction() as transaction:
                    ids += [job_id for (job_id,) in connection.execute(INSERT, [json.dumps(jobs)])]
                    if self._random.random() < 0.1:
                        ids.clear()
                        raise psycopg.Rollback(transaction)
            except LOST:
                self.produced.unsure += ids
                raise
            self.produced.sure += ids

    def _job(self) -> dict[str, Any]:
        queue, mixture = (OURS, MIXTURE) if self._random.random() < 0.5 else (ANYBODYS, PLAIN)
        ((kind, args, _),) = self._random.choices(mixture, [weight for _, _, weight in mixture])
        job = {"kind": kind, "args": args, "queue": queue, "priority": self._random.randint(1, 4)}
        if self._random.random() < 0.2:
            job["key"] = secrets.token_hex(16)
        return job


@dataclass
class Storm:
    """Workers that are killed and replaced, sessions that are cut, jobs that are cancelled, a server that is restarted.

    ``alias`` is what Django calls the database at ``url``. ``happened`` counts what was done; how it goes depends on
    the seed no further than a busy machine lets it. ``cancelled`` are jobs that an operator was told are cancelled,
    ``meddled`` all that one tried to.
    """

    cluster: Cluster
    url: str
    alias: str
    seed: int
    settings: dict[str, Any]
    workers: int = 2
    awa_pg: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    produced: Produced = field(default_factory=Produced)
    cancelled: set[int] = field(default_factory=set)
    meddled: set[int] = field(default_factory=set)
    _producers: list[Producer] = field(default_factory=list)
    _fleet: list[Worker] = field(default_factory=list)
    _theirs: list[ExitStack] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def __enter__(self) -> Storm:
        with connected(self.url) as connection:
            connection.execute(PROBE_TABLE)
        self._fleet = [self._start() for _ in range(self.workers)]
        self._theirs = [self._start_theirs() for _ in range(self.awa_pg)]
        for worker in self._fleet:
            worker.wait_started()
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._fleet:
            if worker.process.poll() is None:
                worker.kill()
            if error[0] is not None:
                print(worker.output()[-4000:])
            worker.log.close()
        for other in self._theirs:
            other.close()

    def _start(self) -> Worker:
        return Worker(self.url, **self.settings)

    def _start_theirs(self) -> ExitStack:
        stack = ExitStack()
        retried(lambda: stack.enter_context(awa_pg_worker(self.url, SLOTS)))
        return stack

    # -- what happens ------------------------------------------------------------------------------------------

    def rage(self, seconds: float, *, restarts: int = 1, pause: float = 0.05) -> None:
        """Let everything happen for so long while jobs are stored and run."""
        producers = [Producer(self.url, self.seed + number, pause=pause) for number in range(2)]
        self._producers = producers
        for producer in producers:
            producer.start()
        began, waiting = time.monotonic(), threading.Event()
        restart_at = [began + seconds * (number + 1) / (restarts + 1) for number in range(restarts)]
        events = [self.kill] * 3 + [self.cut] * 4 + [self.meddle] * 3
        events += [self.kill_theirs] * 2 if self._theirs else []
        while time.monotonic() < began + seconds:
            waiting.wait(self.random.uniform(0.3, 1.5))
            if restart_at and time.monotonic() > restart_at[0]:
                restart_at.pop(0)
                self.restart()
            else:
                self.random.choice(events)()
            self.replace_the_dead()
        for producer in producers:
            producer.stopping.set()
        for producer in producers:
            producer.join(PATIENCE)
            assert not producer.is_alive()
            if producer.error is not None:
                raise producer.error
            self.produced.sure += producer.produced.sure
            self.produced.unsure += producer.produced.unsure

    def kill(self) -> None:
        """kill -9 of a worker with its children, and another in its place."""
        number = self.random.randrange(len(self._fleet))
        self._fleet[number].kill()
        self._fleet[number].log.close()
        self._fleet[number] = self._start()
        self.happened["kills"] += 1

    def kill_theirs(self) -> None:
        """The same of an awa-pg worker."""
        number = self.random.randrange(len(self._theirs))
        self._theirs[number].close()
        self._theirs[number] = self._start_theirs()
        self.happened["kills of awa-pg"] += 1

    def cut(self) -> None:
        """Break off the sessions of our workers: all, or those of one purpose."""
        pattern = self.random.choice(["awa%", "awa%", "awa%settle%", "awa%claim%", "awa%lead%"])
        with contextlib.suppress(*LOST), connected(self.url) as connection:
            self.happened["cut sessions"] += terminate(connection, pattern)

    def meddle(self) -> None:
        """Cancel some of the jobs that were just stored, wherever they are."""
        newest = [job_id for producer in self._producers for job_id in producer.produced.sure[-40:]]
        chosen = self.random.sample(newest, min(10, len(newest)))
        self.meddled |= set(chosen)
        connections[self.alias].close()
        with contextlib.suppress(DatabaseError):
            changed = operations.cancel(chosen, using=self.alias)
            self.cancelled |= {job.id for job in changed.jobs}
            self.happened["cancelled jobs"] += len(changed.jobs)

    def restart(self) -> None:
        """Restart the server as after a crash."""
        for other in self._theirs:
            # Its handlers hold a session that they do not open again.
            other.close()
        self.cluster.control("restart", "-m", "immediate")
        self._theirs = [self._start_theirs() for _ in self._theirs]
        self.happened["restarts"] += 1

    def replace_the_dead(self) -> None:
        """A worker that could not start while the server was away is started again; one that worked never ends."""
        for number, worker in enumerate(self._fleet):
            if worker.process.poll() is not None:
                assert "kinds of jobs; queues:" not in worker.output(), worker.output()[-4000:]
                worker.log.close()
                self._fleet[number] = self._start()
                self.happened["starts in vain"] += 1

    # -- afterwards --------------------------------------------------------------------------------------------

    def calm_down(self, is_done: Callable[[psycopg.Connection[Any]], bool], what: str) -> None:
        """Wait until the fleet has done everything, and stop it."""

        def look() -> bool:
            self.replace_the_dead()
            with connected(self.url) as connection:
                return is_done(connection)

        wait_until(lambda: retried(look), seconds=PATIENCE, what=what)
        for other in self._theirs:
            other.close()
        self._theirs = []
        for worker in self._fleet:
            worker.wait_started()
            assert worker.stop() == 0, worker.output()[-4000:]

    def summary(self) -> str:
        """What happened, in a line."""
        counted = ", ".join(f"{number} {name}" for name, number in sorted(self.happened.items()))
        return f"seed {self.seed}: {len(self.produced.sure)} jobs ({len(self.produced.unsure)} unsure); {counted}"
