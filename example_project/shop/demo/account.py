"""Act three: what the database says, against what should have come of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from django.db import connection

from example_project.shop.demo.customers import REVIEW_DELAY, SOME, Day
from example_project.shop.models import Order, Parcel, Receipt, SalesFigure

#: Jobs of one run, from the view that shows every job wherever it is stored.
JOBS = """
SELECT
    kind,
    state::text,
    attempt,
    count(*),
    min(split_part(errors[cardinality(errors)] ->> 'error', E'\\n', 1))
FROM awa.jobs
WHERE %(tag)s = ANY (tags)
GROUP BY kind, state, attempt
ORDER BY kind, state, attempt
"""
PROGRESS = """
SELECT count(*) FILTER (WHERE state IN ('completed', 'failed', 'cancelled')), count(*)
FROM awa.jobs
WHERE %(tag)s = ANY (tags)
"""
OF_ORDER = "SELECT count(*) FROM awa.jobs WHERE args ->> 'order_id' = %(order_id)s::text"


@dataclass(frozen=True)
class Line:
    """Jobs of one kind that ended in one state with one number of attempts."""

    kind: str
    state: str
    attempts: int


#: How the jobs of each line go, for the reader.
STORY = {
    Line("send_receipt", "completed", 1): "enqueued by a model signal",
    Line("charge_card", "completed", 2): "raised once, then worked",
    Line("add_loyalty_points", "completed", 2): "asked for a retry in 0.5 s",
    Line("track_parcel", "completed", 1): "snoozed; that costs no try",
    Line("notify_warehouse", "completed", 1): "an async handler",
    Line("ask_for_review", "completed", 1): "scheduled a second ahead",
    Line("rebuild_sales_report", "completed", 1): "unique: enqueued twice",
    Line("send_newsletter", "completed", 1): "enqueued in bulk",
    Line("call_customer", "cancelled", 1): "cancelled by its handler",
    Line("export_to_supplier", "failed", 1): "failed for good at once",
    Line("print_label", "failed", 2): "failed in its last try",
}


@dataclass(frozen=True)
class Check:
    """One thing that must hold after the run."""

    what: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.expected == self.found


@dataclass(frozen=True)
class Account:
    """What was found: jobs by line with the first line of their last error, and everything else."""

    jobs: dict[Line, tuple[int, str | None]]
    expected_jobs: Counter[Line]
    checks: list[Check]

    @property
    def differences(self) -> list[str]:
        """What is not as expected, a line for each; empty when all is well."""
        faults = []
        for line in sorted({*self.jobs, *self.expected_jobs}, key=str):
            found = self.jobs.get(line, (0, None))[0]
            if found != self.expected_jobs[line]:
                faults.append(
                    f"{line.kind}, {line.state} after {line.attempts}: "
                    f"{self.expected_jobs[line]} expected, {found} found"
                )
        faults.extend(
            f"{check.what}: {check.expected} expected, {check.found} found"
            for check in self.checks
            if not check.holds
        )
        return faults

    def table(self) -> list[str]:
        """The account as lines of at most 78 characters."""
        rule = "  " + "-" * 76
        lines = [f"  {'job':<21}{'state':<11}{'jobs':>5}{'tries':>7}   {'':<27}{'':>4}", rule]
        known = [line for line in STORY if line in self.jobs or self.expected_jobs[line]]
        for line in known + [line for line in self.jobs if line not in STORY]:
            count, _ = self.jobs.get(line, (0, None))
            mark = "ok" if count == self.expected_jobs[line] else "!!"
            story = STORY.get(line, "not expected")
            lines.append(
                f"  {line.kind:<21}{line.state:<11}{count:>5}{line.attempts:>7}   {story:<27}{mark:>2}"
            )
        lines.append(rule)
        lines.extend(
            f"  {check.what:<47}{check.found!s:>27}{'ok' if check.holds else '!!':>4}"
            for check in self.checks
        )
        return lines

    def errors(self) -> list[str]:
        """What the failed and the cancelled jobs say about it."""
        return [
            f"  {line.kind}: {error}"[:80]
            for line, (_, error) in self.jobs.items()
            if error and line.state in ("failed", "cancelled")
        ]


def progress(source: str) -> tuple[int, int]:
    """Jobs of one run that have ended, and all of them."""
    with connection.cursor() as cursor:
        cursor.execute(PROGRESS, {"tag": source})
        ended, total = cursor.fetchone()
    return ended, total


def expected_jobs(day: Day) -> Counter[Line]:
    """What should come of a day's jobs."""
    counts = Counter(dict.fromkeys(STORY, 1))
    for line in STORY:
        if line.kind in ("charge_card", "add_loyalty_points", "track_parcel", "notify_warehouse"):
            counts[line] = SOME
    counts[Line("send_receipt", "completed", 1)] = len(day.orders)
    counts[Line("send_newsletter", "completed", 1)] = day.newsletters
    return counts


def read_back(day: Day) -> Account:
    """Ask the database what became of a day."""
    with connection.cursor() as cursor:
        cursor.execute(JOBS, {"tag": day.source})
        jobs = {
            Line(kind, state, attempts): (count, error)
            for kind, state, attempts, count, error in cursor.fetchall()
        }
        cursor.execute(OF_ORDER, {"order_id": day.abandoned_id})
        (abandoned_jobs,) = cursor.fetchone()
    orders = Order.objects.filter(source=day.source)
    some = orders.filter(pk__in=[order.pk for order in day.orders[:SOME]])
    first = orders.get(pk=day.orders[0].pk)
    waited = first.review_asked_at is not None and first.review_asked_at - first.placed_at >= REVIEW_DELAY
    checks = [
        Check("orders placed", len(day.orders), orders.count()),
        Check(
            "receipts sent, one for each order",
            len(day.orders),
            Receipt.objects.filter(order__in=orders).count(),
        ),
        Check(
            "orders rolled back, with the job of their receipt",
            (0, 0),
            (
                Order.objects.filter(reference=day.abandoned).count(),
                abandoned_jobs,
            ),
        ),
        Check("cards charged after the retry", SOME, some.exclude(paid_at=None).count()),
        Check("orders with loyalty points", SOME, some.filter(loyalty_points__gt=0).count()),
        Check(
            "parcels that the courier was asked about twice",
            SOME,
            Parcel.objects.filter(order__in=some, lookups=2).count(),
        ),
        Check("orders packed by the async job", SOME, some.exclude(packed_at=None).count()),
        Check("the review was asked for in time, not before", True, waited),
        Check("the second sales report was a duplicate", True, day.report_is_duplicate),
        Check("products in the sales report", 3, SalesFigure.objects.filter(source=day.source).count()),
    ]
    return Account(jobs, expected_jobs(day), checks)
