"""``manage.py demo``: a day in the shop, and whether everything came out right."""

from __future__ import annotations

import secrets
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from example_project.shop.demo import processes
from example_project.shop.demo.customers import SOME, busy_day
from example_project.shop.demo.queries import ended_jobs
from example_project.shop.demo.readback import expected_jobs, read_back
from example_project.shop.demo.screen import ProgressBar

#: The worker also waits for what is due within this time: retries, snoozes and the scheduled job.
AHEAD_SECONDS = 60
#: How long to wait for jobs that the worker of somebody else runs.
OTHERS_SECONDS = 10
#: What a shell expects of a program that Ctrl-C ended.
INTERRUPTED = 130


class Command(BaseCommand):
    """Exit code 0 when every row of the final table is as expected, else 1 and what differs."""

    help = "Place orders, run a worker until nothing is left, and check in the database what became of it."
    requires_migrations_checks = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--orders", type=int, default=200, help=f"orders to place, at least {SOME} (200)")
        parser.add_argument("--newsletters", type=int, default=300, help="jobs to enqueue in bulk (300)")
        parser.add_argument("--patience", type=float, default=120, help="seconds the worker may take (120)")

    def handle(self, *args: Any, orders: int, newsletters: int, patience: float, **options: Any) -> None:
        if orders < SOME:
            raise CommandError(f"--orders: at least {SOME} are needed, not {orders}")
        source = f"demo-{secrets.token_hex(3)}"
        try:
            self.run_day(source, orders, newsletters, patience)
        except KeyboardInterrupt:
            raise CommandError("interrupted; another run starts afresh", returncode=INTERRUPTED) from None

    def run_day(self, source: str, orders: int, newsletters: int, patience: float) -> None:
        """The three acts."""
        began = time.monotonic()
        self.say(f"A day in the shop, {source}, on PostgreSQL {self.server_version()}")

        self.say("\n1. Customers order. Each order is one transaction with the jobs it causes.")
        day = busy_day(source, orders, newsletters)
        total = sum(expected_jobs(day).values())
        self.say(f"   {orders} orders and {total} jobs in {time.monotonic() - began:.1f} s.")
        self.say("   One more customer gave up: that order was rolled back, and its job with it.")

        command = ["awa_worker", "--drain", "--drain-ahead", str(AHEAD_SECONDS)]
        self.say("\n2. A worker runs until nothing is left to do:")
        self.say(f"   manage.py {' '.join(command)}")
        self.work(command, source, total, patience)

        self.say("\n3. What the database says now:\n")
        result = read_back(day)
        for line in result.table():
            self.say(line)
        if said := result.errors():
            self.say("\n  The errors that are kept with the jobs:")
            for line in said:
                self.say(line)
        if faults := result.differences:
            raise CommandError("\n".join(["the demo did not come out as expected:", *faults]))
        self.say(f"\nEverything came out as expected, in {time.monotonic() - began:.0f} s. What now?")
        self.say("   make serve                       web server and worker; the admin is at")
        self.say("                                    http://127.0.0.1:8000/admin/ (demo / demo)")
        self.say("   example_project/shop/jobs.py     the jobs that you have just seen")
        self.say("   README.md                        how to use awa_django in a project of yours")

    def work(self, command: list[str], source: str, total: int, patience: float) -> None:
        """Run a real worker process, showing its progress, until it has nothing left to do."""
        limit = time.monotonic() + patience
        bar = ProgressBar(self.stdout._out, "jobs")
        with tempfile.NamedTemporaryFile(prefix="awa-demo-worker-", suffix=".log", delete=False) as log:
            worker = processes.start(*command, output=log)
            try:
                while worker.poll() is None and time.monotonic() < limit:
                    self.look(bar, source, total)
                hung = worker.poll() is None
                # Where `make serve` runs as well, its worker may still have some of the jobs in hand.
                limit = time.monotonic() + (OTHERS_SECONDS if worker.poll() == 0 else 0)
                while self.look(bar, source, total) < total and time.monotonic() < limit:
                    pass
            except KeyboardInterrupt:
                Path(log.name).unlink()
                raise
            finally:
                bar.finish()
                if worker.poll() is None:
                    worker.terminate()
                code = processes.wait(worker, patience=40)
        if hung or code:
            said = Path(log.name).read_text(errors="replace").splitlines()[-20:]
            what = f"was still at work after {patience:g} s" if hung else f"ended with exit code {code}"
            raise CommandError("\n".join([f"the worker {what}; the end of {log.name}:", *said]))
        Path(log.name).unlink()

    @staticmethod
    def look(bar: ProgressBar, source: str, total: int) -> int:
        """Show how many jobs have ended, return it, and pause."""
        asked = time.monotonic()
        ended = ended_jobs(source)
        bar.show(ended, total)
        # On a large database or a busy machine the question itself takes time; the worker needs some too.
        time.sleep(max(0.1, time.monotonic() - asked))
        return ended

    def say(self, text: str) -> None:
        """One line for the reader."""
        self.stdout.write(text)

    @staticmethod
    def server_version() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            version = cursor.fetchone()[0].split()[0]
        where = settings.DATABASES["default"]["HOST"] or "local socket"
        return f"{version} ({where})"
