"""The shop in the admin: orders with what became of them."""

from django.contrib import admin

from example_project.shop.models import Order, OrderLine, Parcel, Product, Receipt


class OrderLineInline(admin.TabularInline):
    model = OrderLine
    extra = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Saving a new order here enqueues its receipt, as any other way of saving one does."""

    list_display = ["reference", "email", "source", "placed_at", "paid_at", "packed_at"]
    list_filter = ["placed_at"]
    search_fields = ["reference", "email", "source"]
    readonly_fields = ["placed_at", "paid_at", "packed_at", "review_asked_at", "loyalty_points"]
    inlines = [OrderLineInline]


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
