"""Ordinary models for tests of jobs that follow rows."""

from __future__ import annotations

from django.db import models


class Stamped(models.Model):
    """An abstract parent."""

    note = models.CharField(max_length=100, default="")

    class Meta:
        abstract = True


class Order(Stamped):
    """A row that jobs are made for."""

    total = models.IntegerField(default=0)
    customer = models.CharField(max_length=100, default="")


class UrgentOrder(Order):
    """The same row under another name."""

    class Meta:
        proxy = True


class GiftOrder(Order):
    """A row of its own beside its order."""

    greeting = models.CharField(max_length=100, default="")


class Customer(Stamped):
    """Another table."""

    name = models.CharField(max_length=100, default="")
