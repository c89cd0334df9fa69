"""Act five: the account of a day, read from the database."""

from __future__ import annotations

from collections import Counter

from awa_django import operations
from awa_django.operations import JobFilter
from example_project.shop.demo.account import CALLS, STORY, TICK, Account, Check, Line
from example_project.shop.demo.customers import SOME, Day
from example_project.shop.demo.outside import Afternoon
from example_project.shop.demo.queries import jobs_by_line, jobs_of_order
from example_project.shop.models import Order, Parcel, Receipt, SalesFigure, ShopWindow


def expected_jobs(day: Day) -> Counter[Line]:
    """What should come of a day's jobs."""
    counts = Counter(dict.fromkeys(STORY, 1))
    for line in STORY:
        if line.kind in ("charge_card", "add_loyalty_points", "track_parcel", "notify_warehouse"):
            counts[line] = SOME
    counts[Line("send_receipt", "completed", 1)] = len(day.orders)
    counts[Line("send_newsletter", "completed", 1)] = day.newsletters
    return counts


def read_back(day: Day, afternoon: Afternoon) -> Account:
    """Ask the database what became of a day."""
    orders = Order.objects.filter(source=day.source)
    some = orders.filter(pk__in=[order.pk for order in day.orders[:SOME]])
    asked = orders.get(pk=day.orders[0].pk).review_asked_at
    receipts = Receipt.objects.filter(order__in=orders).count()
    charged = some.exclude(paid_at=None).count()
    credited = some.filter(loyalty_points__gt=0).count()
    parcels = Parcel.objects.filter(order__in=some, found_at__isnull=False, lookups=2).count()
    packed = some.exclude(packed_at=None).count()
    figures = SalesFigure.objects.filter(source=day.source).count()
    left = Order.objects.filter(reference=day.abandoned).count()
    by_bank = orders.filter(pk__in=[order.pk for order in day.by_bank])
    paid = by_bank.filter(payment__paid=True, paid_at__isnull=False).count()
    declined = by_bank.filter(payment__paid=False, paid_at=None).count()
    shipped = orders.exclude(shipped_at=None).count()
    pickups = orders.exclude(pickup_booked_at=None).count()
    dead = len(operations.dead_letters(JobFilter(tag=day.source)))
    dressed = ShopWindow.objects.filter(dressed_at__gte=day.orders[0].placed_at).exists()
    checks = [
        Check("orders placed", len(day.orders), orders.count()),
        Check("receipts sent, one for each order", len(day.orders), receipts),
        Check("cards charged after the retry", SOME, charged),
        Check("orders with loyalty points", SOME, credited),
        Check("parcels that the courier was asked about twice", SOME, parcels),
        Check("orders packed by the async job", SOME, packed),
        Check("products in the sales report", 3, figures),
        Check("the second sales report was answered with the first", True, day.second_report_is_first),
        Check("the review was asked for in time, not before", True, bool(asked and asked >= day.review_due)),
        Check("payments that waited for the bank, no worker running", 2, afternoon.waiting),
        Check(
            "calls of the bank, and of others, rightly answered", len(CALLS), afternoon.answered_as_expected
        ),
        Check("orders paid by bank", 1, paid),
        Check("orders whose transfer was declined", 1, declined),
        Check("shipments enqueued with the answer of the bank", 1, afternoon.shipments),
        Check("orders shipped once they were paid", 1, shipped),
        Check("dead letters before the redrive", 1, afternoon.dead),
        Check("dead letters that were redriven", 1, afternoon.redriven),
        Check("dead letters now", 0, dead),
        Check("pickups booked after the redrive", 1, pickups),
        Check("the window was dressed by the schedule", True, dressed),
        Check("rolled-back order: its jobs before the rollback", 1, day.abandoned_jobs),
        Check("rolled-back order: its jobs now", 0, jobs_of_order(day.abandoned_id)),
        Check("rolled-back order: its rows now", 0, left),
    ]
    jobs = jobs_by_line(day.source, day.first_job)
    expected = expected_jobs(day)
    expected[TICK] = max(1, jobs.get(TICK, (0, None))[0])
    return Account(jobs, expected, checks)
