"""The migration operation that brings schema ``awa`` into a database."""

from __future__ import annotations

from functools import partial

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ProjectState

from awa_django import schema
from awa_django.conf import get_settings
from awa_django.db import postgres

__all__ = ["InstallAwaSchema"]


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
        if not self._acts_on(schema_editor, app_label):
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
        if not self._acts_on(schema_editor, app_label):
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

    def _acts_on(self, schema_editor: BaseDatabaseSchemaEditor, app_label: str) -> bool:
        alias = schema_editor.connection.alias
        if alias != get_settings().database or not router.allow_migrate(alias, app_label, awa=True):
            return False
        postgres(alias)  # refuses another kind of database with words of its own
        return True
