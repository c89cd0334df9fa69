"""One job of each sort through migrate, enqueue and a real worker, then the desk; on another interpreter and Django.

Needs ``DATABASE_URL`` of an empty database. Prints one line and exits 0 if all is well.
"""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import django
from django.core.management import call_command

django.setup()

from django.contrib import admin  # noqa: E402
from django.contrib.auth import get_user_model  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import Client  # noqa: E402

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
    subprocess.run([sys.executable, "-m", "django", "awa_worker", "--drain", "-v0"], check=True, timeout=150)
    states = dict.fromkeys(("completed", "failed"), 0)
    for state in Job.objects.values_list("state", flat=True):
        states[str(state)] += 1
    assert states == {"completed": 103, "failed": 1}, states
    look_around()
    print(
        f"Django {django.__version__} on Python {sys.version.split()[0]}: {sum(states.values())} jobs as expected"
    )


def look_around() -> None:
    """Every list of the admin, a job, an action with its question, and a command of the terminal."""
    operator = Client()
    operator.force_login(get_user_model().objects.create_superuser("operator"))
    models = [model for model in admin.site._registry if model._meta.app_label == "awa_django"]
    lists = [f"/admin/awa_django/{model._meta.model_name}/" for model in models]
    failed = Job.objects.get(state="failed")
    for path in ("/admin/awa_django/", *lists, f"/admin/awa_django/job/{failed.pk}/change/"):
        assert operator.get(path).status_code == 200, path
    action = f"/admin/awa_django/job/{failed.pk}/do/retry/"
    assert b"confirmed" in operator.post(action).content
    assert operator.post(action, {"confirmed": "1"}).status_code == 302
    assert str(Job.objects.get(id=failed.pk).state) == "available"
    call_command("awa", "status", stdout=StringIO())


main()
