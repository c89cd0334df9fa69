"""Placing an order, and having it picked up."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from awa_django import operations
from awa_django.operations import JobFilter
from example_project.shop.jobs import book_pickup
from example_project.shop.models import Order, OrderLine, Product

CATALOGUE = {
    "TEA-01": ("Breakfast tea, 100 bags", "6.50"),
    "MUG-02": ("Mug, blue", "12.00"),
    "POT-03": ("Teapot, cast iron", "64.90"),
}


def stock_shelves() -> dict[str, Product]:
    """Every product of the catalogue by its SKU; made where missing."""
    Product.objects.bulk_create(
        [Product(sku=sku, name=name, price=price) for sku, (name, price) in CATALOGUE.items()],
        ignore_conflicts=True,
    )
    return {product.sku: product for product in Product.objects.filter(sku__in=CATALOGUE)}


@transaction.atomic
def place_order(reference: str, email: str, basket: Mapping[Product, int], source: str = "web") -> Order:
    """Save an order and its lines.

    The receipt's job is enqueued when the order is saved, in the same transaction: either both are
    there in the end, or neither.
    """
    order = Order.objects.create(reference=reference, email=email, source=source)
    OrderLine.objects.bulk_create(
        OrderLine(order=order, product=product, quantity=quantity, unit_price=product.price)
        for product, quantity in basket.items()
    )
    return order


def order_pickup(order: Order) -> None:
    """Have a courier come for an order. The job carries the order's reference, to be found again by."""
    book_pickup.using(tags=[order.source, order.reference]).enqueue(order_id=order.pk)


@transaction.atomic
def note_address(order: Order, address: str) -> int:
    """Write down where an order goes, and redrive what died for want of it; how many dead letters that were."""
    Order.objects.filter(pk=order.pk).update(address=address)
    return operations.retry_dead(JobFilter(kind=book_pickup.kind, tag=order.reference)).count
