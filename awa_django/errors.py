"""What can go wrong, as classes.

::

    AwaError
     +-- InvalidJob (ValueError)          a job or option that cannot be stored; names the path; no SQL ran
     +-- UniqueConflict                   another job holds the unique key; carries the holder's id
     +-- UnknownKind (LookupError)        no handler is registered for a kind
     +-- JobNotFound (LookupError)        no job has that id
     +-- CallbackNotFound (LookupError)   no attempt waits for that callback
     +-- TerminalError                    raised by a handler: fail now, never retry
     +-- SchemaOutOfDate                  schema ``awa`` is missing, too old or too new for this release
     +-- ConfigurationError (ImproperlyConfigured)   a setting or declaration that cannot work

Errors of the database that mean nothing special here stay ``django.db`` exceptions.
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

__all__ = [
    "AwaError",
    "CallbackNotFound",
    "ConfigurationError",
    "InvalidJob",
    "JobNotFound",
    "SchemaOutOfDate",
    "TerminalError",
    "UniqueConflict",
    "UnknownKind",
]


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


class CallbackNotFound(AwaError, LookupError):
    """No attempt waits for that callback."""


class TerminalError(AwaError):
    """Raise it in a handler to fail the job for good, whatever attempts are left."""


class SchemaOutOfDate(AwaError):
    """Schema ``awa`` is missing, or at a version this release does not run on."""


class ConfigurationError(AwaError, ImproperlyConfigured):
    """A setting or a declaration that cannot work."""
