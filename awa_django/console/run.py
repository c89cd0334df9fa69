"""Carrying out one verb: what may go wrong on the way becomes a message and an exit code, never a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from awa_django.conf import get_settings
from awa_django.console.exits import Exit
from awa_django.console.screen import Screen
from awa_django.console.tree import Call, Verb, refusal, usage
from awa_django.db import postgres
from awa_django.enqueue import queue_alias
from awa_django.errors import (
    AwaError,
    ConfigurationError,
    InvalidJob,
    SchemaOutOfDate,
    StorageTransitionRefused,
    UniqueConflict,
    WrongState,
)
from awa_django.schedule import InvalidSchedule
from awa_django.schema import read_schema

__all__ = ["run"]

#: SQLSTATEs of a schema, table, function or column that does not exist.
_UNKNOWN_OBJECTS = ("3F000", "42P01", "42883", "42703")

_REFUSALS = (LookupError, WrongState, UniqueConflict, StorageTransitionRefused, InvalidSchedule)


def run(verb: Verb, options: Mapping[str, Any], screen: Screen) -> int:
    """Carry a verb out, print its answer, and return the exit code.

    Raises ``CommandError`` with its exit code for everything that can be expected to go wrong.
    """
    try:
        if verb.changes and get_settings().read_only:
            raise usage(f"AWA['READ_ONLY'] is set: `awa {verb.path}` changes something and is refused")
        using = options.get("database")
        _reach(using)
        answer = verb.run(Call(options, screen, using))
    except (SchemaOutOfDate, ConfigurationError, InvalidJob) as error:
        raise usage(str(error)) from error
    except StorageTransitionRefused as error:
        raise refusal("; ".join([f"cannot {error.step.replace('_', ' ')} yet", *error.blockers])) from error
    except AwaError as error:
        raise (refusal if isinstance(error, _REFUSALS) else _failure)(str(error)) from error
    except (ValueError, TypeError) as error:
        # What the operators' functions say of arguments that make no sense.
        if type(error) not in (ValueError, TypeError):
            raise
        raise usage(str(error)) from error
    except DatabaseError as error:
        if fault := _schema_fault(error, options.get("database")):
            raise usage(fault) from error
        raise _failure(_said(error)) from error
    if screen.as_json:
        screen.dump(answer.document)
    else:
        answer.show(screen)
    return int(answer.exit)


def _reach(using: str | None) -> None:
    alias = queue_alias(using)
    if alias not in connections:
        raise usage(f"--database {alias}: there is no such alias; known are {', '.join(sorted(connections))}")
    try:
        postgres(alias).ensure_connection()
    except (OperationalError, InterfaceError) as error:
        raise CommandError(
            f"cannot reach database {alias!r}: {str(error).strip()}", returncode=int(Exit.UNREACHABLE)
        ) from error


def _failure(message: str) -> CommandError:
    return CommandError(message, returncode=Exit.FAILED)


def _schema_fault(error: DatabaseError, using: str | None) -> str | None:
    """What is wrong with the schema, where the database does not know something that ought to be in it."""
    if getattr(error.__cause__, "sqlstate", None) not in _UNKNOWN_OBJECTS:
        return None
    return read_schema(postgres(queue_alias(using))).fault()


def _said(error: DatabaseError) -> str:
    text = str(error).strip().partition("\n")[0]
    state = getattr(error.__cause__, "sqlstate", None)
    if state == "42501":
        return f"{text}: this role lacks a right; `manage.py awa doctor` names it"
    if state in ("57014", "55P03"):
        return f"{text}: the database was too busy, or somebody holds a lock; try again"
    return f"the database refused: {text}"
