from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import serializers
from django.db import models, transaction
from django.db.models.signals import post_delete, post_save
from django.test.utils import isolate_apps

from awa_django import model_signals
from awa_django.errors import ConfigurationError, InvalidJob
from awa_django.model_signals import on_delete, on_save
from tests import stored
from tests.testapp.jobs import note
from tests.testapp.models import Customer, GiftOrder, Order, Stamped, UrgentOrder

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _forgotten_hooks() -> Iterator[None]:
    """Hooks end with the test that made them."""
    signals = (post_save, post_delete)
    before = [list(signal.receivers) for signal in signals]
    listeners = dict(model_signals._listeners)
    yield
    for signal, receivers in zip(signals, before, strict=True):
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()
    model_signals._listeners.clear()
    model_signals._listeners.update(listeners)


def heard() -> list[int]:
    """The order ids that jobs were made for."""
    return [row["args"]["order_id"] for row in stored.ready()]


def test_each_saved_row_makes_one_job() -> None:
    @on_save(Order)
    def saved(order: Order) -> Any:
        return note.request(order_id=order.pk)

    order = Order.objects.create()
    order.save()
    Customer.objects.create()
    assert heard() == [order.pk, order.pk]


@pytest.mark.parametrize(("created", "jobs"), [(True, 1), (False, 2), (None, 3)])
def test_new_and_changed_rows_are_told_apart(created: bool | None, jobs: int) -> None:
    @on_save(Order, created=created)
    def saved(order: Order) -> Any:
        return note.request(order_id=order.pk)

    order = Order.objects.create()
    order.save()
    order.save(update_fields=["total"])
    assert len(heard()) == jobs


def test_a_hook_stays_after_its_function_is_forgotten() -> None:
    def declare() -> None:
        @on_save(Order)
        def saved(order: Order) -> Any:
            return note.request(order_id=order.pk)

    declare()
    gc.collect()
    order = Order.objects.create()
    assert heard() == [order.pk]


def test_the_decorated_function_stays_a_function() -> None:
    @on_save(Order)
    def saved(order: Order) -> Any:
        return note.request(order_id=order.pk)

    assert saved(Order(pk=3)).args == {"order_id": 3}


def test_the_same_hook_declared_again_is_heard_once() -> None:
    def declare() -> None:
        @on_save(Order)
        def saved(order: Order) -> Any:
            return note.request(order_id=order.pk)

    declare()
    declare()
    Order.objects.create()
    assert len(heard()) == 1


def test_a_rolled_back_row_takes_its_job_with_it() -> None:
    @on_save(Order)
    def saved(order: Order) -> Any:
        return note.request(order_id=order.pk)

    with stored.rolled_back():
        Order.objects.create()
        assert len(heard()) == 1
    assert heard() == []
    assert Order.objects.count() == 0


def test_an_error_of_the_hook_reaches_whoever_saves_and_undoes_the_row() -> None:
    @on_save(Order)
    def saved(order: Order) -> Any:
        return note.request(order_id={1})

    with pytest.raises(InvalidJob), transaction.atomic():
        Order.objects.create()
    assert Order.objects.count() == 0


def test_named_fields_are_heard_when_they_are_saved_or_nothing_is_named() -> None:
    @on_save(Order, created=False, fields=["total", "customer"])
    def saved(order: Order) -> Any:
        return note.request(order_id=order.pk, note=order.note)

    order = Order.objects.create()
    for text, fields in (("a", ["note"]), ("b", ["note", "total"]), ("c", None), ("d", [])):
        order.note = text
        order.save(update_fields=fields)
    assert [row["args"]["note"] for row in stored.ready()] == ["b", "c"]


def test_a_condition_is_asked_with_the_instance() -> None:
    @on_save(Order, condition=lambda order: order.total > 100)
    def saved(order: Order) -> Any:
        return note.request(order_id=order.pk)

    Order.objects.create(total=100)
    big = Order.objects.create(total=101)
    assert heard() == [big.pk]


def test_a_hook_may_make_several_jobs_or_none() -> None:
    @on_save(Order)
    def saved(order: Order) -> Any:
        match order.total:
            case 0:
                return None
            case 1:
                return []
            case _:
                return [note.request(order_id=n) for n in range(order.total)]

    for total in range(4):
        Order.objects.create(total=total)
    assert heard() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("made", ["a job", 3, [3], note])
