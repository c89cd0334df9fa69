"""What goes wrong: a message that shows the way out, an exit code, never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import CommandError, SystemCheckError
from django.core.management.color import color_style
from django.db import InterfaceError, OperationalError, ProgrammingError, connections
from django.test import override_settings
from django.utils import timezone

from awa_django import operations
from awa_django.console.selection import duration, moment_ago
from awa_django.console.tree import VERBS
from awa_django.errors import ConfigurationError
from awa_django.management.commands.awa import Command
from awa_django.operations import Page, Position
from tests import databases, stored
from tests.console.calling import awa, document
from tests.console.test_tree import leaf
from tests.test_operations import added, in_state
from tests.workers import wait_until


@pytest.mark.django_db
def test_a_filter_asks_before_it_changes_and_needs_yes_where_nobody_can_be_asked() -> None:
    ids = [in_state("available") for _ in range(3)]
    said = awa("job", "cancel", "--queue", "q")
    assert said.code == 2
    assert said.err == (
        "this would cancel jobs: all jobs with queue q; nobody is here to be asked, so say --yes if that is meant"
    )
    said = awa("job", "cancel", "--queue", "q", typed="\n")
    assert (said.code, "all jobs with queue q (3 match). Go on? [y/N]" in said.err) == (1, True)
    assert operations.load_job(ids[0]).job.state == "available"
    assert awa("job", "cancel", "--queue", "q", typed="Y\n").code == 0
    assert operations.load_job(ids[0]).job.state == "cancelled"


@pytest.mark.django_db
def test_an_error_moves_no_cursor() -> None:
    said = awa("cron", "next", "night\x1b[2J\nly")
    assert said.code == 3
    assert said.err.isprintable()


@pytest.mark.django_db
def test_every_job_is_only_meant_where_it_is_said() -> None:
    in_state("available")
    said = awa("job", "cancel", "--yes")
    assert (said.code, "--all means every one" in said.err) == (2, True)
    assert document("job", "cancel", "--all", "--yes")["changed"] == 1
    said = awa("batch", "preview", "cancel")
    assert (said.code, "--all means every one" in said.err) == (2, True)


@pytest.mark.django_db
def test_ids_with_options_are_both_asked_for() -> None:
    mail, other = added(queue="mail"), added(queue="other")
    assert document("job", "cancel", mail, other, "--queue", "mail", "--yes")["ids"] == [mail]


@pytest.mark.django_db
@override_settings(AWA={"READ_ONLY": True})
@pytest.mark.parametrize("path", [path for path, verb in VERBS.items() if verb.changes])
def test_the_read_only_setting_refuses_every_change(path: str) -> None:
    required: list[object] = []
    for action in leaf(VERBS[path])._actions:
        if action.required or (not action.option_strings and action.nargs in (None, "+")):
            value = "1" if action.type is not None else "x"
            required += [*action.option_strings[:1], "1h" if action.dest == "before" else value]
    said = awa(*path.split(), *required, "--yes")
    assert said.code == 2
    assert "AWA['READ_ONLY'] is set" in said.err


@pytest.mark.django_db
@override_settings(AWA={"READ_ONLY": True})
def test_the_read_only_setting_leaves_reads_alone() -> None:
    job_id = added()
    assert awa("job", "show", job_id).code == 0
    assert awa("batch", "preview", "cancel", "--queue", "q").code == 0


@pytest.mark.django_db
def test_errors_go_to_standard_error_and_leave_standard_output_to_the_document() -> None:
    said = awa("job", "show", 4711, "--json")
    assert (said.code, said.out) == (3, "")
    assert said.err == "there is no job 4711; finished ones are forgotten in time"


@pytest.mark.django_db
def test_a_conflict_about_a_unique_key_names_the_holder() -> None:
    key, mask = b"k" * 16, "11101001"
    first = added(unique_key=key, unique_states=mask)
    operations.cancel(first)
    second = added(unique_key=key, unique_states=mask)
    said = awa("job", "retry", first)
    assert said.code == 3
    assert f"job {second} holds its unique key" in said.out


def test_an_alias_that_there_is_not_is_wrong_usage() -> None:
    said = awa("status", "--database", "other")
    assert (said.code, said.err) == (2, "--database other: there is no such alias; known are default")


def test_a_database_that_cannot_be_reached_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> None:
        raise OperationalError("connection refused\n")

    monkeypatch.setattr(type(connections["default"]), "ensure_connection", fail)
    said = awa("status")
    assert (said.code, said.err) == (4, "cannot reach database 'default': connection refused")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("sqlstate", "said"),
    [
        ("42501", "`manage.py awa doctor` names it"),
        ("57014", "try again"),
        ("25006", "give --database the primary"),
        ("XX000", "the database refused"),
    ],
)
def test_a_refusal_of_the_database_is_one_line(
    monkeypatch: pytest.MonkeyPatch, sqlstate: str, said: str
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        cause = psycopg.errors.lookup(sqlstate)("no\nDETAIL: more")
        raise ProgrammingError(str(cause)) from cause

    monkeypatch.setattr(operations, "load_job", fail)
    found = awa("job", "show", 1)
    assert found.code == 1
    assert said in found.err
    assert "DETAIL" not in found.err


@pytest.mark.django_db
def test_a_database_that_is_lost_on_the_way_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(connections["default"], "connection", None)
        raise InterfaceError("the connection is closed")

    monkeypatch.setattr(operations, "load_job", fail)
    said = awa("job", "show", 1)
    assert (said.code, said.err) == (4, "lost database 'default': the connection is closed")


@pytest.mark.django_db
def test_a_place_beyond_all_ids_is_where_the_list_begins() -> None:
    job_id = added()
    assert [row["id"] for row in document("job", "list", "--after", 2**70)["jobs"]] == [job_id]
    assert document("callback", "list", "--after", f"never/{2**70}") == {"jobs": [], "next": None}


@pytest.mark.django_db
def test_a_document_moves_no_cursor_and_means_the_same() -> None:
    strange = {"text": "a\u009b2J\u202eb\x7f\U000e0041 é\u200d"}
    job_id = added(args=strange)
    said = awa("job", "dump", job_id)
    assert json.loads(said.out)["job"]["args"] == strange
    assert not set("\u009b\u202e\x7f\U000e0041") & set(said.out)
    assert "é\u200d" in said.out


@pytest.mark.django_db
@pytest.mark.parametrize(
    "words",
    [
        ("job", "list", "--state", "nonsense"),
        ("job", "list", "--limit", "0"),
        ("job", "list", "--created-after", "yesterday-ish"),
        ("job", "list", "--after", "x"),
        ("dlq", "list", "--after", "x"),
        ("dlq", "list", "--before-id", "4"),
        ("storage", "finalize", "--wait", "soon"),
        ("callback", "list", "--after", "x"),
        ("callback", "list", "--after", "2026-03-01T09:30/4"),
        ("cron", "next", "nightly", "--count", "1000001"),
        ("job", "list", "--limit", "9" * 5000),
        ("dlq", "retry", "1", "--in", "9999999d"),
        ("job", "show", "x"),
        ("job", "cancel", str(2**63)),
        ("why", "0"),
        ("queue", "shards", "mail", "0"),
        ("dlq", "retry", "1", "--in", "999999w"),
        ("callback", "heartbeat", "x", "--timeout", "soon"),
        ("batch", "preview", "--op-kind", "cancel", "--spec", "[]"),
        ("dlq", "retry", "1", "--at", "soon"),
        ("nonsense",),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(words: tuple[str, ...]) -> None:
    said = awa(*words)
    assert said.code != 0
    assert said.out == ""
    assert said.err


def test_times_are_taken_as_people_write_them() -> None:
    assert duration("90") == duration("90s") == timedelta(seconds=90)
    assert (duration("2h"), duration("1.5d"), duration("15min")) == (
        timedelta(hours=2), timedelta(hours=36), timedelta(minutes=15),
    )  # fmt: skip
    assert moment_ago("2026-03-01").isoformat() == "2026-03-01T00:00:00+00:00"
    assert moment_ago("2026-03-01T09:30+02:00").isoformat() == "2026-03-01T09:30:00+02:00"
    assert moment_ago("2026-03-01 09:30:00 UTC").isoformat() == "2026-03-01T09:30:00+00:00"
    assert timedelta(hours=1) < timezone.now() - moment_ago("2h") < timedelta(hours=3)


@pytest.mark.django_db
def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(StringIO):
        def isatty(self) -> bool:
            return True

    added()
    assert "\x1b" not in awa("job", "list").out
    screen = Screen()
    call_command("awa", "--force-color", "job", "list", stdout=screen)
    assert "\x1b[" in screen.getvalue()
    screen = Screen()
    call_command("awa", "job", "list", "--no-color", stdout=screen)
    assert "\x1b" not in screen.getvalue()


def test_a_process_answers_with_its_exit_code_and_no_traceback(awa_database: str) -> None:
    done = databases.manage(awa_database, "awa", "job", "show", "4711", check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "CommandError: there is no job 4711; finished ones are forgotten in time\n"
    done = databases.manage(awa_database, "awa", "job", "list", "--state", "nonsense", check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    gone = databases.address(awa_database, port="1", host="127.0.0.1")
    done = databases.manage(gone, "awa", "status", "--json", check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "Traceback" not in done.stderr


def shell(url: str, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a line in which ``awa`` is the command."""
    return subprocess.run(
        ["/bin/bash", "-c", line.replace("awa", f"{sys.executable} -m django awa", 1)],
        cwd=databases.ROOT,
        env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_process_takes_its_streams_as_they_are(emptied_database: str) -> None:
    with psycopg.connect(emptied_database) as connection:
        connection.execute("INSERT INTO awa.queue_meta (queue, paused) VALUES ('メール-🚀', true)")
    piped = shell(emptied_database, "set -o pipefail; awa doctor | true")
    assert (piped.returncode, piped.stderr) == (1, "")  # nobody leads, and nobody reads that
    full = shell(emptied_database, "awa queue list > /dev/full")
    assert (full.returncode, full.stderr) == (
        1,
        "CommandError: the answer could not be written: No space left on device\n",
    )
    ascii_only = shell(emptied_database, "awa queue list --json", PYTHONIOENCODING="ascii")
    assert [queue["queue"] for queue in json.loads(ascii_only.stdout)] == ["メール-🚀"]


@pytest.mark.django_db
def test_a_closed_standard_input_is_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CommandError, match="nobody is here to be asked") as refused:
        call_command("awa", "queue", "drain", "mail", stdout=StringIO(), stderr=StringIO())
    assert refused.value.returncode == 2


