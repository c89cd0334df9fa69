"""``manage.py demo``: a day in the shop, and whether everything came out right."""

from __future__ import annotations

import secrets
import time
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from example_project.shop.demo.account import FOLLOW_UP, TICK
from example_project.shop.demo.crew import run_worker
from example_project.shop.demo.customers import FEWEST, busy_day
from example_project.shop.demo.outside import afternoon
from example_project.shop.demo.queries import ended_jobs, ticks
from example_project.shop.demo.readback import expected_jobs, read_back
from example_project.shop.demo.screen import ProgressBar

#: The worker also waits for what is due within this time: retries, snoozes and the scheduled job.
AHEAD_SECONDS = 60
#: What a shell expects of a program that Ctrl-C ended.
INTERRUPTED = 130


class Command(BaseCommand):
    """Exit code 0 when every row of the final table is as expected, else 1 and what differs."""

    help = "Place orders, run workers, let the bank call, and check in the database what became of it all."
    requires_migrations_checks = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--orders", type=int, default=200, help=f"orders to place, at least {FEWEST} (200)"
        )
        parser.add_argument("--newsletters", type=int, default=300, help="jobs to enqueue in bulk (300)")
        parser.add_argument("--patience", type=float, default=120, help="seconds each worker may take (120)")

    def handle(self, *args: Any, orders: int, newsletters: int, patience: float, **options: Any) -> None:
        if orders < FEWEST:
            raise CommandError(f"--orders: at least {FEWEST} are needed, not {orders}")
        source = f"demo-{secrets.token_hex(3)}"
        try:
            self.run_day(source, orders, newsletters, patience)
        except KeyboardInterrupt:
            raise CommandError("interrupted; another run starts afresh", returncode=INTERRUPTED) from None

    def run_day(self, source: str, orders: int, newsletters: int, patience: float) -> None:
        """The five acts."""
        began = time.monotonic()
        self.say(f"A day in the shop, {source}, on PostgreSQL {self.server_version()}")

        self.say("\n1. Customers order. Each order is one transaction with the jobs it causes.")
        day = busy_day(source, orders, newsletters)
        expected = expected_jobs(day)
        total = sum(expected.values())
        enqueued = total - expected[FOLLOW_UP] - expected[TICK]
        self.say(f"   {orders} orders and {enqueued} jobs in {time.monotonic() - began:.1f} s.")
        self.say("   One more customer gave up: that order was rolled back, and its job with it.")

        self.say("\n2. A worker runs until nothing is left to do but wait for the bank:")
        command = ["awa_worker", "--drain", "--drain-ahead", str(AHEAD_SECONDS)]
        self.say(f"   manage.py {' '.join(command)}")
        run_worker(command, lambda: ended_jobs(source, waiting=True), enqueued, self.bar(), patience)

        self.say("\n3. The worker is gone, and the world goes on.")
        happened = afternoon(day, self.say)

        self.say("\n4. A worker runs as in production, until it is asked to stop. It also leads:")
        self.say("   at each time of the schedule in shop/jobs.py it enqueues a job.")
        self.say("   manage.py awa_worker")

        def ended() -> int:
            return ended_jobs(source) + min(1, ticks(day.first_job))

        run_worker(["awa_worker"], ended, total, self.bar(), patience, stop=True)
        self.say(f"   Ticks of the schedule by now: {ticks(day.first_job)}")

        self.say("\n5. What the database says now:\n")
        result = read_back(day, happened)
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

    def bar(self) -> ProgressBar:
        """A bar for the jobs of one worker."""
        return ProgressBar(self.stdout._out, "jobs")

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
