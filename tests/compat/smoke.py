"""One job of each sort through migrate, enqueue and a real worker; run by another interpreter and Django.

Needs ``DATABASE_URL`` of an empty database. Prints one line and exits 0 if all is well.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import django
from django.core.management import call_command

django.setup()

from django.db import connection, transaction  # noqa: E402

from awa_django.models import Job  # noqa: E402
from tests.workerapp.jobs import answering, async_noop, hopeless, noop  # noqa: E402


class Undone(Exception):
    pass


def main() -> None:
    call_command("migrate", verbosity=0)
    call_command("makemigrations", "awa_django", check=True, dry_run=True, verbosity=0)
    call_command("check", databases=["default"], verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE probe (label text, job_id bigint, attempt int, pid int, at timestamptz DEFAULT now())"
        )
    with transaction.atomic():
        noop.enqueue(n=1)
        async_noop.enqueue(n=2)
        answering.enqueue(n=21)
        hopeless.enqueue()
    try:
        with transaction.atomic():
            noop.enqueue(n=3)
            raise Undone
    except Undone:
        pass
    assert noop.enqueue_many([{"n": n} for n in range(100)]).count == 100
    subprocess.run([sys.executable, "-m", "django", "awa_worker", "--drain", "-v0"], check=True, timeout=60)
    states = dict.fromkeys(("completed", "failed"), 0)
    for state in Job.objects.values_list("state", flat=True):
        states[str(state)] += 1
    assert states == {"completed": 103, "failed": 1}, states
    print(
        f"Django {django.__version__} on Python {sys.version.split()[0]}: {sum(states.values())} jobs as expected"
    )


main()
