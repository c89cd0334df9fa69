"""Migration operations that act on the queue's database: schema ``awa``, and what Django keeps beside it."""

from __future__ import annotations

from functools import partial

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import CreateModel
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ProjectState

from awa_django import schema
from awa_django.conf import get_settings
from awa_django.db import postgres

__all__ = ["CreateQueueModel", "InstallAwaSchema"]


def _acts_on(schema_editor: BaseDatabaseSchemaEditor, app_label: str) -> bool:
    """Whether this is the queue's database: the one that ``AWA["DATABASE"]`` names, if the routers agree."""
    alias = schema_editor.connection.alias
    if alias != get_settings().database or not router.allow_migrate(alias, app_label, awa=True):
        return False
    postgres(alias)  # refuses another kind of database with words of its own
    return True


class InstallAwaSchema(Operation):
    """Install schema ``awa``, or adopt the one that is there.

    Acts on the database that ``AWA["DATABASE"]`` names, if the project's routers agree
    (``allow_migrate`` with the hint ``awa=True``); on every other it does nothing. Runs in the
    migration's transaction and holds the lock of awa's own migrations for its length, so two
    ``migrate`` at once, or ours and the awa client's, come one after the other. An older, foreign or
    half-built schema is refused with ``SchemaOutOfDate`` and left as it is.

    Backwards it drops the schema, unless it is in use or somebody else installed it.
    """

    reduces_to_sql = True
    reversible = True
    category = OperationCategory.SQL

    def __init__(self, target: int = schema.VERSION) -> None:
        if target != schema.VERSION:
            raise ValueError(f"target: this release installs version {schema.VERSION}, not {target!r}")
        self.target = target

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Models are declared by operations of their own."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if not _acts_on(schema_editor, app_label):
            return
        if schema_editor.collect_sql:
            schema.install(partial(schema_editor.execute, params=None))
            return
        connection = schema_editor.connection
        schema.lock_installation(connection)
        facts = schema.read_schema(connection)
        if facts.is_absent and facts.server >= schema.MINIMUM_SERVER:
            schema.install(partial(schema_editor.execute, params=None))
        else:
            schema.adopt(connection, facts)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if not _acts_on(schema_editor, app_label):
            return
        if schema_editor.collect_sql:
            schema_editor.execute("DROP SCHEMA awa CASCADE")
            return
        connection = schema_editor.connection
        schema.lock_installation(connection)
        schema.remove(connection, schema.read_schema(connection))

    def describe(self) -> str:
        return f"Install schema awa, version {self.target}, or adopt the one that is there"

    @property
    def migration_name_fragment(self) -> str:
        return f"awa_schema_{self.target}"


class CreateQueueModel(CreateModel):
    """Creates the table of a model that Django manages, on the database of the queue and on no other.

    A table that is there is left as it is, as schema ``awa`` is: the record of migrations may be younger than the
    database. Holds the installer's lock for the length of the migration, so two ``migrate`` at once come one after the
    other.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if not _acts_on(schema_editor, app_label):
            return
        if not schema_editor.collect_sql:
            schema.lock_installation(schema_editor.connection)
            table = to_state.apps.get_model(app_label, self.name)._meta.db_table
            if table in schema_editor.connection.introspection.table_names():
                return
        super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if _acts_on(schema_editor, app_label):
            super().database_backwards(app_label, schema_editor, from_state, to_state)
