"""What can go wrong, as classes.

::

    AwaError
     +-- InvalidJob (ValueError)          a job or option that cannot be stored; names the path; no SQL ran
     +-- UniqueConflict                   another job holds the unique key; carries the holder's id
     +-- UnknownKind (LookupError)        no handler is registered for a kind
     +-- JobNotFound (LookupError)        no job has that id
     +-- TooManyJobs (ValueError)         a filter that more jobs match than one call changes; nothing was changed
     +-- WrongState                       a job that cannot be changed so in the state it is in; names the state
     +-- CallbackNotFound (LookupError)   no attempt waits for that callback
     +-- BatchOperationNotFound (LookupError)   no batch operation has that id
     +-- CallbackRefused (ValueError)     a handler cannot register or wait for a callback now; says why
     +-- ScheduleNotFound (LookupError)   no schedule has that name
     +-- RuntimeNotFound (LookupError)    no worker process has that id
     +-- StorageTransitionRefused         a step to another storage engine that is not due; says what stands in the way
     +-- CelNotInstalled                  an expression needs the package of the extra ``cel``
     +-- TerminalError                    raised by a handler: fail now, never retry
     +-- SchemaOutOfDate                  schema ``awa`` is missing, too old or too new for this release
     +-- ConfigurationError (ImproperlyConfigured)   a setting or declaration that cannot work

Errors of the database that mean nothing special here stay ``django.db`` exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

__all__ = [
    "AwaError",
    "BatchOperationNotFound",
    "CallbackNotFound",
    "CallbackRefused",
    "CelNotInstalled",
    "ConfigurationError",
    "InvalidJob",
    "JobNotFound",
    "RuntimeNotFound",
    "ScheduleNotFound",
    "SchemaOutOfDate",
    "StorageTransitionRefused",
    "TerminalError",
    "TooManyJobs",
    "UniqueConflict",
    "UnknownKind",
    "WrongState",
    "said",
    "without_details",
]

E = TypeVar("E", bound=BaseException)


class AwaError(Exception):
    """The root of every error that awa_django raises by itself."""


class InvalidJob(AwaError, ValueError):
    """A job that cannot be stored, refused before any SQL.

    ``path`` names the offending value, for example ``args.items[3].when`` or
    ``jobs[7777].args.note``; the message starts with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[InvalidJob], tuple[str, str]]:
        return type(self), (self.path, self.reason)

    def below(self, parent: str) -> InvalidJob:
        """The same refusal seen from a container, such as one job of a batch."""
        return InvalidJob(f"{parent}.{self.path}", self.reason)


class UniqueConflict(AwaError):
    """Another job holds the unique key.

    ``unique_key`` is the 16-byte key; ``holder_id`` the job that held it when asked, or None
    when it let go meanwhile. The surrounding transaction stays usable.
    """

    def __init__(self, unique_key: bytes, holder_id: int | None, kind: str) -> None:
        holder = f"job {holder_id}" if holder_id is not None else "another job"
        super().__init__(
            f"a unique job of kind {kind!r} exists: {holder} holds key {unique_key.hex()}; "
            "use the default on_conflict to get the holder instead of this error"
        )
        self.unique_key = unique_key
        self.holder_id = holder_id
        self.kind = kind

    def __reduce__(self) -> tuple[type[UniqueConflict], tuple[bytes, int | None, str]]:
        return type(self), (self.unique_key, self.holder_id, self.kind)


class UnknownKind(AwaError, LookupError):
    """No handler is registered for a kind."""


class JobNotFound(AwaError, LookupError):
    """No job has that id on any plane."""


class WrongState(AwaError):
    """A job that exists, in a state or place in which that cannot be done to it; the message names it."""


class BatchOperationNotFound(AwaError, LookupError):
    """No batch operation has that id."""


class CallbackNotFound(AwaError, LookupError):
    """No attempt waits for that callback."""


class CallbackRefused(AwaError, ValueError):
    """A handler cannot register a callback, or cannot wait for one any longer; the message says why."""


class ScheduleNotFound(AwaError, LookupError):
    """No schedule has that name."""


class TooManyJobs(AwaError, ValueError):
    """A filter that more jobs match than one transaction should change; nothing has been changed or locked.

    A batch operation changes any number, bit by bit (:func:`awa_django.operations.submit_batch`).
    """


class RuntimeNotFound(AwaError, LookupError):
    """No worker process has that id, or its row was deleted since."""


class StorageTransitionRefused(AwaError):
    """A step from one storage engine to the other that may not be taken now; nothing has changed.

    ``step`` is its name, ``blockers`` what stands in the way, each with what to do about it.
    """

    def __init__(self, step: str, blockers: Sequence[str]) -> None:
        super().__init__(f"storage: cannot {step.replace('_', ' ')}: {'; '.join(blockers)}")
        self.step = step
        self.blockers = tuple(blockers)

    def __reduce__(self) -> tuple[type[StorageTransitionRefused], tuple[str, tuple[str, ...]]]:
        return type(self), (self.step, self.blockers)


class CelNotInstalled(AwaError):
    """An expression cannot be checked or evaluated without the extra ``cel``; nothing was decided.

    ``needs`` names what the expression uses of it.
    """

    def __init__(self, needs: str) -> None:
        super().__init__(
            f"a callback expression uses {needs}(...), which needs the package common-expression-language: "
            "pip install awa-django[cel]"
        )
        self.needs = needs

    def __reduce__(self) -> tuple[type[CelNotInstalled], tuple[str]]:
        return type(self), (self.needs,)


class TerminalError(AwaError):
    """Raise it in a handler to fail the job for good, whatever attempts are left."""


class SchemaOutOfDate(AwaError):
    """Schema ``awa`` is missing, or at a version this release does not run on."""


class ConfigurationError(AwaError, ImproperlyConfigured):
    """A setting or a declaration that cannot work."""


def said(error: BaseException) -> str:
    """What an error says; of one of the database the message alone, for its details quote rows, and jobs are rows."""
    return _message(error) or str(error).strip() or type(error).__name__


def without_details(error: E) -> E:
    """The error, and those that it came from, reduced to what :func:`said` answers. For logs with a traceback."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if message := _message(link):
            link.args = (message,)
        link = link.__cause__ or link.__context__
    return error


def _message(error: BaseException) -> str | None:
    """The server's message in an error of the driver, or in Django's for one."""
    of_driver = error.__cause__ if type(error).__module__ == "django.db.utils" else error
    found = getattr(getattr(of_driver, "diag", None), "message_primary", None)
    return found if isinstance(found, str) else None
