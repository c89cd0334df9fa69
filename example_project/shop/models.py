"""What the shop sells, to whom, and what its jobs have done about it."""

from __future__ import annotations

from decimal import Decimal

from django.db import models

from awa_django.signatures import build_callback_url


class Product(models.Model):
    """Something on the shelf."""

    sku = models.CharField(max_length=20, unique=True)
    name = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=8, decimal_places=2)

    class Meta:
        ordering = ["sku"]

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    """A customer's order. The timestamps that may be empty are set by jobs."""

    reference = models.CharField(max_length=40, unique=True)
    email = models.EmailField()
    address = models.CharField(max_length=200, blank=True)
    #: Where the order came from: "web", or one run of the demo. Its jobs carry this as a tag.
    source = models.CharField(max_length=40, default="web", db_index=True)
    placed_at = models.DateTimeField(auto_now_add=True)
    paid_at = models.DateTimeField(null=True, blank=True)
    packed_at = models.DateTimeField(null=True, blank=True)
    pickup_booked_at = models.DateTimeField(null=True, blank=True)
    shipped_at = models.DateTimeField(null=True, blank=True)
    review_asked_at = models.DateTimeField(null=True, blank=True)
    loyalty_points = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.reference

    @property
    def total(self) -> Decimal:
        """What the customer pays."""
        return sum((line.quantity * line.unit_price for line in self.lines.all()), Decimal(0))


class OrderLine(models.Model):
    """So many of one product, at the price of the day."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    quantity = models.PositiveSmallIntegerField(default=1)
    unit_price = models.DecimalField(max_digits=8, decimal_places=2)

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product}"


class Receipt(models.Model):
    """The receipt that was sent for an order. One to one: a second one would be an error."""

    order = models.OneToOneField(Order, on_delete=models.CASCADE)
    job_id = models.BigIntegerField()
    total = models.DecimalField(max_digits=10, decimal_places=2)
    sent_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"receipt for {self.order}"


class Parcel(models.Model):
    """An order on its way, and how often the courier was asked about it."""

    order = models.OneToOneField(Order, on_delete=models.CASCADE)
    lookups = models.PositiveSmallIntegerField(default=0)
    found_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"parcel of {self.order}"


class Payment(models.Model):
    """What the bank was asked for, and its answer: ``paid`` is empty until it has one."""

    order = models.OneToOneField(Order, on_delete=models.CASCADE)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    #: What the bank answers with; a new one when it has to be asked again.
    callback_id = models.UUIDField(unique=True)
    asked_at = models.DateTimeField(auto_now=True)
    answered_at = models.DateTimeField(null=True, blank=True)
    paid = models.BooleanField(null=True, blank=True)

    def __str__(self) -> str:
        return f"payment of {self.order}"

    def answer_url(self, shop: str, *, paid: bool) -> str:
        """The address that the bank calls; ``shop`` is that of the site."""
        return build_callback_url(shop, "/payments", str(self.callback_id), "complete" if paid else "fail")


class ShopWindow(models.Model):
    """What stands in the window; one row, changed by a schedule."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    dressed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.product} in the window"


class SalesFigure(models.Model):
    """How often one product was sold through one source; rebuilt from the order lines."""

    source = models.CharField(max_length=40)
    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    sold = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "product"], name="one_figure_per_product")]

    def __str__(self) -> str:
        return f"{self.sold} x {self.product}"