def test_an_interrupted_process_ends_by_the_signal(awa_database: str) -> None:
    with psycopg.connect(awa_database) as blocker:
        blocker.execute("LOCK TABLE awa.queue_meta")
        process = subprocess.Popen(
            [sys.executable, "-m", "django", "awa", "queue", "pause", "mail"],
            cwd=databases.ROOT,
            env={**os.environ, "DATABASE_URL": awa_database, "DJANGO_SETTINGS_MODULE": "tests.settings"},
            stderr=subprocess.PIPE,
            text=True,
            # A background job of a shell, as these tests may be, passes an ignored SIGINT on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            with psycopg.connect(awa_database, autocommit=True) as watcher:
                wait_until(
                    lambda: (
                        watcher.execute(
                            "SELECT FROM pg_stat_activity"
                            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
                        ).fetchone()
                        is not None
                    )
                )
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, said) == (-signal.SIGINT, "")


@pytest.mark.django_db
def test_a_page_is_as_wide_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    added(kind="k" * 90)
    assert "k" * 90 not in awa("job", "list").out
    monkeypatch.setenv("COLUMNS", "200")
    assert "k" * 90 in awa("job", "list").out


def test_no_color_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    command = Command()
    command.style = color_style(force_color=True)
    with pytest.raises(SystemExit):
        command.run_from_argv(["manage.py", "awa", "nonsense"])
    assert command.style.ERROR("x") == "x"


