"""``manage.py awa_sql``: the installation as a script, and the rights on it."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser
from psycopg import sql

from awa_django import __version__, schema

HELP = f"""\
Prints the SQL that installs schema awa (version {schema.VERSION}), for a DBA to run where the
site's own role may not create schemas. Connects to nothing, changes nothing.

  manage.py awa_sql --grant-to site > awa.sql   what the DBA gets
  psql -X -d DATABASE -f awa.sql                what the DBA runs, as its owner
  manage.py migrate                             adopts the schema that is there

The script is one transaction: it waits for any other installer, stops with an
error where a schema awa exists, and leaves either all of it or nothing. It
needs PostgreSQL 14 or newer, psql of the same age, and the right to create
schemas in the database (or a schema awa that is there, empty, and the role's
own); no superuser.

--grant-to ROLE adds what the site's role needs to enqueue, work, look after
jobs and migrate. Let all processes of the site work as that one role, or as
its members. --grant-enqueue-to ROLE adds what a role needs that stores jobs
and does nothing else, --grant-read-to ROLE what one needs that only looks.
Each may be given several times.

--grants-only prints the grants alone, for a schema that is there. Run that
script after migrate where another role than the site's migrates: it takes in
the table that Django makes for batch operations.
"""

#: contract: schema section 3.7; api/security section 2
WRITER = """\
-- What a role needs that enqueues, works, leads, and looks after jobs.
GRANT USAGE, CREATE ON SCHEMA awa TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA awa TO {role};
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA awa TO {role};
"""
#: The parents of partitions are enough. Sequences of later lanes have the grants of job_id_seq.
PRODUCER = """\
-- What a role needs that stores jobs in queue storage, and nothing else. It can read what waits, nothing that ran.
GRANT USAGE ON SCHEMA awa TO {role};
GRANT SELECT ON awa.storage_transition_state, awa.runtime_storage_backends, awa.queue_meta, awa.queue_ring_state
    TO {role};
GRANT SELECT, INSERT ON awa.queue_lanes, awa.ready_entries, awa.ready_segments, awa.deferred_jobs,
    awa.job_unique_claims TO {role};
GRANT SELECT, INSERT, UPDATE ON awa.queue_enqueue_heads, awa.queue_claim_heads TO {role};
GRANT USAGE, SELECT, UPDATE ON SEQUENCE awa.job_id_seq TO {role};
"""
READER = """\
-- What a role needs that only looks.
GRANT USAGE ON SCHEMA awa TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA awa TO {role};
GRANT SELECT ON ALL SEQUENCES IN SCHEMA awa TO {role};
"""
#: PUBLIC may call them, unless the database's defaults are stricter. One is for the schema's owner alone.
FUNCTIONS = """\
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', oid::regprocedure, {name})
FROM pg_proc
WHERE pronamespace = 'awa'::regnamespace
    AND proname <> 'install_queue_storage_substrate'
    AND NOT has_function_privilege({name}, oid, 'EXECUTE') \\gexec
"""

#: For a schema in use: lanes that are there, and the table that Django makes.
LANES = """\
SELECT format('GRANT USAGE, SELECT, UPDATE ON SEQUENCE awa.%I TO %I', relname, {name})
FROM pg_class
WHERE relnamespace = 'awa'::regnamespace AND relkind = 'S' AND relname ~ '^queue_(enqueue|claim)_seq_' \\gexec
"""
TABLE_OF_DJANGO = """\
SELECT format('GRANT {rights} ON %s TO %I', batches, {name})
FROM to_regclass('awa_django_batchoperation') AS batches
WHERE batches IS NOT NULL \\gexec
"""
#: Where awa's own client made the schema, whoever stores the first job of a lane makes and owns its sequences, and
#: needs CREATE even where they are there.
LATER_LANES = """\
-- Nothing where awa_django made the schema. Else sequences of later lanes belong to whoever stores their first job.
SELECT format(command, maker, other)
FROM (
    VALUES
        ('GRANT CREATE ON SCHEMA awa TO %1$I', {makers}, ARRAY['']),
        (
            'ALTER DEFAULT PRIVILEGES FOR ROLE %1$I IN SCHEMA awa GRANT USAGE, SELECT, UPDATE ON SEQUENCES TO %2$I',
            {makers}, {makers}
        ),
        (
            'ALTER DEFAULT PRIVILEGES FOR ROLE %1$I IN SCHEMA awa GRANT SELECT ON SEQUENCES TO %2$I',
            {makers}, {readers}
        )
) AS needed (command, makers, others)
CROSS JOIN unnest(makers) AS maker
CROSS JOIN unnest(others) AS other
WHERE maker <> other
    AND NOT EXISTS (
        SELECT
        FROM pg_proc
        WHERE oid = 'awa.queue_enqueue_head_sequence_sync()'::regprocedure
            AND prosrc LIKE '%awa_django_need_lane_sequences%'
    ) \\gexec
