"""Rows that no client of ours would write: every read of the desk answers, every page renders, other jobs run.

(contract: api/security section 6, acceptance check 8)
"""

from __future__ import annotations

import ast
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

import awa_django
from awa_django import job, operations, periodic, storage
from awa_django.enqueue import enqueue
from awa_django.jobs import JobInsert
from awa_django.operations import BatchState, JobFilter
from awa_django.registry import registry
from tests import stored
from tests.admin.asking import detail_url, list_url, superuser
from tests.inprocess import ended, working
from tests.maintenance.test_bad_rows import DEEP, ODD_ARGS, ODD_PAYLOADS, ODD_TIMES
from tests.test_operations import STATES, in_state
from tests.test_operator_reads import canonical

PACKAGE = Path(awa_django.__file__).parent
LONG = "q" * 100
#: What a job of queue storage may be changed to, by any client that has the rights: columns and their values.
ODD: list[dict[str, str]] = [
    *({"payload": payload} for payload in ODD_PAYLOADS),
    *({"args": args} for args in ODD_ARGS),
    {"payload": """'{"metadata": {"awa:traceparent": 7, "_awa_original_priority": "x", "_awa_django_unknown_kind": [],
        "_awa_callback_result": null, "_awa_django_result": 1}}'"""},
    {"payload": """'{"errors": [{"error": {"a": 1}, "attempt": "one", "at": "never", "attempted_at": 7}],
        "tags": [7, null]}'"""},
    {"payload": """'{"progress": {"percent": "many", "message": [1]}}'"""},
    {"kind": "'unknown/kind <b>&amp; ' || chr(8238) || repeat('k', 180)"},
    *({"run_at": time, "attempted_at": time, "created_at": time} for time in ODD_TIMES),
    {"attempt": "32767", "max_attempts": "1"},
]  # fmt: skip
#: The same where a payload has columns of its own.
ODD_CANONICAL: list[dict[str, str]] = [
    *({"metadata": value} for value in ("'[]'", "'null'", "'7'", """'{"n": 1e9999}'""")),
    {"metadata": f"jsonb_build_object('deep', {DEEP})"},
    *({"errors": value} for value in ("NULL", "ARRAY['7', 'null', '[1]']::jsonb[]", "'{{1,2},{3,4}}'")),
    {"errors": f"ARRAY[{DEEP}]"},
    {"progress": DEEP},
    {"progress": """'{"percent": "many", "message": [1]}'"""},
    *({"args": args} for args in ODD_ARGS),
    {"kind": "'unknown/kind <b>&amp; ' || chr(8238) || repeat('k', 170)", "queue": f"'{LONG}'"},
    *({"attempted_at": time, "created_at": time, "finalized_at": time} for time in ODD_TIMES),
    {"attempt": "32767", "max_attempts": "1"},
]  # fmt: skip


def change(table: str, key: str, job_id: int, values: Mapping[str, str]) -> None:
    """Change a row, as far as the table has these columns."""
    has = {
        row["attname"]
        for row in stored.rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass", f"awa.{table}"
        )
    }
    changes = [f"{name} = {value}" for name, value in values.items() if name in has]
    if changes:
        stored.run(f"UPDATE awa.{table} SET {', '.join(changes)} WHERE {key} = {job_id}".replace("%", "%%"))


def chosen(state: str, oddities: list[dict[str, str]]) -> list[dict[str, str]]:
    """All of them in the states whose rows are whole in one table, and some where others do the same."""
    everywhere = state in ("scheduled", "failed", "waiting_external")
    return oddities if everywhere else oddities[STATES.index(state) % 3 :: 4]


def odd_jobs() -> list[tuple[str, int]]:
    """Jobs of queue storage, one for each oddity that is chosen in each state."""
    found = []
    for state in STATES:
        for values in chosen(state, ODD):
            job_id = in_state(state)
            for table in ("ready_entries", "deferred_jobs", "done_entries", "dlq_entries", "leases"):
                change(table, "job_id", job_id, values)
            found.append((state, job_id))
    # A queue whose name no channel can have: only these may hold it.
    for state, table in (
        ("scheduled", "deferred_jobs"),
        ("retryable", "deferred_jobs"),
        ("dead", "dlq_entries"),
    ):
        found.append((state, in_state(state)))
        change(table, "job_id", found[-1][1], {"queue": f"'{LONG}'"})
    return found


def odd_canonical_jobs() -> list[tuple[str, int]]:
    """The same of the canonical tables."""
    found = []
    for state in (state for state in STATES if state != "dead"):
        table = "scheduled_jobs" if state in ("scheduled", "retryable") else "jobs_hot"
        for values in chosen(state, ODD_CANONICAL):
            found.append((state, canonical(state)))
            change(table, "id", found[-1][1], values)
    return found


