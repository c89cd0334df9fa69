"""``manage.py awa_sql``: the installation as a script."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from psycopg import sql

from awa_django import schema

HELP = f"""\
Prints the SQL that installs schema awa (version {schema.VERSION}), for a DBA to run where the site's own role
may not create schemas. Connects to nothing and changes nothing.

    manage.py awa_sql --grant-to site > awa.sql        what the DBA gets
    psql -X -d DATABASE -f awa.sql                     what the DBA runs, as the role that is to own it
    manage.py migrate                                  adopts the schema that is there

The script is one transaction: it waits for any other installer, stops with an error where a schema awa
exists, and leaves either all of it or nothing. It needs PostgreSQL 14 or newer, psql of the same age, and the
right to create schemas in the database (or a schema awa that is there, empty, and the role's own); no superuser.

--grant-to ROLE adds what the site's role needs to enqueue, work and migrate. It includes CREATE on the schema,
because the first job of a queue makes two sequences. Let all processes of the site use that one role: these
sequences belong to the role that made them.
"""

GRANTS = """\
-- What a site's role needs (contract: schema section 3.7).
GRANT USAGE, CREATE ON SCHEMA awa TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA awa TO {role};
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA awa TO {role};
"""


class Command(BaseCommand):
    """Prints what ``migrate`` would run; adopted by ``migrate`` once somebody ran it."""

    help = HELP
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.formatter_class = RawDescriptionHelpFormatter
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--grant-to", metavar="ROLE", help="a role that gets what a site needs")

    def handle(self, *args: Any, grant_to: str | None, **options: Any) -> None:
        if grant_to == "" or (grant_to and "\x00" in grant_to):
            raise CommandError(f"--grant-to: {grant_to!r} is no name of a role")
        for text in _script(grant_to):
            self.stdout.write(text)


def _script(grant_to: str | None) -> Iterator[str]:
    yield f"-- Schema awa, version {schema.VERSION}, by awa_django. Run it with psql, once.\n"
    yield "\\set ON_ERROR_STOP on"
    yield "SET client_encoding = 'UTF8';"
    yield "BEGIN;\n"
    yield from schema.install_script(schema.ADOPTED)
    if grant_to:
        yield GRANTS.format(role=sql.Identifier(grant_to).as_string())
    yield "COMMIT;"
