"""The shop's jobs; awa_django imports this module when Django starts.

Each shows one way in which a job can go. The other services that they would talk to (a card network, a
supplier, a courier) are played by a line or two in the job itself.
"""

from __future__ import annotations

from datetime import timedelta

from django.core.mail import send_mail
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from awa_django import (
    Cancel,
    Job,
    JobContext,
    RetryAfter,
    Snooze,
    TerminalError,
    WaitForCallback,
    cron,
    job,
    on_save,
)
from example_project.shop.models import (
    Order,
    OrderLine,
    Parcel,
    Payment,
    Receipt,
    SalesFigure,
    ShopWindow,
)


class CardNetworkDown(ConnectionError):
    """The card network did not answer."""


class PrinterOutOfPaper(OSError):
    """The label printer needs somebody to walk over to it."""


@job(queue="mail")
def send_receipt(ctx: JobContext, order_id: int) -> None:
    """Send the receipt and note that it was sent.

    A job runs at least once. Should it run twice, the row's constraint refuses the second receipt.
    """
    order = Order.objects.prefetch_related("lines__product").get(pk=order_id)
    with transaction.atomic():
        Receipt.objects.create(order=order, job_id=ctx.job.id, total=order.total)
        goods = "\n".join(str(line) for line in order.lines.all())
        send_mail(f"Your order {order}", f"{goods}\n\nTotal: {order.total}", None, [order.email])


@on_save(Order, created=True)
def receipt_for_new_order(order: Order) -> object:
    """One receipt job for each new order, in the transaction that saves the order."""
    return send_receipt.using(tags=[order.source]).request(order_id=order.pk)


@job
def charge_card(ctx: JobContext, order_id: int) -> None:
    """Take the money. The card network is down the first time; an exception means: try again later."""
    if ctx.attempt == 1:
        raise CardNetworkDown("the card network did not answer within 5 s")
    Order.objects.filter(pk=order_id, paid_at=None).update(paid_at=timezone.now())


@job
def add_loyalty_points(ctx: JobContext, order_id: int) -> RetryAfter | None:
    """Credit points. The service answers 429 the first time and says when to come back."""
    if ctx.attempt == 1:
        return RetryAfter(0.5)
    order = Order.objects.prefetch_related("lines").get(pk=order_id)
    Order.objects.filter(pk=order_id).update(loyalty_points=int(order.total))
    return None


@job
def export_to_supplier(ctx: JobContext, order_id: int) -> None:
    """Order more tea. The supplier no longer sells it, and asking again would not change that."""
    raise TerminalError("the supplier does not sell TEA-01 any more")


@job(max_attempts=2)
def print_label(ctx: JobContext, order_id: int) -> None:
    """Print the parcel's label; gives up after two attempts."""
    raise PrinterOutOfPaper("the label printer is out of paper")


@job
def track_parcel(ctx: JobContext, order_id: int) -> Snooze | None:
    """Wait until the courier knows the parcel. Asking too early is no failure and costs no attempt."""
    parcel, _ = Parcel.objects.get_or_create(order_id=order_id)
    parcel.lookups += 1
    if parcel.lookups > 1:
        parcel.found_at = timezone.now()
    parcel.save()
    return None if parcel.found_at else Snooze(0.5)


@job
async def notify_warehouse(ctx: JobContext, order_id: int) -> None:
    """Tell the warehouse to pack; an async handler on the worker's event loop."""
    await Order.objects.filter(pk=order_id).aupdate(packed_at=timezone.now())


@job(queue="mail")
def ask_for_review(ctx: JobContext, order_id: int) -> None:
    """Ask how it was. Enqueued with a time to run at."""
    Order.objects.filter(pk=order_id).update(review_asked_at=timezone.now())


@job
def call_customer(ctx: JobContext, order_id: int) -> Cancel:
    """Clear up a question, unless there is nothing left to ask."""
    return Cancel("the customer has already written to us")


@job
def rebuild_sales_report(ctx: JobContext, source: str) -> None:
    """Count again what was sold. Enqueued as a unique job: asking twice makes one."""
    sold = OrderLine.objects.filter(order__source=source).values("product").annotate(sold=Sum("quantity"))
    with transaction.atomic():
        SalesFigure.objects.filter(source=source).delete()
        SalesFigure.objects.bulk_create(
            SalesFigure(source=source, product_id=row["product"], sold=row["sold"])
            for row in sold.order_by("product")
        )


@job(queue="mail")
def send_newsletter(ctx: JobContext, address: str) -> None:
    """One copy of the newsletter; enqueued by the hundred."""
    send_mail("News from the shop", "There is new tea.", None, [address])


@job
def take_payment(ctx: JobContext, order_id: int) -> WaitForCallback:
    """Ask the bank for the money and wait for its call, which may take days; no worker is held meanwhile.

    A bank would be sent the payment's ``answer_url`` and its signature here. ``views.py`` takes the answer.
    """
    token = ctx.register_callback(timeout=timedelta(days=7))
    order = Order.objects.prefetch_related("lines").get(pk=order_id)
    asked = {"callback_id": token.uuid, "amount": order.total, "answered_at": None, "paid": None}
    Payment.objects.update_or_create(order=order, defaults=asked)
    return WaitForCallback(token)


@take_payment.on_completed
def ship_what_is_paid(payment: Job) -> object:
    """What follows a payment, stored in the transaction that completes it."""
    return ship_order.using(tags=payment.tags).request(**payment.args)


@job
def ship_order(ctx: JobContext, order_id: int) -> None:
    """Send the order on its way."""
    Order.objects.filter(pk=order_id).update(shipped_at=timezone.now())


@job(queue="couriers")
def book_pickup(ctx: JobContext, order_id: int) -> None:
    """Have a courier come. Without an address that fails for good, and the queue keeps it as a dead letter."""
    order = Order.objects.get(pk=order_id)
    if not order.address:
        raise TerminalError(f"order {order} has no address")
    Order.objects.filter(pk=order_id).update(pickup_booked_at=timezone.now())


@job(max_attempts=3)
def dress_window(ctx: JobContext) -> None:
    """Put what sells best into the shop window."""
    sold = OrderLine.objects.values("product").annotate(sold=Sum("quantity")).order_by("-sold", "product")
    if best := sold.first():
        in_window = {"product_id": best["product"], "dressed_at": timezone.now()}
        ShopWindow.objects.update_or_create(pk=1, defaults=in_window)


# Six fields: the first is seconds. Whichever worker leads enqueues a job at each of these times.
cron("dress-window", "*/2 * * * * *", dress_window)
