"""Act one: customers order, and every order enqueues its jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import cycle

from django.db import transaction
from django.utils import timezone

from awa_django import Unique
from example_project.shop import jobs
from example_project.shop.checkout import order_pickup, place_order, stock_shelves
from example_project.shop.demo.queries import jobs_of_order
from example_project.shop.models import Order, Product

#: Orders whose card is charged, whose parcel is tracked, and so on.
SOME = 3
#: The fewest orders of a day: those, and two that are paid by bank.
FEWEST = SOME + 2
#: Long enough for a worker to start and wait for it.
REVIEW_DELAY = timedelta(seconds=4)


class FormAbandoned(Exception):
    """The customer closed the payment form; the whole checkout is undone."""


@dataclass(frozen=True)
class Day:
    """What happened in the shop."""

    source: str
    orders: list[Order]
    #: An id that is lower than that of every tick of the day.
    first_job: int
    newsletters: int
    #: When the review may be asked for.
    review_due: datetime
    #: Whether enqueuing the sales report again was answered with the job that was there.
    second_report_is_first: bool
    #: The reference of the order that was rolled back, the id that it had, and its jobs until then.
    abandoned: str
    abandoned_id: int
    abandoned_jobs: int

    @property
    def by_bank(self) -> list[Order]:
        """The two orders whose money the bank is asked for."""
        return self.orders[SOME:FEWEST]


def busy_day(source: str, orders: int, newsletters: int) -> Day:
    """Place the orders and enqueue what follows from them, all marked with ``source``."""
    shelves = stock_shelves()
    baskets = cycle(
        [
            {shelves["TEA-01"]: 2},
            {shelves["MUG-02"]: 1, shelves["TEA-01"]: 1},
            {shelves["POT-03"]: 1},
        ]
    )
    placed = [
        place_order(f"{source}-{number:04}", f"customer{number}@example.com", next(baskets), source)
        for number in range(1, orders + 1)
    ]
    some = placed[:SOME]
    tags = [source]
    with transaction.atomic():
        for order in some:
            jobs.charge_card.using(tags=tags).enqueue(order_id=order.pk)
            jobs.add_loyalty_points.using(tags=tags).enqueue(order_id=order.pk)
            jobs.track_parcel.using(tags=tags).enqueue(order_id=order.pk)
            jobs.notify_warehouse.using(tags=tags).enqueue(order_id=order.pk)
        for order in placed[SOME:FEWEST]:
            jobs.take_payment.using(tags=tags).enqueue(order_id=order.pk)
        first = some[0]
        order_pickup(first)
        jobs.export_to_supplier.using(tags=tags).enqueue(order_id=first.pk)
        jobs.print_label.using(tags=tags).enqueue(order_id=first.pk)
        jobs.call_customer.using(tags=tags).enqueue(order_id=first.pk)
        review_due = timezone.now() + REVIEW_DELAY
        jobs.ask_for_review.using(tags=tags, run_at=review_due).enqueue(order_id=first.pk)
    report = jobs.rebuild_sales_report.using(tags=tags, unique=Unique(by_args=True))
    first_report = report.enqueue(source=source)
    second_report = report.enqueue(source=source)
    jobs.send_newsletter.using(tags=tags).enqueue_many(
        [{"address": f"reader{number}@example.com"} for number in range(newsletters)]
    )
    reference, order_id, abandoned_jobs = abandoned_checkout(source, next(baskets))
    return Day(
        source=source,
        orders=placed,
        first_job=first_report.id,
        newsletters=newsletters,
        review_due=review_due,
        second_report_is_first=second_report.duplicate and second_report.id == first_report.id,
        abandoned=reference,
        abandoned_id=order_id,
        abandoned_jobs=abandoned_jobs,
    )


def abandoned_checkout(source: str, basket: Mapping[Product, int]) -> tuple[str, int, int]:
    """An order that is saved, has its receipt enqueued, and is then rolled back with it."""
    reference = f"{source}-abandoned"
    order_id = enqueued = 0
    with contextlib.suppress(FormAbandoned), transaction.atomic():
        order_id = place_order(reference, "nobody@example.com", basket, source).pk
        enqueued = jobs_of_order(order_id)
        raise FormAbandoned
    return reference, order_id, enqueued
