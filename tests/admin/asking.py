"""Users of the admin with just these permissions, and what the pages have to show."""

from __future__ import annotations

import html
import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from awa_django.jobs import Callback
from awa_django.outcomes import WaitForCallback
from awa_django.transitions import plan
from tests import stored
from tests.test_operations import _within, added, claimed

_NONE = Callback(None, None)
_numbers = count(1)


def user(*codenames: str, name: str = "") -> User:
    """A member of staff who may do this and nothing else."""
    made = User.objects.create_user(name or f"user{next(_numbers)}", password=None, is_staff=True)
    found = Permission.objects.filter(content_type__app_label="awa_django", codename__in=codenames)
    assert {each.codename for each in found} == set(codenames)
    made.user_permissions.set(found)
    return made


def client(*codenames: str, name: str = "", csrf: bool = False) -> Client:
    """A browser in which such a member of staff is logged in."""
    made = Client(enforce_csrf_checks=csrf)
    made.force_login(user(*codenames, name=name))
    return made


def superuser() -> Client:
    """A browser of somebody who may do everything."""
    made = Client()
    made.force_login(User.objects.create_superuser(f"root{next(_numbers)}", password=None))
    return made


def list_url(model: str) -> str:
    return reverse(f"admin:awa_django_{model}_changelist")


def detail_url(model: str, key: object) -> str:
    from django.contrib.admin.utils import quote

    return reverse(f"admin:awa_django_{model}_change", args=[quote(key)])  # type: ignore[arg-type]


def action_url(model: str, key: object, action: str) -> str:
    from django.contrib.admin.utils import quote

    return reverse(f"admin:awa_django_{model}_action", args=[quote(key), action])  # type: ignore[arg-type]


def text_of(answer: Any) -> str:
    """What a page says: its words, one blank between them."""
    assert answer.status_code == 200, (answer.status_code, getattr(answer, "url", ""), answer.content[:500])
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", answer.content.decode(), flags=re.DOTALL)
    words = re.sub(r"<[^>]*>", " ", page)
    return re.sub(r"\s+", " ", html.unescape(words))


def words(browser: Client, url: str, **parameters: Any) -> str:
    """What the page at an address says."""
    return text_of(browser.get(url, parameters))


def messages_of(answer: Any) -> list[str]:
    """What a page says at its top about what was done."""
    return [str(message) for message in answer.context["messages"]]


def worker(
    *queues: str,
    seen: timedelta = timedelta(0),
    kinds: tuple[str, ...] = (),
    config: dict[str, Any] | None = None,
    **columns: Any,
) -> uuid.UUID:
    """The row of a worker process that reported ``seen`` ago."""
    instance_id = uuid.uuid4()
    settings = {
        "mode": "hard_reserved", "max_workers": 8, "min_workers": None, "weight": None, "global_max_workers": None,
        "poll_interval_ms": 200, "deadline_duration_secs": 0, "priority_aging_interval_secs": 60, "claimers": 1,
        "claim_batch_size": 512, "dlq_enabled": True, "rate_limit": {"max_rate": 2.5, "burst": 10},
    } | (config or {})  # fmt: skip
    row: dict[str, Any] = {
        "instance_id": instance_id,
        "hostname": "web-1",
        "pid": next(_numbers),
        "version": "0.6.9+awa-django.0.1.0",
        "snapshot_interval_ms": 10_000,
        "healthy": True,
        "postgres_connected": True,
        "poll_loop_alive": True,
        "heartbeat_alive": True,
        "maintenance_alive": True,
        "shutting_down": False,
        "leader": False,
        "global_max_workers": None,
        "queues": json.dumps(
            [{"queue": name, "in_flight": 3, "overflow_held": None, "config": settings} for name in queues]
        ),
        "queue_descriptor_hashes": json.dumps(dict.fromkeys(queues, "q")),
        "job_kind_descriptor_hashes": json.dumps(dict.fromkeys(kinds, "k")),
        "storage_capability": "queue_storage",
        "transition_role": "auto",
        **columns,
    }
    stored.run(
        f"INSERT INTO awa.runtime_instances ({', '.join(row)}, started_at, last_seen_at) VALUES "
        f"({', '.join(['%s'] * len(row))}, now() - interval '1 hour', now() - %s)",
        *row.values(),
        seen,
    )
    return instance_id


def waiting(
    timeout: timedelta = timedelta(hours=1), *, parked: bool = True, judges: Callback = _NONE, **fields: Any
) -> tuple[int, uuid.UUID]:
    """A job that waits for a callback, or runs with one registered; its id and the callback's."""
    added(**{"priority": 1, **fields})
    (attempt,) = claimed(str(fields.get("queue", "q")))
    token = uuid.uuid4()
    # As they say it who could not wait for it to be up.
    early = max(timeout, timedelta(hours=1))
    assert _within(lambda plane, cursor: plane.register_callback(cursor, attempt, token, early, judges))
    if parked:
        assert _within(lambda plane, cursor: plane.park(cursor, [plan(attempt, WaitForCallback(token))]))
    if timeout != early:
        stored.run(
            "UPDATE awa.leases SET callback_timeout_at = now() + %s WHERE callback_id = %s", timeout, token
        )
    return attempt.job_id, token


def schedule(name: str = "nightly", **columns: Any) -> None:
    """A schedule's row."""
    row: dict[str, Any] = {
        "name": name,
        "cron_expr": "0 3 * * *",
        "timezone": "UTC",
        "kind": "k",
        "queue": "q",
        "args": '{"region": "nz", "api_key": "hunter2"}',
        "metadata": '{"team": "shop"}',
        **columns,
    }
    stored.run(
        f"INSERT INTO awa.cron_jobs ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", *row.values()
    )


def now() -> datetime:
    return datetime.now(UTC)
