"""Columns of schema ``awa`` that Django has no field for, and the base of every model: it only reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from django.contrib.postgres.fields import ArrayField
from django.core.checks import CheckMessage
from django.core.exceptions import EmptyResultSet
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.lookups import In
from django.utils.translation import gettext_lazy as _

from awa_django.db import EARLIEST, LATEST
from awa_django.states import JobState

STATE_LABELS = {
    JobState.SCHEDULED: _("scheduled"),
    JobState.AVAILABLE: _("available"),
    JobState.RUNNING: _("running"),
    JobState.COMPLETED: _("completed"),
    JobState.RETRYABLE: _("retryable"),
    JobState.FAILED: _("failed"),
    JobState.CANCELLED: _("cancelled"),
    JobState.WAITING_EXTERNAL: _("waiting for callback"),
}


def table(name: str) -> str:
    """The ``db_table`` of a relation in schema ``awa``: the one place that knows how Django is told."""
    return f'"awa"."{name}"'


if TYPE_CHECKING:
    _ArrayField = ArrayField[Any, Any]
    CharField = models.CharField[Any, Any]
    DateTimeField = models.DateTimeField[Any, Any]
    Field = models.Field[Any, Any]
else:
    _ArrayField, Field = ArrayField, models.Field
    CharField, DateTimeField = models.CharField, models.DateTimeField


class JobStateField(CharField):
    """A column of the enum ``awa.job_state``; values are :class:`~awa_django.states.JobState`.

    A word that is no state matches nothing, instead of failing the statement: filters come from URLs.
    """

    description = _("Job state")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["choices"] = [(state.value, label) for state, label in STATE_LABELS.items()]
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        name, path, args, kwargs = super().deconstruct()
        kwargs.pop("choices", None)
        return name, path, list(args), dict(kwargs)

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "awa.job_state"

    def from_db_value(self, value: str | None, expression: object, connection: object) -> str | None:
        return JobState(value) if value in _STATE_WORDS else value

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        if isinstance(value, str):
            if value not in _STATE_WORDS:
                raise EmptyResultSet
            value = str(value)
        return super().get_db_prep_value(value, connection, prepared)


_STATE_WORDS = frozenset(state.value for state in JobState)


@JobStateField.register_lookup
class _KnownStates(In):
    """``state__in``: words that are no state are left out, and the others still match."""

    def get_prep_lookup(self) -> Any:
        if self.rhs_is_direct_value() and isinstance(self.rhs, Iterable):
            self.rhs = [item for item in self.rhs if not isinstance(item, str) or item in _STATE_WORDS]
        return super().get_prep_lookup()


class MaskField(CharField):
    """A column ``bit(8)``, as eight characters, the leftmost for ``scheduled``."""

    description = _("State mask")

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "bit(8)"


class MultirangeField(Field):
    """A column ``int8multirange``, as the driver's ``Multirange``."""

    description = _("Ranges of bigint")

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "int8multirange"


class InstantField(DateTimeField):
    """An instant that any client wrote; one that Python cannot hold is read as the nearest it can (DEC-18)."""

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        # The column is Django's own, only reading it differs.
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", list(args), dict(kwargs)

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        bounded = f"LEAST(GREATEST({sql}, '{EARLIEST.isoformat()}'), '{LATEST.isoformat()}')"
        # The two functions pass over NULL.
        return f"CASE WHEN {sql} IS NOT NULL THEN {bounded} END", (*params, *params)


class CursorTimeField(DateTimeField):
    """An instant that starts at ``-infinity``, which no Python value stands for; read as None."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return f"NULLIF({sql}, '-infinity')", params


class ArrayColumn(_ArrayField):
    """An array, read without more than PostgreSQL.

    Django's field wants ``django.contrib.postgres`` installed, which is for what that app adds to forms and
    to connections. None of it is needed here, so a project need not install it for us.
    """

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return [message for message in super().check(**kwargs) if message.id != "postgres.E005"]


def numbers(**options: Any) -> ArrayColumn:
    return ArrayColumn(models.BigIntegerField(), **options)


def small_numbers(**options: Any) -> ArrayColumn:
    return ArrayColumn(models.SmallIntegerField(), **options)


def texts(**options: Any) -> ArrayColumn:
    return ArrayColumn(models.TextField(), **options)


def _refuse(model: type[models.Model]) -> NoReturn:
    raise TypeError(
        f"{model.__name__} is read-only: its rows belong to the queue. "
        "Use the functions of awa_django, or `manage.py awa`, to change jobs"
    )


class ReadOnlyQuerySet(models.QuerySet[Any]):
    """A queryset that reads and locks, and writes nothing."""

    def _refused(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self.model)

    create = bulk_create = get_or_create = update_or_create = _refused
    update = bulk_update = delete = _update = _insert = _raw_delete = _refused


class ReadModel(models.Model):
    """The base of every model here."""

    objects: ClassVar[models.Manager[Any]] = ReadOnlyQuerySet.as_manager()

    class Meta:
        abstract = True
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(type(self))

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(type(self))


class Named(ReadModel):
    """Rows that people call by a job's kind and number."""

    class Meta(ReadModel.Meta):
        abstract = True

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}".strip()  # type: ignore[attr-defined]