@pytest.mark.django_db
@override_settings(AWA={"QUEUES": {"mail": {}}})
def test_warnings_about_settings_do_not_hide_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(found.id == "awa.W004" for found in run_checks(tags=["awa"]))
    Command().check()
    assert capsys.readouterr().err == ""
    with override_settings(AWA={"QUEUS": {}}), pytest.raises(SystemCheckError) as refused:
        Command().check()
    assert refused.value.returncode == 2


@pytest.mark.django_db
def test_an_examination_by_a_role_without_any_right_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: Any) -> None:
        raise ConfigurationError("this role may not use schema awa")

    monkeypatch.setattr(operations, "doctor", fail)
    said = awa("doctor", "--json")
    assert said.code == 1
    assert said.json == [
        {"check": "schema", "level": "error", "sentence": "this role may not use schema awa", "hint": ""}
    ]


@pytest.mark.django_db
def test_a_schema_of_another_version_is_only_looked_at() -> None:
    stored.run("INSERT INTO awa.schema_version (version, description) VALUES (41, 'to come')")
    said = awa("queue", "list")
    assert (said.code, "warning: schema awa" in said.err, "at version 41" in said.err) == (0, True, True)
    said = awa("queue", "pause", "q")
    assert (said.code, "upgrade awa_django" in said.err) == (2, True)
    assert stored.rows("SELECT queue FROM awa.queue_meta WHERE paused") == []
    stored.run("DELETE FROM awa.schema_version WHERE version > 39")
    said = awa("queue", "list")
    assert (said.code, said.out, "version 40 is needed" in said.err) == (2, "", True)


