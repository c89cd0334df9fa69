"""Act three: the account of a day, read from the database."""

from __future__ import annotations

from collections import Counter

from example_project.shop.demo.account import STORY, Account, Check, Line
from example_project.shop.demo.customers import SOME, Day
from example_project.shop.demo.queries import jobs_by_line, jobs_of_order
from example_project.shop.models import Order, Parcel, Receipt, SalesFigure


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
        Check("rolled-back order: its jobs before the rollback", 1, day.abandoned_jobs),
        Check("rolled-back order: its jobs now", 0, jobs_of_order(day.abandoned_id)),
        Check("rolled-back order: its rows now", 0, left),
    ]
    return Account(jobs_by_line(day.source), expected_jobs(day), checks)