"""


class Roles(NamedTuple):
    """Who is granted what."""

    writers: Sequence[str]
    producers: Sequence[str]
    readers: Sequence[str]


class Command(BaseCommand):
    """Prints what ``migrate`` would run; adopted by ``migrate`` once somebody ran it."""

    help = HELP
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.formatter_class = RawDescriptionHelpFormatter
        return parser

    def get_version(self) -> str:
        return __version__

    def add_arguments(self, parser: CommandParser) -> None:
        for option, words in (
            ("--grant-to", "a role that gets what a site needs"),
            ("--grant-enqueue-to", "a role that gets what storing jobs needs"),
            ("--grant-read-to", "a role that gets what looking needs"),
        ):
            parser.add_argument(option, metavar="ROLE", action="append", default=[], help=words)
        parser.add_argument(
            "--grants-only", action="store_true", help="the grants alone, for a schema that is there"
        )

    def handle(
        self,
        *args: Any,
        grant_to: list[str],
        grant_enqueue_to: list[str],
        grant_read_to: list[str],
        grants_only: bool,
        **options: Any,
    ) -> None:
        roles = Roles(grant_to, grant_enqueue_to, grant_read_to)
        for option, names in zip(("--grant-to", "--grant-enqueue-to", "--grant-read-to"), roles, strict=True):
            for name in names:
                if not name or "\x00" in name:
                    raise CommandError(f"{option}: {name!r} is no name of a role")
        if grants_only and not any(roles):
            raise CommandError(
                "--grants-only needs a role: --grant-to, --grant-enqueue-to or --grant-read-to"
            )
        for text in _grants_script(roles) if grants_only else _script(roles):
            self.stdout.write(text)


def _script(roles: Roles) -> Iterator[str]:
    yield f"-- Schema awa, version {schema.VERSION}, by awa_django. Run it with psql, once.\n"
    yield from _opening()
    yield from schema.install_script(schema.ADOPTED)
    yield from _grants(roles)
    yield "COMMIT;"


def _grants_script(roles: Roles) -> Iterator[str]:
    yield "-- Rights on schema awa, by awa_django. Run it with psql as the schema's owner, as often as you like.\n"
    yield from _opening()
    yield from _grants(roles)
    for name in roles.producers:
        yield LANES.format(name=_quoted(name))
    for names, rights in (
        (roles.writers, "SELECT, INSERT, UPDATE, DELETE"),
        (roles.readers, "SELECT"),
    ):
        for name in names:
            yield TABLE_OF_DJANGO.format(rights=rights, name=_quoted(name))
    makers = [*roles.writers, *roles.producers]
    yield LATER_LANES.format(makers=_array(makers), readers=_array(roles.readers))
    yield "COMMIT;"


def _opening() -> Iterator[str]:
    yield "\\set ON_ERROR_STOP on"
    yield "SET client_encoding = 'UTF8';"
    yield "BEGIN;\n"


def _grants(roles: Roles) -> Iterator[str]:
    for grants, names in zip((WRITER, PRODUCER, READER), roles, strict=True):
        for name in names:
            yield (grants + FUNCTIONS).format(role=sql.Identifier(name).as_string(), name=_quoted(name))


def _quoted(name: str) -> str:
    """A role's name as a value."""
    return sql.Literal(name).as_string()


def _array(names: Sequence[str]) -> str:
    return f"ARRAY[{', '.join(map(_quoted, names))}]::text[]"
