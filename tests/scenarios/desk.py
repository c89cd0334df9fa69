"""The admin on a large queue: its pages, changes of everything that matches, and what pruning costs meanwhile.

Whoever calls has the seeded database as Django's default (``tests/otherdefault.py``), with Django's test environment.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connections
from django.test import Client
from django.urls import reverse

from awa_django import operations
from awa_django.enqueue import enqueue
from awa_django.jobs import JobInsert
from awa_django.operations import BatchOperation
from tests.inprocess import working
from tests.scenarios.seeding import Seeded
from tests.scenarios.walking import Page, Statement, Visit, sent, visit, walk
from tests.workers import wait_until

__all__ = [
    "MOST_QUERIES",
    "MOST_SECONDS",
    "START",
    "STATEMENT_TIMEOUT",
    "Pruning",
    "Submitted",
    "leading",
    "log_entries",
    "operator",
    "pages",
    "prune",
    "submit",
    "watch",
]

#: What a page may take, and the statements that it may send.
MOST_SECONDS = 0.5
MOST_QUERIES = 15
#: That of the admin's role in the scenario.
STATEMENT_TIMEOUT = timedelta(seconds=2)

START = "/admin/awa_django/"
#: A queue without jobs, for a worker that only leads.
NOTHING = {"nothing": 1}


def operator(name: str = "maria", *, may: Sequence[str] | None = None) -> Client:
    """Somebody who is logged in: a superuser, or a member of the staff with these permissions of the queue's alone."""
    user, _ = get_user_model().objects.get_or_create(
        username=name, defaults={"is_staff": True, "is_superuser": may is None}
    )
    wanted = Permission.objects.filter(content_type__app_label="awa_django", codename__in=may or ())
    user.user_permissions.set(wanted)
    client = Client()
    client.force_login(user)
    return client


def pages(client: Client, seeded: Seeded, *, thorough: bool = True) -> Iterator[Visit]:
    """Every page that links and filters lead to, one of each sort of job, searches, and the last pages of lists."""
    jobs, letters = (reverse(f"admin:awa_django_{model}_changelist") for model in ("job", "dlqentry"))
    also = []
    for sort, job_id in seeded.one_of_each.items():
        model = "dlqentry" if sort == "dead" else "job"
        also.append(reverse(f"admin:awa_django_{model}_change", args=[job_id]))
        also.append(f"{jobs}?id={job_id}")
    also += [
        f"{jobs}?kind=send_receipt&queue=mail&state=available",
        f"{jobs}?tag=tenant-3",
        f"{jobs}?tag=nobody",
    ]
    also += [f"{jobs}?kind=nobody", f"{letters}?kind=nobody"]
    ends = []
    for found in walk(client, START, also=also, thorough=thorough, seconds=MOST_SECONDS):
        yield found
        following = Page(found.html).next
        if (
            following
            and found.url.startswith(jobs)
            and "before" not in found.url
            and found.url.count("&") < 1
        ):
            # Where hardly any job is older.
            ends.append(jobs + re.sub(r"before=\d+", "before=60", following))
    for url in dict.fromkeys(ends):
        yield visit(client, url, seconds=MOST_SECONDS)


@contextmanager
def leading(**settings: Any) -> Iterator[None]:
    """A worker of this process that leads and runs no jobs."""
    quick = {
        "leader_election_interval": timedelta(seconds=0.2),
        "promote_interval": timedelta(seconds=0.2),
        "snapshot_interval": timedelta(seconds=1),
    }
    with working(NOTHING, lead=True, **{**quick, **settings}):
        yield


@dataclass(frozen=True, slots=True)
class Submitted:
    """A change of all that match, as it was asked for."""

    seconds: float
    operation: BatchOperation
    url: str


def submit(client: Client, model: str, verb: str, **filter: str) -> Submitted:
    """Have everything that matches changed, through the confirmation page."""
    url = reverse(f"admin:awa_django_{model}_action_many", args=[verb])
    before = {operation.id for operation in operations.batch_operations()}
    asked = client.post(url, {"matching": "1", **filter})
    assert asked.status_code == 200, asked.content.decode()[-2000:]
    began = time.perf_counter()
    done = client.post(url, {"matching": "1", "confirmed": "1", **filter})
    took = time.perf_counter() - began
    assert done.status_code == 302, done.content.decode()[-2000:]
    (operation,) = (found for found in operations.batch_operations() if found.id not in before)
    return Submitted(took, operation, done.url)


def watch(operation: BatchOperation, *, seconds: float) -> tuple[BatchOperation, list[int]]:
    """Wait until an operation has ended; how it did, and how many jobs were done each time somebody looked."""
    seen: list[int] = []

    def look() -> BatchOperation | None:
        found = operations.batch_operation(operation.id)
        seen.append(found.processed + found.skipped + found.errored)
        return found if found.state.is_over else None

    ended = wait_until(look, seconds=seconds, what=f"the end of {operation.description}")
    assert ended is not None
    return ended, seen


@dataclass(frozen=True, slots=True)
class Pruning:
    """What became of producers while history was pruned."""

    #: Finished jobs that history forgot.
    forgotten: int
    #: Seconds that storing a job took, in order.
    enqueues: Sequence[float]
    slowest: Statement

    @property
    def p95(self) -> float:
        """Seconds within which nineteen of twenty jobs were stored."""
        return self.enqueues[int(len(self.enqueues) * 0.95)]


class _Producer(threading.Thread):
    """Stores a job every ten milliseconds in a transaction of its own, until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(name="producer")
        self.stopping = threading.Event()
        self.took: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.wait(0.01):
                began = time.perf_counter()
                enqueue(JobInsert(kind="noop", args={"n": len(self.took)}, queue="produced"))
                self.took.append(time.perf_counter() - began)
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()


def forgotten() -> int:
    """Finished jobs that history has pruned."""
    counts = operations.state_counts()
    return int(counts.pruned_completed)


def prune(finished: int, *, seconds: float) -> Pruning:
    """Have the leader forget all history at once while a producer goes on; returns when so many are gone."""
    producer = _Producer()
    with sent() as statements:
        producer.start()
        try:
            with leading(
                completed_retention=timedelta(seconds=1), ring_rotate_interval=timedelta(seconds=0.1)
            ):
                wait_until(
                    lambda: producer.error or forgotten() >= finished,
                    seconds=seconds,
                    what="an empty history",
                )
        finally:
            producer.stopping.set()
            producer.join(30)
        if producer.error is not None:
            raise producer.error
    led = [statement for statement in statements if statement.thread not in ("producer", "MainThread")]
    return Pruning(forgotten(), sorted(producer.took), max(led, key=lambda statement: statement.seconds))


def log_entries(url: str) -> int:
    """How many actions the admin's log holds."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM django_admin_log").fetchone()
        assert row is not None
        return int(row[0])