def odd_surroundings() -> uuid.UUID:
    """Schedules, workers, descriptors and batch operations that nobody can make sense of; the id of an operation."""
    operation = uuid.uuid4()
    for statement in (
        """INSERT INTO awa.cron_jobs (name, cron_expr, timezone, kind, queue, args, metadata) VALUES
            ('odd/name', 'whenever', 'Mars/Olympus', 'unknown', repeat('q', 100), '[1]', '"text"'),
            ('never', '0 0 30 2 *', 'UTC', 'unknown', 'q', '1e9999', '{}')""",
        """INSERT INTO awa.runtime_instances (instance_id, pid, version, started_at, snapshot_interval_ms, healthy,
            postgres_connected, poll_loop_alive, heartbeat_alive, shutting_down, leader, queues,
            queue_descriptor_hashes, job_kind_descriptor_hashes)
        SELECT gen_random_uuid(), -1, repeat('9', 200), '-infinity', 0, true, true, true, true, false, true, odd,
            odd, odd
        FROM unnest(ARRAY['"x"', '{}', '[1, null, {"queue": 5}, {"queue": "q", "config": 7, "in_flight": "many"}]',
            'null']::jsonb[]) AS odd""",
        """INSERT INTO awa.queue_descriptors (queue, descriptor_hash, extra, docs_url, tags)
        VALUES (repeat('d', 150), 'x', '[]', 'javascript:alert(1)', ARRAY[NULL, 'a'])""",
        """INSERT INTO awa.job_kind_descriptors (kind, descriptor_hash, extra, docs_url)
        VALUES (repeat('d', 150), 'x', '7', 'javascript:alert(1)')""",
        """INSERT INTO awa.queue_meta (queue, paused, paused_at, enqueue_shards)
        VALUES (repeat('m', 150), true, 'infinity', 64)""",
        f"""INSERT INTO awa.batch_operations (id, op_kind, filter, spec, state, cursor, submitted_at, total_matched)
        VALUES ('{operation}', 'move_queue', '[]', '7', 'completed', '"x"', '-infinity', -1),
            (gen_random_uuid(), 'set_priority', '{{"state": 7, "ids": {{}}}}', '{{}}', 'failed', '[]', now(), NULL)""",
    ):
        stored.run(statement.replace("%", "%%"))
    return operation


#: Reads that need nothing to begin with.
READS: dict[str, Callable[[], Any]] = {
    "activity": operations.activity,
    "batch_operations": operations.batch_operations,
    "dead_letters": operations.dead_letters,
    "doctor": operations.doctor,
    "kind_overview": operations.kind_overview,
    "known_kinds": operations.known_kinds,
    "known_queues": operations.known_queues,
    "list_jobs": operations.list_jobs,
    "orphan_kinds": lambda: operations.orphan_kinds({"k"}),
    "queue_counts": operations.queue_counts,
    "queue_overview": lambda: [operations.queue_overview(exact=exact) for exact in (True, False)],
    "recent_failures": lambda: operations.recent_failures(1000),
    "runtime": lambda: [
        operations.runtime(each.instance_id) for each in operations.runtime_overview().instances
    ],
    "runtime_overview": lambda: operations.runtime_overview().attention,
    "state_counts": operations.state_counts,
    "waiting_callbacks": operations.waiting_callbacks,
    "waiting_kinds": operations.waiting_kinds,
    "preview_batch": lambda: operations.preview_batch(operations.Cancel(), JobFilter(queue="q")),
    # No part of operations, and beside them on the operator's desk.
    "schedules": periodic.schedules,
    "storage": storage.status,
}
#: And those of one job or operation.
READS_OF_ONE = {
    "load_job",
    "dump_job",
    "dump_run",
    "timeline",
    "why",
    "find_callback",
    "batch_operation",
    "batch_problems",
}


def test_every_read_of_the_desk_is_among_these() -> None:
    changing = {
        "cancel", "cancel_batch", "cancel_by_unique_key", "dead_letter", "discard", "drain", "move_queue", "pause",
        "purge_batches", "purge_dead", "resume", "retry", "retry_dead", "retry_failed", "run_now",
        "set_enqueue_shards", "set_priority", "submit_batch", "one_look",
    }  # fmt: skip
    functions = {
        name for name in operations.__all__ if callable(getattr(operations, name)) and name.islower()
    }
    assert functions == changing | READS_OF_ONE | (READS.keys() - {"schedules", "storage"})


