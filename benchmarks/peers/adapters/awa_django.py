"""awa_django: the awa queue as a Django app, with its worker command."""

from __future__ import annotations

from peers import jobs
from peers.adapter import DjangoAdapter, chunks, mode
from peers.project import configure

configure("awa_django", AWA={"AUTODISCOVER": []})

from awa_django import job  # noqa: E402  (needs a configured Django)

QUEUE = "bench"

TASKS = {
    "noop": job(kind="noop", queue=QUEUE)(jobs.noop_async),
    "sleep": job(kind="sleep", queue=QUEUE)(jobs.sleep_async),
    "orm": job(kind="orm", queue=QUEUE)(jobs.orm),
}


OPTIONS = {
    "default": f"--queue {QUEUE}",
    "tuned": f"--queue {QUEUE}:1024 --processes 2",
    "io": f"--queue {QUEUE}:50",
    "orm": f"--queue {QUEUE}:4 --processes 2",
}


class AwaDjango(DjangoAdapter):
    distributions = ("awa-django", "Django", "psycopg")
    modes = {name: f"manage.py awa_worker {options}" for name, options in OPTIONS.items()}

    def setup(self) -> None:
        self.migrate()

    def enqueue(self, kind: str, job_id: int) -> None:
        TASKS[kind].enqueue(job_id=job_id)

    def enqueue_bulk(self, kind: str, job_ids: range) -> None:
        for chunk in chunks(job_ids, 10_000):
            TASKS[kind].enqueue_many({"job_id": job_id} for job_id in chunk)

    def unfinished(self, enqueued: int) -> int:
        # Finished jobs: in completion batches, in done entries, or counted when pruned.
        return enqueued - self.scalar(
            "SELECT (SELECT coalesce(sum(completed_count), 0)"
            "          FROM awa.receipt_completion_batches)"
            "     + (SELECT count(*) FROM awa.done_entries WHERE state = 'completed')"
            "     + (SELECT coalesce(sum(pruned_completed_count), 0)"
            "          FROM awa.queue_terminal_rollups)"
        )

    def fill_finished(self, count: int) -> bool:
        # The rings cannot be filled from outside: claim and complete the jobs, without running them.
        from datetime import timedelta

        import psycopg

        from awa_django.db import connect
        from awa_django.outcomes import Completed
        from awa_django.planes.queue_storage import QueueStoragePlane
        from awa_django.settle import settle
        from awa_django.transitions import plan

        plane, none = QueueStoragePlane(), timedelta(0)
        for chunk in chunks(range(-count, 0), 10_000):
            self.enqueue_bulk("noop", chunk)
        with connect("default", application_name="fill") as connection, psycopg.Cursor(connection) as cursor:
            while attempts := plane.claim(cursor, QUEUE, 2_000, deadline=none, aging=none).attempts:
                settle(connection, plane, [plan(item, Completed(), left_state=False) for item in attempts])
                plane.advance(cursor, attempts)
        return True

    def workers(self) -> list[list[str]]:
        return [self.manage("awa-django", "awa_worker", *OPTIONS[mode()].split())]


adapter = AwaDjango()
