"""The shop in the admin: orders with what became of them."""

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from awa_django.signatures import SIGNATURE_HEADER, sign
from example_project.shop import checkout, jobs
from example_project.shop.models import Order, OrderLine, Parcel, Payment, Product, Receipt, ShopWindow


class OrderLineInline(admin.TabularInline):
    model = OrderLine
    extra = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Saving a new order here enqueues its receipt, as any other way of saving one does."""

    list_display = ["reference", "email", "source", "placed_at", "paid_at", "packed_at", "shipped_at"]
    list_filter = ["placed_at"]
    search_fields = ["reference", "email", "source"]
    readonly_fields = [
        "placed_at",
        "paid_at",
        "packed_at",
        "pickup_booked_at",
        "shipped_at",
        "review_asked_at",
        "loyalty_points",
    ]
    inlines = [OrderLineInline]
    actions = ["ask_the_bank", "book_a_courier"]

    def save_model(self, request: HttpRequest, obj: Order, form: Any, change: bool) -> None:
        """Save the order; an address that was filled in sends back to work what died for want of it."""
        super().save_model(request, obj, form, change)
        if change and "address" in form.changed_data:
            checkout.note_address(obj, obj.address)

    @admin.action(description="Ask the bank for the money")
    def ask_the_bank(self, request: HttpRequest, queryset: QuerySet[Order]) -> None:
        """Enqueue a payment for each order."""
        for order in queryset:
            jobs.take_payment.using(tags=[order.source]).enqueue(order_id=order.pk)

    @admin.action(description="Book a courier")
    def book_a_courier(self, request: HttpRequest, queryset: QuerySet[Order]) -> None:
        """Enqueue a pickup for each order."""
        for order in queryset:
            checkout.order_pickup(order)


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ["sku", "name", "price"]


@admin.register(Receipt)
class ReceiptAdmin(admin.ModelAdmin):
    list_display = ["order", "total", "sent_at", "job_id"]
    list_select_related = ["order"]
    raw_id_fields = ["order"]


@admin.register(Parcel)
class ParcelAdmin(admin.ModelAdmin):
    list_display = ["order", "lookups", "found_at"]
    list_select_related = ["order"]
    raw_id_fields = ["order"]


@admin.register(Payment)
class PaymentAdmin(admin.ModelAdmin):
    """Payments, with what the bank would do to answer one."""

    list_display = ["order", "amount", "asked_at", "answered_at", "paid"]
    list_select_related = ["order"]
    readonly_fields = ["order", "amount", "asked_at", "answered_at", "paid", "callback_id", "yes", "no"]

    @admin.display(description="play the bank: yes")
    def yes(self, payment: Payment) -> str:
        """The call by which the bank says that the money came."""
        return self._call(payment, paid=True)

    @admin.display(description="play the bank: no")
    def no(self, payment: Payment) -> str:
        """The call by which the bank declines."""
        return self._call(payment, paid=False)

    @staticmethod
    def _call(payment: Payment, *, paid: bool) -> str:
        signature = sign(str(payment.callback_id), settings.CALLBACK_SECRETS[0])
        url = payment.answer_url(settings.SHOP_URL, paid=paid)
        return f"curl --include --request POST --header '{SIGNATURE_HEADER}: {signature}' {url}"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Payments are made by jobs."""
        return False


@admin.register(ShopWindow)
class ShopWindowAdmin(admin.ModelAdmin):
    list_display = ["product", "dressed_at"]
