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

from example_project.shop.demo import account, processes
from example_project.shop.demo.customers import SOME, Day, busy_day
from example_project.shop.demo.screen import ProgressBar


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
        self.say(f"A day in the shop, {source}, on PostgreSQL {self.server_version()}")

        self.say("\n1. Customers order. Each order is one transaction with the jobs it causes.")
        began = time.monotonic()
        day = busy_day(source, orders, newsletters)
        _, total = account.progress(source)
        self.say(f"   {orders} orders and {total} jobs in {time.monotonic() - began:.1f} s.")
        self.say("   One more customer gave up: that order was rolled back, and its job with it.")

        self.say("\n2. A worker runs until nothing is left: manage.py awa_worker --drain")
        self.work(day, patience)

        self.say("\n3. What the database says now:\n")
        result = account.read_back(day)
        for line in result.table():
            self.say(line)
        self.say("\n   The errors that are kept with the jobs:")
        for line in result.errors():
            self.say(f" {line}"[:80])
        if faults := result.differences:
            raise CommandError("\n".join(["the demo did not come out as expected:", *faults]))
        self.say("\nEverything came out as expected. What now?")
        self.say("   make serve                       web server and worker; the admin is at")
        self.say("                                    http://127.0.0.1:8000/admin/ (demo / demo)")
        self.say("   example_project/shop/jobs.py     the jobs that you have just seen")
        self.say("   README.md                        how to use awa_django in a project of yours")

    def work(self, day: Day, patience: float) -> None:
        """Run a real worker process, showing its progress, until it has nothing left to do."""
        limit = time.monotonic() + patience
        bar = ProgressBar(self.stdout._out, "jobs")
        with tempfile.NamedTemporaryFile(prefix="awa-demo-worker-", suffix=".log", delete=False) as log:
            worker = processes.start("awa_worker", "--drain", output=log)
            try:
                while worker.poll() is None and time.monotonic() < limit:
                    bar.show(*account.progress(day.source))
                    time.sleep(0.1)
                bar.show(*account.progress(day.source))
            finally:
                bar.finish()
                if hung := worker.poll() is None:
                    worker.terminate()
                code = processes.wait(worker, patience=40)
        if hung or code:
            said = Path(log.name).read_text(errors="replace").splitlines()[-20:]
            what = f"was still at work after {patience:g} s" if hung else f"ended with exit code {code}"
            raise CommandError("\n".join([f"the worker {what}; the end of {log.name}:", *said]))
        Path(log.name).unlink()

    def say(self, text: str) -> None:
        """One line for the reader."""
        self.stdout.write(text)

    @staticmethod
    def server_version() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            version = cursor.fetchone()[0].split()[0]
        return f"{version} ({settings.DATABASES['default']['HOST'] or 'local socket'})"
