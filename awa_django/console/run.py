"""Carrying out one verb: what may go wrong on the way becomes a message and an exit code, never a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from awa_django.conf import get_settings
from awa_django.console.exits import Exit
from awa_django.console.screen import Answer, Screen
from awa_django.console.text import plain
from awa_django.console.tree import Call, Verb, refusal, usage
from awa_django.db import postgres
from awa_django.enqueue import queue_alias
from awa_django.errors import (
    AwaError,
    ConfigurationError,
    InvalidJob,
    SchemaOutOfDate,
    StorageTransitionRefused,
    TooManyJobs,
    UniqueConflict,
    WrongState,
)
from awa_django.schedule import InvalidSchedule
from awa_django.schema import VERSION, read_schema

__all__ = ["run"]

#: SQLSTATEs of a schema, table, function or column that does not exist.
_UNKNOWN_OBJECTS = ("3F000", "42P01", "42883", "42703")

_REFUSALS = (
    LookupError, WrongState, UniqueConflict, TooManyJobs, StorageTransitionRefused, InvalidSchedule,
)  # fmt: skip


def run(verb: Verb, options: Mapping[str, Any], screen: Screen) -> int:
    """Carry a verb out, print its answer, and return the exit code.

    Raises ``CommandError`` with its exit code for everything that can be expected to go wrong.
    """
    using = options.get("database")
    try:
        if verb.changes and get_settings().read_only:
            raise usage(f"AWA['READ_ONLY'] is set: `awa {verb.path}` changes something and is refused")
        if verb.needs != "nothing":
            _reach(using)
        if verb.needs == "schema":
            _know(verb, using, screen)
        answer = verb.run(Call(options, screen, using))
    except (SchemaOutOfDate, ConfigurationError, InvalidJob) as error:
        raise usage(str(error)) from error
    except StorageTransitionRefused as error:
        raise refusal(f"cannot {error.step.replace('_', ' ')}: {'; '.join(error.blockers)}") from error
    except AwaError as error:
        raise (refusal if isinstance(error, _REFUSALS) else _failure)(str(error)) from error
    except (ValueError, TypeError, OverflowError) as error:
        # What the operators' functions say of arguments that make no sense, and Python of times beyond its own.
        if type(error) not in (ValueError, TypeError, OverflowError):
            raise
        raise usage(str(error)) from error
    except (DatabaseError, InterfaceError) as error:
        raise _refused(error, postgres(queue_alias(using))) from error
    return _print(answer, screen)


def _print(answer: Answer, screen: Screen) -> int:
    """Print an answer; its exit code, whether or not anybody reads to the end."""
    try:
        if screen.as_json:
            screen.dump(answer.document)
        else:
            answer.show(screen)
        screen.out.flush()
    except BrokenPipeError:
        screen.hang_up()
    except OSError as error:
        screen.hang_up()
        raise _failure(f"the answer could not be written: {error.strerror}") from error
    return int(answer.exit)


def _know(verb: Verb, using: str | None, screen: Screen) -> None:
    """Refuse a schema that this release does not know, save to look at one that is newer."""
    connection = postgres(queue_alias(using))
    facts = read_schema(connection)
    fault = facts.fault()
    if fault is None:
        return
    if verb.changes or (facts.version or 0) <= VERSION or facts.missing:
        raise SchemaOutOfDate(fault)
    screen.note(f"warning: {fault}", screen.style.WARNING)


def _reach(using: str | None) -> None:
    alias = queue_alias(using)
    if alias not in connections:
        raise usage(f"--database {alias}: there is no such alias; known are {', '.join(sorted(connections))}")
    try:
        postgres(alias).ensure_connection()
    except (OperationalError, InterfaceError) as error:
        raise _unreachable(f"cannot reach database {alias!r}: {' '.join(str(error).split())}") from error


def _unreachable(message: str) -> CommandError:
    return CommandError(plain(message), returncode=Exit.UNREACHABLE)


def _failure(message: str) -> CommandError:
    return CommandError(plain(message), returncode=Exit.FAILED)


def _refused(error: DatabaseError | InterfaceError, connection: BaseDatabaseWrapper) -> CommandError:
    """What to answer where the database did not do what it was asked."""
    if connection.connection is None or connection.connection.closed:
        return _unreachable(f"lost database {connection.alias!r}: {_first_line(error)}")
    is_unknown = getattr(error.__cause__, "sqlstate", None) in _UNKNOWN_OBJECTS
    # It does not know something that ought to be in the schema.
    if is_unknown and (fault := read_schema(connection).fault()):
        return usage(fault)
    return _failure(_said(error))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _said(error: DatabaseError | InterfaceError) -> str:
    text = _first_line(error)
    state = getattr(error.__cause__, "sqlstate", None)
    if state == "42501":
        return f"{text}: this role lacks a right; `manage.py awa doctor` names it"
    if state == "25006":
        return f"{text}: the server is a standby, or sessions of this role may not write; give --database the primary"
    if state in ("57014", "55P03"):
        return f"{text}: the database was too busy, or somebody holds a lock; try again"
    return f"the database refused: {text}"
