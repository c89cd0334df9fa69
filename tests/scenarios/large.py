"""Scenario B12 at full size: ``python -m tests.scenarios.large``, or ``make large``.

Fills a database with a million finished jobs and more, goes through every page of the admin, has everything that
matches retried and cancelled, forgets the history, and prints what each took. Exits with 1 where a bar is missed. The
database is on the server at ``DATABASE_URL``, or else on an embedded one; it is dropped at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

import psycopg  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.test.utils import setup_test_environment  # noqa: E402

from awa_django import operations  # noqa: E402
from example_project import embedded  # noqa: E402
from tests import databases, invariants  # noqa: E402
from tests.otherdefault import default_database  # noqa: E402
from tests.scenarios import desk  # noqa: E402
from tests.scenarios.desk import MOST_QUERIES, MOST_SECONDS, STATEMENT_TIMEOUT  # noqa: E402
from tests.scenarios.seeding import FULL, TENTH, Seeded, Size, millions, seed  # noqa: E402
from tests.scenarios.walking import Statement, Visit, forbidden, most_rows, template  # noqa: E402
from tests.settings import SERVER_URL  # noqa: E402

#: Seconds that storing a job may take, of nineteen in twenty, while history is forgotten.
MOST_ENQUEUE = 0.05
#: Seconds for a batch operation over everything that waits, and for forgetting it all.
PATIENCE = 1800


class Report:
    """What was found, printed as it comes."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def line(self, text: str, *, ok: bool = True) -> None:
        """One finding; a bar that was missed is told again at the end."""
        print(f"  {'  ' if ok else '!!'} {text}", flush=True)
        if not ok:
            self.missed.append(text)

    def head(self, text: str) -> None:
        """A heading."""
        print(f"\n{text}", flush=True)


