"""Schema ``awa`` of a database: what it is, whether this release can use it, and how it comes about.

Version 40 is installed whole, from the files in ``migrations/sql/`` in the order of their names, or it is
adopted where the awa client or a DBA installed it. Nothing else is ever changed: upgrading an older schema
is the awa client's work (contract: schema, sections 2 and 3).

:func:`check_schema` is the question of a worker that starts; :func:`install`, :func:`adopt` and
:func:`remove` are the answers of a migration and expect its transaction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from awa_django.errors import ConfigurationError, SchemaOutOfDate
from awa_django.sql import statement

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Protocol

    class Session(Protocol):
        """Django's connection or the driver's: whatever hands out cursors."""

        def cursor(self) -> AbstractContextManager[Any]: ...


__all__ = [
    "ADOPTED",
    "INSTALLED",
    "MINIMUM_SERVER",
    "VERSION",
    "SchemaFacts",
    "adopt",
    "check_schema",
    "install",
    "install_files",
    "install_script",
    "lock_installation",
    "private_objects",
    "read_schema",
    "remove",
]

#: The version that is installed, and that statements of this release are written for.
VERSION = 40
#: A later one that a version-40 client may use while its ring cursors are kept in columns.
LATER_VERSION = 43
#: PostgreSQL 14, as ``server_version_num``: the schema has multirange columns.
MINIMUM_SERVER = 140_000

_NO_RIGHT = "42501"

#: The remark on ``awa.schema_version`` by which a migration knows its own work again.
INSTALLED = "installed by manage.py migrate of awa_django"
#: The remark of the script that ``manage.py awa_sql`` prints; for a migration that is somebody else's work.
ADOPTED = "installed by the script of manage.py awa_sql of awa_django"

# A function ends with the line that closes its body, a view with the first line that ends in a semicolon.
_PRIVATE = re.compile(
    r"^CREATE OR REPLACE (?:FUNCTION awa\.(awa_django_\w+)\(.*?^(?:END|\$\w*\$);$"
    r"|VIEW awa\.(awa_django_\w+) AS$.*?;$)",
    re.MULTILINE | re.DOTALL,
)
_OF_A_TRIGGER = re.compile(r"^RETURNS trigger$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SchemaFacts:
    """What one database says about its schema ``awa``."""

    database: str
    #: ``server_version_num``.
    server: int
    #: Whether the schema holds anything at all.
    occupied: bool
    #: The greatest number in ``schema_version``; 0 when it is empty, None without that table.
    version: int | None
    #: False for a schema of before awa 0.4, whose numbers meant something else.
    numbered_as_now: bool
    #: None before version 43; afterwards where the ring cursors are kept, as far as that can be told.
    cursors: str | None
    #: The schema that queue storage is in, once the installation is on its way to it.
    storage_schema: str | None
    #: The remark on ``schema_version``.
    remark: str | None
    #: Whether this role may create functions in the schema, and whether it may drop it.
    may_create: bool
    may_drop: bool
    #: What a worker needs and the schema lacks.
    missing: tuple[str, ...]

    @property
    def is_absent(self) -> bool:
        """Whether an installation can begin."""
        return not self.occupied

    def fault(self) -> str | None:
        """Why this release cannot use the schema, with the way out; None if it can."""
        here = f"schema awa of database {self.database!r}"
        if self.server < MINIMUM_SERVER:
            return f"{here}: PostgreSQL 14 or newer is needed, and the server is {self.server // 10_000}"
        if self.is_absent:
            return f"{here} does not exist: run `manage.py migrate`"
        if not self.version:
            return (
                f"{here} holds objects but no version: another tool's schema, or half an installation. If "
                "nothing in it is needed, `DROP SCHEMA awa CASCADE` and run `manage.py migrate`"
            )
        if self.version < VERSION or (self.version == VERSION and not self.numbered_as_now):
            return (
                f"{here} is at version {self.version}, and version {VERSION} is needed: upgrade it with the "
                "awa client (`pip install awa-cli==0.6.9`, then `awa --database-url URL migrate`) and run "
                "`manage.py migrate` again"
            )
        if self.version not in (VERSION, LATER_VERSION):
            return (
                f"{here} is at version {self.version}, which this release of awa_django does not know (it "
                f"knows {VERSION} and {LATER_VERSION}): upgrade awa_django"
            )
        if self.version == LATER_VERSION and self.cursors != "columns":
            return (
                f"{here} keeps its ring cursors in {self.cursors or 'an unknown place'}, where a client of "
                "awa 0.6 cannot follow them: upgrade awa_django"
            )
        if self.storage_schema not in (None, "awa"):
            return (
                f"{here} has its queue storage in schema {self.storage_schema!r}; awa_django serves queue "
                "storage in schema awa alone. Keep the queues of this database to awa's own workers"
            )
        if self.missing:
            return (
                f"{here} says version {self.version} but lacks {_listed(self.missing)}: restore it from a "
                "backup, or install it anew"
            )
        return None


def read_schema(session: Session) -> SchemaFacts:
    """Ask a database about its schema ``awa``. Four statements of catalog reads at most; takes no lock.

    Raises ``ConfigurationError`` where the role may not look into the schema.
    """
    with session.cursor() as cursor, _rights_named():
        outline = _row(cursor, "outline")
        version = cursors = storage_schema = None
        if outline["versioned"]:
            version = _value(cursor, "greatest_version") or 0
        if outline["has_authority"]:
            cursors = _authority(cursor)
        if version and version >= VERSION:
            storage_schema = _value(cursor, "storage_schema")
    return SchemaFacts(
        database=outline["database"],
        server=outline["server"],
        occupied=outline["occupied"],
        version=version,
        numbered_as_now=outline["numbered_as_now"],
        cursors=cursors,
        storage_schema=storage_schema,
        remark=outline["remark"],
        may_create=outline["may_create"],
        may_drop=outline["may_drop"],
        missing=tuple(outline["missing"]),
    )


def check_schema(session: Session) -> SchemaFacts:
    """The facts of a schema that this release can use; raises ``SchemaOutOfDate`` with the way out.

    ``session`` is Django's connection of an alias or a session of the worker's own. Cheap enough to ask
    again while a worker runs, as it must: the cursors of a version-43 schema can move at any time.
    """
    facts = read_schema(session)
    if fault := facts.fault():
        raise SchemaOutOfDate(fault)
    return facts


def lock_installation(session: Session) -> None:
    """Wait for every other installer of the database and keep them out until the transaction ends.

    Until then no ``statement_timeout`` of the project applies.
    """
    with session.cursor() as cursor:
        cursor.execute(statement("schema", "lift_time_limit"), {})
        cursor.execute(statement("schema", "lock_installation"), {})


@cache
def install_files() -> tuple[tuple[str, str], ...]:
    """The files that make the schema from nothing, as (name, text), in order.

    They are plain SQL without parameters; a ``%`` in them stands for itself.
    """
    folder = files("awa_django").joinpath("migrations", "sql")
    return tuple(
        (entry.name, entry.read_text(encoding="utf-8"))
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".sql")
    )


def install_script(remark: str) -> Iterator[str]:
    """The texts that install the schema when run in order, in one transaction."""
    for name, text in install_files():
        yield f"-- {name}\n{text.rstrip()}\n"
    yield f"COMMENT ON TABLE awa.schema_version IS '{remark}';\n"


@cache
def private_objects() -> tuple[tuple[str, str], ...]:
    """Every function and view named ``awa_django_*``, as (name, statement), in the order of the files.

    They are no part of awa: an adopted schema gets them and nothing else, because the statements of this
    release use them. Trigger functions are left out, since tables of somebody else's get no triggers.
    """
    return tuple(
        (found[1] or found[2], found[0])
        for _, text in install_files()
        for found in _PRIVATE.finditer(text)
        if not _OF_A_TRIGGER.search(found[0])
    )


def install(run: Callable[[str], object]) -> None:
    """Make the schema, promoted to queue storage, with ``run`` executing each text as it is."""
    for text in install_script(INSTALLED):
        run(text)


def adopt(session: Session, facts: SchemaFacts) -> Sequence[str]:
    """Take a schema over that somebody else installed; the names of the objects that were added.

    Raises ``SchemaOutOfDate`` unless this release can use it. Adds what it lacks of
    :func:`private_objects`, if this role may, and promotes an installation that was never used; a fleet
    that runs on canonical storage stays there.
    """
    if fault := facts.fault():
        raise SchemaOutOfDate(fault)
    added: list[str] = []
    with session.cursor() as cursor:
        if facts.may_create:
            cursor.execute(statement("schema", "private_objects"), {})
            present = {row[0] for row in cursor.fetchall()}
            for name, text in private_objects():
                if name not in present:
                    cursor.execute(text)
                    added.append(name)
        cursor.execute(statement("schema", "promote_if_fresh"), {})
    return added


def remove(session: Session, facts: SchemaFacts) -> None:
    """Drop the schema that :func:`install` made, if nothing is in it.

    Refuses with ``SchemaOutOfDate`` when somebody else installed or upgraded it, when it holds jobs,
    schedules or a live runtime, and when this role does not own it. Nothing is done where nothing is.
    """
    if facts.is_absent:
        return
    here = f"schema awa of database {facts.database!r}"
    by_hand = "`DROP SCHEMA awa CASCADE` removes it and every job in it, whoever enqueued them"
    if facts.remark != INSTALLED or facts.version != VERSION:
        raise SchemaOutOfDate(f"{here} was not installed by this migration, or was changed since. {by_hand}")
    if not facts.may_drop:
        raise SchemaOutOfDate(f"{here} belongs to another role, who has to drop it. {by_hand}")
    with session.cursor() as cursor:
        cursor.execute(statement("schema", "lock_for_removal"), {})
        cursor.execute(statement("schema", "remains_of_work"), {})
        if used := [row[0] for row in cursor.fetchall()]:
            raise SchemaOutOfDate(
                f"{here} is in use: there are rows in {_listed(used)}. Stop its workers and purge its jobs "
                f"and schedules first. {by_hand}"
            )
        cursor.execute(statement("schema", "drop_schema"), {})


@contextmanager
def _rights_named() -> Iterator[None]:
    """Say how to grant what the database says is missing; it is the driver's error, or Django's for it."""
    try:
        yield
    except Exception as error:
        if getattr(error.__cause__ or error, "sqlstate", None) != _NO_RIGHT:
            raise
        raise ConfigurationError(
            f"this role may not use schema awa: {str(error).strip()}. As the schema's owner run what "
            "`manage.py awa_sql --grants-only --grant-to ROLE` prints"
        ) from error


def _row(cursor: Any, name: str) -> dict[str, Any]:
    cursor.execute(statement("schema", name), {})
    row = cursor.fetchone()
    return dict(zip((column[0] for column in cursor.description), row, strict=True))


def _value(cursor: Any, name: str) -> Any:
    cursor.execute(statement("schema", name), {})
    row = cursor.fetchone()
    return row[0] if row else None


def _authority(cursor: Any) -> str | None:
    # Only the words are agreed upon, "columns" and "ledger", not the column that holds them.
    cursor.execute(statement("schema", "ring_cursor_authority"), {})
    words = {value for (row,) in cursor.fetchall() for value in _mapping(row).values()}
    found = [word for word in ("ledger", "columns") if word in words]
    return found[0] if found else None


def _mapping(value: Any) -> dict[str, Any]:
    # Django's cursors leave jsonb as text, the driver's own decode it.
    found = json.loads(value) if isinstance(value, str) else value
    return {key: item for key, item in found.items() if isinstance(item, str)}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