def faults_of(reads: Mapping[str, Callable[[], Any]]) -> Iterator[str]:
    """The reads that raise."""
    for name, read in reads.items():
        try:
            with transaction.atomic():
                read()
        except Exception as error:
            yield f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def listed_all(filter: JobFilter | None = None) -> set[tuple[str, int]]:
    """Every job that pages of the list show."""
    found: set[tuple[str, int]] = set()
    after = None
    while True:
        page = operations.list_jobs(filter, after=after, limit=100)
        found |= {(record.plane, record.job.id) for record in page.jobs}
        after = page.next
        if after is None:
            return found


def reads_of(job_id: int, plane: Any) -> dict[str, Callable[[], Any]]:
    def dumped(dump: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: json.dumps(dump(job_id, plane=plane), allow_nan=False)

    return {
        f"load_job {plane} {job_id}": lambda: repr(operations.load_job(job_id, plane=plane)),
        f"timeline {plane} {job_id}": lambda: operations.timeline(operations.load_job(job_id, plane=plane)),
        f"dump_job {plane} {job_id}": dumped(operations.dump_job),
        f"dump_run {plane} {job_id}": dumped(operations.dump_run),
        f"why {plane} {job_id}": lambda: operations.why(job_id).sentence,
    }


@pytest.mark.django_db
@pytest.mark.parametrize("make", [odd_jobs, odd_canonical_jobs])
def test_every_read_answers_over_odd_rows(make: Callable[[], list[tuple[str, int]]]) -> None:
    ids = [job_id for _, job_id in make()]
    plane = "queue_storage" if make is odd_jobs else "canonical"
    with operations.one_look():
        faults = [fault for job_id in ids for fault in faults_of(reads_of(job_id, plane))]
    faults += faults_of(READS)
    filters = [JobFilter(queue=LONG), *(JobFilter(state=state) for state in STATES[:-1])]
    faults += faults_of({f"list_jobs {each}": partial(listed_all, each) for each in filters})
    assert faults == []
    assert listed_all() == {(plane, job_id) for job_id in ids}


@pytest.mark.django_db
def test_every_read_answers_in_odd_surroundings() -> None:
    operation = odd_surroundings()
    faults = list(faults_of(READS))
    faults += faults_of(
        {
            "batch_operation": lambda: operations.batch_operation(operation).description,
            "batch_problems": lambda: operations.batch_problems(operation),
            "filters": lambda: [operations.batch_operations(state) for state in BatchState],
        }
    )
    assert faults == []


@pytest.mark.django_db
def test_every_page_renders_over_odd_rows() -> None:
    operation = odd_surroundings()
    ids = odd_jobs()
    root = superuser()
    root.raise_request_exception = False
    pages = [
        "/admin/awa_django/",
        *(
            list_url(model)
            for model in (
                "job",
                "dlqentry",
                "waitingcallback",
                "queuemeta",
                "kinddescriptor",
                "cronjob",
                "runtimeinstance",
                "batchoperation",
                "storagetransitionstate",
            )
        ),
        *(f"{list_url('job')}?state={state}" for state in STATES),
        f"{list_url('job')}?queue={LONG}",
        detail_url("cronjob", "odd/name"),
        detail_url("queuemeta", LONG),
        detail_url("batchoperation", operation),
        *(detail_url("dlqentry" if name == "dead" else "job", job_id) for name, job_id in ids[::2]),
    ]
    codes = {page: root.get(page).status_code for page in pages}
    assert {page: code for page, code in codes.items() if code != 200} == {}


@pytest.mark.django_db(transaction=True)
def test_a_worker_runs_the_other_jobs_among_odd_rows() -> None:
    with registry.isolated():

        @job(queue="q")
        def greet() -> None:
            """Is run."""

        for values in ODD:
            change("ready_entries", "job_id", enqueue(JobInsert(kind="k", args={}, queue="q")).id, values)
        stored.run("UPDATE awa.ready_entries SET payload = '[]' WHERE kind = 'k' AND payload IS NULL")
        change("deferred_jobs", "job_id", in_state("scheduled"), {"queue": f"'{LONG}'", "run_at": "now()"})
        for _ in range(20):
            greet.enqueue()
        with working({"q": 4}, lead=True):
            assert {row["state"] for row in ended("greet", 20)} == {"completed"}


# How statements are made -----------------------------------------------------------------------------------


def test_no_statement_is_put_together_from_text() -> None:
    """Names and values are parameters: what is executed is a named statement, a constant, or quoted by the driver."""
    put_together = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("execute", "executemany", "copy", "raw", "extra", "SQL", "RawSQL")
        and call.args
        and _is_made(call.args[0])
    ]
    assert put_together == []


def _is_made(node: ast.expr) -> bool:
    """Whether an expression makes a text of texts."""
    formats = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("format", "join")
    )
    quoted = formats and any(
        isinstance(part, ast.Attribute) and part.attr == "SQL" for part in ast.walk(node)
    )
    return isinstance(node, ast.JoinedStr | ast.BinOp) or (formats and not quoted)