def main() -> int:
    """Do it all; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.large", description=__doc__)
    parser.add_argument("--tenth", action="store_true", help="a tenth of the jobs, as in the test suite")
    parser.add_argument(
        "--millions",
        type=int,
        metavar="N",
        help="so many million finished jobs, and what else an installation of that size has, most of it on one "
        "queue of fifty (ten take some fifteen minutes to make, and 12 GB)",
    )
    parser.add_argument(
        "--check", action="store_true", help="check the invariants of what was made, which takes minutes"
    )
    options = parser.parse_args()
    size = TENTH if options.tenth else FULL
    if options.millions:
        size = millions(options.millions)
    setup_test_environment()
    report = Report()
    with served() as server_url, databases.scratch(server_url, "large") as url:
        report.head(
            f"{size.finished:,} finished, {size.waiting:,} waiting and {size.failed:,} failed jobs, "
            f"{size.dead:,} dead letters"
        )
        began = time.monotonic()
        databases.migrate(url)
        seeded = seed(url, size)
        report.line(f"made in {time.monotonic() - began:.0f} s")
        if options.check:
            with psycopg.connect(url, autocommit=True) as session:
                broken = invariants.violated(session)
            report.line(f"invariants: {broken or 'hold'}", ok=not broken)
        timeout = round(STATEMENT_TIMEOUT.total_seconds() * 1000)
        with (
            default_database(url, options=f"-c statement_timeout={timeout}"),
            override_settings(AWA={"ADMIN_STATEMENT_TIMEOUT": STATEMENT_TIMEOUT}),
        ):
            look_at_pages(report, seeded, size)
            change_all_that_match(report, url, size)
            forget(report, size)
    report.head("missed:" if report.missed else "Every bar was met.")
    for text in report.missed:
        print(f"  !! {text}")
    return 1 if report.missed else 0


@contextmanager
def served() -> Iterator[str]:
    """The address of the server, which is started if it is the embedded one."""
    own = embedded.server_for(durable=False).dsn("postgres") == SERVER_URL
    if own:
        embedded.ensure_started(durable=False, database="postgres")
    try:
        yield SERVER_URL
    finally:
        if own:
            embedded.release(durable=False)


def look_at_pages(report: Report, seeded: Seeded, size: Size) -> None:
    """Every page, the slowest of each sort shown."""
    report.head(f"Pages: at most {MOST_SECONDS * 1000:.0f} ms and {MOST_QUERIES} statements")
    worst: dict[str, Visit] = {}
    statements: dict[str, tuple[Statement, str]] = {}
    counted: list[str] = []
    number = 0
    for visit in desk.pages(desk.operator(), seeded):
        number += 1
        sort = template(visit.url, thorough=False)
        if sort not in worst or is_worse(visit, worst[sort]):
            worst[sort] = visit
        statements.update((item.text, (item, visit.url)) for item in visit.statements if "awa" in item.text)
        counted += [f"{visit.url} counts: {text[:80]}" for text in forbidden(visit.statements)]
    for sort, visit in sorted(worst.items(), key=lambda item: -item[1].seconds):
        ok = visit.status in (200, 302) and not is_over(visit)
        text = f"{visit.seconds * 1000:6.0f} ms {visit.queries:3} statements  {visit.status}  {sort}"
        if not ok:
            text += f"  ({visit.url}; slowest {visit.slowest.text.splitlines()[0] if visit.slowest else ''})"
        report.line(text, ok=ok)
    report.line(f"{number} pages of {len(worst)} sorts")
    for text in dict.fromkeys(counted):
        report.line(text, ok=False)
    limit = size.waiting + size.finished // 2
    connection.ensure_connection()
    for statement, url in statements.values():
        rows = most_rows(connection.connection, statement)
        if rows > limit:
            report.line(f"{url} goes through {rows:,} rows: {statement.text.splitlines()[0]}", ok=False)
    report.line(f"{len(statements)} different statements, none of which goes through half of the history")


def is_over(visit: Visit) -> bool:
    return visit.seconds > MOST_SECONDS or visit.queries > MOST_QUERIES


def is_worse(visit: Visit, other: Visit) -> bool:
    """Whether a visit is the one to show."""
    return (is_over(visit), visit.seconds) > (is_over(other), other.seconds)


def change_all_that_match(report: Report, url: str, size: Size) -> None:
    """Retry all that failed, and cancel all that wait, by a filter each."""
    report.head("Changes of all that match")
    client = desk.operator()
    for verb, state, wanted in (("retry", "failed", size.failed), ("cancel", "available", None)):
        entries = desk.log_entries(url)
        expected = operations.state_counts().available if wanted is None else wanted
        submitted = desk.submit(client, "job", verb, state=state)
        report.line(
            f"{verb}: submitted in {submitted.seconds * 1000:.0f} ms", ok=submitted.seconds < MOST_SECONDS
        )
        began = time.monotonic()
        with desk.leading():
            ended, seen = desk.watch(submitted.operation, seconds=PATIENCE)
        took = time.monotonic() - began
        report.line(
            f"{verb}: {ended.processed:,} of {ended.total_matched:,} changed in {took:.0f} s "
            f"({ended.processed / took:,.0f}/s), seen at {len(set(seen))} stages",
            # Attempts whose workers are gone are rescued meanwhile, and wait again.
            ok=ended.state == "completed"
            and ended.processed == ended.total_matched
            and expected <= ended.processed <= expected + size.running
            and len(set(seen)) > 2,
        )
        written = desk.log_entries(url) - entries
        report.line(f"{verb}: {written} audit entry", ok=written == 1)


def forget(report: Report, size: Size) -> None:
    """Forget the history at once while jobs are stored."""
    report.head("Forgetting the history")
    began = time.monotonic()
    pruning = desk.prune(size.finished * 8 // 10, seconds=PATIENCE)
    report.line(f"{pruning.forgotten:,} finished jobs forgotten in {time.monotonic() - began:.0f} s")
    slowest = pruning.slowest
    report.line(
        f"longest statement {slowest.seconds * 1000:.0f} ms: {slowest.text.splitlines()[0]}",
        ok=slowest.seconds < STATEMENT_TIMEOUT.total_seconds(),
    )
    report.line(
        f"{len(pruning.enqueues)} jobs stored meanwhile, 95 % of them within {pruning.p95 * 1000:.1f} ms",
        ok=pruning.p95 < MOST_ENQUEUE,
    )


if __name__ == "__main__":
    sys.exit(main())