def test_what_asks_no_database_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> None:
        raise OperationalError("connection refused\n")

    monkeypatch.setattr(type(connections["default"]), "ensure_connection", fail)
    assert awa("callback", "url", uuid.uuid4(), "complete", "--base", "https://shop.example").code == 0


@pytest.mark.django_db
def test_a_name_that_nobody_knows_is_told_where_nothing_was_found() -> None:
    added(queue="mail", kind="send_receipt")
    note = "there is no queue mial so far; did you mean mail?\n"
    assert awa("job", "list", "--queue", "mial").err == note
    assert awa("queue", "drain", "mial", "--yes").err == note
    assert awa("job", "cancel", "--queue", "mial", "--yes").err == note
    assert awa("batch", "preview", "cancel", "--queue", "mial").err == note
    assert awa("dlq", "list", "--queue", "mail").err == ""
    assert "no kind send_reciept so far; did you mean send_receipt?" in (
        awa("job", "retry-failed", "--kind", "send_reciept", "--yes").err
    )
    assert "no jobs and no workers so far; did you mean mail?" in awa("queue", "pause", "mial").err
    assert awa("queue", "pause", "mail").err == ""


@pytest.mark.django_db
def test_a_list_goes_on_until_it_has_something_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rare = added(kind="rare")
    pages = [Page([], Position(9, "queue_storage")), Page([operations.load_job(rare)], None)]
    monkeypatch.setattr(operations, "list_jobs", lambda *args, **options: pages.pop(0))
    assert [row["id"] for row in document("job", "list")["jobs"]] == [rare]
    monkeypatch.setattr("awa_django.console.verbs.jobs._PATIENCE", -1)
    pages.append(Page([], Position(9, "queue_storage")))
    said = awa("job", "list")
    assert (said.out, said.err) == (
        "No job matches among those from id 9 on.\n",
        "There is more: add --after 9:queue_storage\n",
    )


class Interrupted(StringIO):
    """A terminal at which somebody presses Ctrl+C."""

    def isatty(self) -> bool:
        return True

    def readline(self, *args: Any) -> str:  # type: ignore[override]
        raise KeyboardInterrupt


@pytest.mark.django_db
def test_an_interrupted_question_is_a_no() -> None:
    job_id = in_state("failed")
    with pytest.raises(CommandError) as refused:
        call_command(
            "awa", "job", "discard", str(job_id), stdin=Interrupted(), stdout=StringIO(), stderr=StringIO()
        )
    assert (refused.value.returncode, str(refused.value)) == (1, "nothing was changed")
    assert operations.load_job(job_id).job.state == "failed"


@pytest.mark.django_db
def test_an_interrupted_wait_leaves_the_operation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("awa_django.console.verbs.changing._LOOK", 0)
    monkeypatch.setattr(operations, "batch_operation", interrupt)
    said = awa("job", "cancel", "--queue", "q", "--batch", "--wait", "--yes")
    assert said.code == 0
    assert "no longer waiting; the operation goes on" in said.err
    assert [each.state.value for each in operations.batch_operations()] == ["pending"]


def test_a_database_without_the_schema_is_told_how_to_get_it(empty_database: str) -> None:
    done = databases.manage(empty_database, "awa", "status", check=False)
    assert done.returncode == 2, done.stderr
    assert "manage.py migrate" in done.stderr
    done = databases.manage(empty_database, "awa", "doctor", "--json", check=False)
    assert done.returncode == 1
    found = {item["check"]: item["level"] for item in json.loads(done.stdout)}
    assert (found["schema"], found["notify"], found["rings"]) == ("error", "ok", "skipped")
