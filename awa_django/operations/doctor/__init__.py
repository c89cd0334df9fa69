"""What is wrong with an installation, or may soon be: server, schema, fleet and work, one finding after the other.

Everything is read; nothing takes a lock that anybody waits for, and each statement has a time limit, beyond which its
check is skipped. Two connections beside Django's send a notification to themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.db import DatabaseError, InterfaceError

from awa_django.db import postgres
from awa_django.enqueue import queue_alias
from awa_django.errors import AwaError
from awa_django.operations.desk import one_look
from awa_django.operations.doctor import fleet, rings, server, work
from awa_django.operations.doctor.finding import Check, Finding, Level, Patient
from awa_django.schema import read_schema

__all__ = ["CHECKS", "Finding", "Level", "doctor"]

#: In the order of the findings: what others depend on first.
CHECKS: Mapping[str, Check] = {
    "server": server.settings,
    "notify": server.notify,
    "clock": server.clock,
    "connections": server.connections,
    "grants": server.grants,
    "catalogue": server.catalogue,
    "locks": server.locks,
    "snapshots": server.snapshots,
    "vacuum": server.vacuum,
    "leader": fleet.leader,
    "workers": fleet.workers,
    "queues": fleet.queues,
    "kinds": fleet.kinds,
    "storage": fleet.storage,
    "rings": rings.rings,
    "promotion": work.promotion,
    "cron": work.schedules,
    "callbacks": work.callbacks,
    "batches": work.batches,
}
#: Checks that make sense without the schema.
_WITHOUT_SCHEMA = ("notify", "clock")


def doctor(*, using: str | None = None, timeout: timedelta = timedelta(seconds=5)) -> list[Finding]:
    """Examine an installation: for each check what is wrong, or that nothing is.

    ``timeout`` limits each statement, and how long a notification may take. Raises ``django.db.OperationalError``
    where the database cannot be reached, and ``ConfigurationError`` where this role may not look into the schema.
    """
    alias = queue_alias(using)
    connection = postgres(alias)
    connection.ensure_connection()
    patient = Patient(alias=alias, timeout=timeout)
    facts = read_schema(connection)
    fault = facts.fault()
    if fault is None:
        findings = [Finding("schema", Level.OK, f"Schema awa is at version {facts.version}.")]
    else:
        findings = [Finding("schema", Level.ERROR, fault)]
    for name, check in CHECKS.items():
        if fault is not None and name not in _WITHOUT_SCHEMA:
            findings.append(Finding(name, Level.SKIPPED, "Needs a schema that this release can use."))
        else:
            findings += _examine(name, check, patient)
    return findings


def _examine(name: str, check: Check, patient: Patient) -> list[Finding]:
    """What one check finds. Where it cannot be made, that is a finding, and the others go on."""
    try:
        if name in _WITHOUT_SCHEMA:
            found = list(check(patient))
        else:
            with one_look(patient.alias, statement_timeout=patient.timeout) as at:
                patient.at = at
                found = list(check(patient))
    except (DatabaseError, InterfaceError, AwaError) as error:
        said = str(error).strip().partition("\n")[0]
        return [
            Finding(
                name,
                Level.SKIPPED,
                f"Could not be looked at: {said}",
                "Give it more time with --timeout, or a role that may see this.",
            )
        ]
    return [Finding(name, *item) for item in found] or [Finding(name, Level.OK, "Nothing to say.")]
