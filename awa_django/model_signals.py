"""Jobs that follow a saved or deleted row.

::

    @on_save(Order, created=True)
    def new_order(order):
        return send_receipt.request(order_id=order.pk)

The function gets the instance and returns a job, a list of jobs or None. They are stored on the queue's
connection while Django sends the signal: inside ``transaction.atomic()`` on the same database, rows and jobs
commit or roll back together. What Django's signals do not see is not seen here either:

* ``bulk_create``, ``bulk_update``, ``QuerySet.update`` and raw SQL send no signals;
  ``QuerySet.delete`` sends one for each row. Enqueue for those yourself, with ``enqueue_many``.
* Without an open transaction Django commits the row before it sends ``post_save``: an enqueue that fails then
  leaves a row without its job. Save inside ``atomic()``, or set ``ATOMIC_REQUESTS``.
* In another database than the queue's, a row and its job are not one transaction: the job is stored after the
  row's transaction has committed.
* Fixtures (``raw=True``) are skipped: what they load is a copy of what has happened.

A hook on a model also hears its proxies and its children in multi-table inheritance, since each of them
saves a row of the model; a hook on an abstract model hears every model that inherits from it. Either way
one save or one deletion is heard once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from django.apps import apps
from django.db.models import Model
from django.db.models.signals import ModelSignal, class_prepared, post_delete, post_save

from awa_django.enqueue import enqueue, enqueue_many
from awa_django.errors import ConfigurationError
from awa_django.jobs import JobInsert

__all__ = ["on_delete", "on_save"]

Made = JobInsert | Iterable[JobInsert] | None


class _Hook(Protocol):
    def __call__(self, instance: Any, /) -> Made: ...


F = TypeVar("F", bound=_Hook)


def on_save(
    model: type[Model] | str,
    *,
    created: bool | None = None,
    fields: Collection[str] | None = None,
    condition: Callable[[Any], bool] | None = None,
) -> Callable[[F], F]:
    """Enqueue what the decorated function returns for each saved instance of ``model``.

    ``created`` True hears new rows only, False changed ones only. ``fields`` drops a save that names its
    ``update_fields`` and none of these; a save that names none may have changed anything and is always heard.
    ``condition`` is asked last, with the instance. ``model`` may be ``"app.Model"``, resolved when it is loaded.

    Errors of the function or of the enqueue reach the caller of ``save()``.
    """
    _check(model, created, fields, condition)
    wanted = None if fields is None else frozenset(fields)

    def decorate(function: F) -> F:
        def saved(
            sender: type[Model],
            instance: Model,
            created: bool,
            raw: bool,
            update_fields: Collection[str] | None,
            **kwargs: Any,
        ) -> None:
            if raw or (only is not None and created is not only):
                return
            if wanted is not None and update_fields is not None and wanted.isdisjoint(update_fields):
                return
            if condition is None or condition(instance):
                _store(function(instance))

        only = created
        _listen(post_save, model, saved, function, wanted)
        return function

    return decorate


def on_delete(
    model: type[Model] | str, *, condition: Callable[[Any], bool] | None = None
) -> Callable[[F], F]:
    """Enqueue what the decorated function returns for each deleted instance of ``model``.

    The instance still has its primary key; its row is gone. Cascades are heard too. Django deletes inside a
    transaction, so the jobs belong to it if the queue is in the same database.
    """
    _check(model, None, None, condition)

    def decorate(function: F) -> F:
        def deleted(sender: type[Model], instance: Model, **kwargs: Any) -> None:
            if condition is None or condition(instance):
                _store(function(instance))

        _listen(post_delete, model, deleted, function, None)
        return function

    return decorate


def _check(model: object, created: object, fields: object, condition: object) -> None:
    if not isinstance(model, str) and not (isinstance(model, type) and issubclass(model, Model)):
        raise ConfigurationError(f"a model or 'app.Model' is needed, not {model!r}")
    if isinstance(model, str) and model.count(".") != 1:
        raise ConfigurationError(f"{model!r} names no model; write 'app.Model'")
    if created not in (None, True, False):
        raise ConfigurationError(f"created={created!r} is True, False or None")
    if isinstance(fields, str):
        raise ConfigurationError(f"fields={fields!r} is a list of field names, not one text")
    if condition is not None and not callable(condition):
        raise ConfigurationError(f"condition={condition!r} is a function of the instance")


def _store(made: Made) -> None:
    if made is None:
        return
    if isinstance(made, JobInsert):
        enqueue(made)
        return
    jobs = list(made) if isinstance(made, Iterable) else [made]
    for job in jobs:
        if not isinstance(job, JobInsert):
            raise ConfigurationError(
                f"a hook returns jobs made by .request(...), not {job!r}; enqueue nothing in the hook itself"
            )
    if jobs:
        enqueue_many(jobs)


@dataclass(frozen=True, eq=False, slots=True)
class _Listener:
    """A receiver and the model whose relatives it hears. Kept for ever: signals hold receivers weakly."""

    signal: ModelSignal
    model: type[Model]
    receiver: Callable[..., None]
    uid: str

    def hear(self, model: type[Model]) -> None:
        # Models as migrations see them have no job to do.
        if model._meta.abstract or model.__module__ == "__fake__":
            return
        if self.signal is post_delete and self._hears_parent_of(model):
            return
        self.signal.connect(self.receiver, sender=model, weak=False, dispatch_uid=self.uid)

    def _hears_parent_of(self, model: type[Model]) -> bool:
        """Whether its parent row is heard: Django signals each row it deletes, but only one for a save."""
        concrete = model._meta.concrete_model
        return concrete is not None and any(
            issubclass(parent, self.model) for parent in concrete._meta.parents
        )


_listeners: dict[str, _Listener] = {}


def _listen(
    signal: ModelSignal,
    model: type[Model] | str,
    receiver: Callable[..., None],
    function: Any,
    fields: Collection[str] | None,
) -> None:
    # The same function on the same model again, as after a reload, takes its own place.
    name = f"{function.__module__}.{function.__qualname__}"
    moment = "save" if signal is post_save else "delete"

    def attach(resolved: type[Model]) -> None:
        _check_fields(resolved, fields, name)
        uid = f"awa_django:{moment}:{resolved._meta.label_lower}:{name}"
        listener = _Listener(signal, resolved, receiver, uid)
        for relative in _with_children(resolved):
            signal.disconnect(sender=relative, dispatch_uid=uid)
            listener.hear(relative)
        _listeners[uid] = listener

    if isinstance(model, str):
        app_label, _, model_name = model.partition(".")
        apps.lazy_model_operation(attach, (app_label, model_name.lower()))
    else:
        attach(model)


def _check_fields(model: type[Model], fields: Collection[str] | None, name: str) -> None:
    if fields is None or model._meta.abstract:
        return
    known = {field.name for field in model._meta.concrete_fields}
    known |= {field.attname for field in model._meta.concrete_fields}
    for field in sorted(fields):
        if field not in known:
            raise ConfigurationError(f"{name}: {model._meta.label} has no field {field!r} to listen to")


def _with_children(model: type[Model]) -> list[type[Model]]:
    found = [model]
    for child in model.__subclasses__():
        found.extend(_with_children(child))
    return found


def _hear_child(sender: type[Model], **kwargs: Any) -> None:
    """A model that is loaded after a hook on one of its parents."""
    for listener in list(_listeners.values()):
        if issubclass(sender, listener.model) and sender is not listener.model:
            listener.hear(sender)


class_prepared.connect(_hear_child, dispatch_uid="awa_django.model_signals", weak=False)