def test_what_is_no_job_is_refused(made: Any) -> None:
    @on_save(Order)
    def saved(order: Order) -> Any:
        return made

    with pytest.raises(ConfigurationError, match=r"made by \.request"), transaction.atomic():
        Order.objects.create()


def test_fixtures_and_bulk_operations_are_not_heard() -> None:
    @on_save(Order)
    @on_delete(Order)
    def changed(order: Order) -> Any:
        return note.request(order_id=order.pk or 0)

    text = serializers.serialize("json", [Order(pk=77)])
    for loaded in serializers.deserialize("json", text):
        loaded.save()
    Order.objects.bulk_create([Order(), Order()])
    Order.objects.update(total=5)
    assert Order.objects.count() == 3
    assert heard() == []


def test_proxies_and_children_are_heard_through_the_model() -> None:
    @on_save(Order)
    def saved(order: Order) -> Any:
        return note.request(order_id=order.pk, note=type(order).__name__)

    UrgentOrder.objects.create()
    GiftOrder.objects.create()
    Order.objects.create()
    assert [row["args"]["note"] for row in stored.ready()] == ["UrgentOrder", "GiftOrder", "Order"]


def test_the_model_is_not_heard_through_its_child() -> None:
    @on_save(GiftOrder)
    def saved(order: GiftOrder) -> Any:
        return note.request(order_id=order.pk)

    Order.objects.create()
    UrgentOrder.objects.create()
    assert heard() == []


def test_a_hook_on_an_abstract_model_hears_every_model_below_it() -> None:
    @on_save(Stamped)
    def saved(row: Any) -> Any:
        return note.request(order_id=row.pk, note=type(row).__name__)

    for model in (Order, UrgentOrder, GiftOrder, Customer):
        model.objects.create()
    assert [row["args"]["note"] for row in stored.ready()] == [
        "Order",
        "UrgentOrder",
        "GiftOrder",
        "Customer",
    ]


def test_a_model_loaded_later_is_heard_too() -> None:
    @on_save(Order)
    def saved(order: Order) -> Any:
        return note.request(order_id=order.pk, note=type(order).__name__)

    with isolate_apps("tests.testapp"):

        class LateOrder(Order):
            class Meta:
                app_label = "testapp"
                proxy = True

    post_save.send(
        LateOrder, instance=LateOrder(pk=5), created=True, raw=False, update_fields=None, using="default"
    )
    assert [row["args"]["note"] for row in stored.ready()] == ["LateOrder"]


def test_a_model_may_be_named_before_it_is_loaded() -> None:
    @on_save("testapp.Order")
    def known(order: Order) -> Any:
        return note.request(order_id=order.pk)

    @on_save("testapp.NotYetThere")
    def unknown(row: models.Model) -> Any:
        return note.request(order_id=row.pk)

    order = Order.objects.create()
    assert heard() == [order.pk]


@pytest.mark.parametrize("kind", [Order, UrgentOrder, GiftOrder])
def test_one_deletion_is_heard_once(kind: type[Order]) -> None:
    @on_delete(Order)
    def deleted(order: Order) -> Any:
        return note.request(order_id=order.pk)

    @on_delete(Stamped)
    def any_row_deleted(row: Any) -> Any:
        return note.using(queue="any").request(order_id=row.pk)

    order = kind.objects.create()
    pk = order.pk
    order.delete()
    assert sorted((row["queue"], row["args"]["order_id"]) for row in stored.ready()) == [
        ("any", pk),
        ("default", pk),
    ]


def test_deleting_a_queryset_is_heard_for_each_row() -> None:
    @on_delete(Order, condition=lambda order: order.total > 0)
    def deleted(order: Order) -> Any:
        return note.request(order_id=order.total)

    for total in range(3):
        Order.objects.create(total=total)
    Order.objects.all().delete()
    assert sorted(heard()) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((object,), {}, "a model or 'app.Model'"),
        (("Order",), {}, "write 'app.Model'"),
        ((Order,), {"created": "yes"}, "created='yes'"),
        ((Order,), {"fields": "total"}, "not one text"),
        ((Order,), {"condition": True}, "condition=True"),
    ],
)
def test_a_hook_that_cannot_work_is_refused(arguments: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        on_save(*arguments, **options)


def test_a_field_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"testapp\.Order has no field 'totl'"):

        @on_save(Order, fields=["totl"])
        def saved(order: Order) -> Any:
            return None
