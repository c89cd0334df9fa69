"""The demo and ``serve``, run the way a newcomer runs them."""

from __future__ import annotations

import http.cookiejar
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from example_project.embedded import ROOT
from example_project.shop.demo import processes
from example_project.shop.demo.account import CALLS, STORY, Account, Check, Line
from example_project.shop.demo.crew import run_worker
from example_project.shop.demo.screen import ProgressBar
from tests.example.conftest import Manage
from tests.ports import free_port

pytestmark = [pytest.mark.worker, pytest.mark.xdist_group("example")]

FEW = ("--orders", "12", "--newsletters", "30")


@pytest.fixture
def database(shop_url: str, manage: Manage) -> Iterator[psycopg.Connection]:
    import environ

    config = environ.Env.db_url_config(shop_url)
    conninfo = make_conninfo(
        host=config["HOST"] or None,
        port=config["PORT"] or None,
        user=config["USER"] or None,
        password=config["PASSWORD"] or None,
        dbname=config["NAME"],
    )
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


def test_the_demo_ends_with_a_table_in_which_every_row_is_as_expected_and_can_be_run_again(
    manage: Manage, database: psycopg.Connection
) -> None:
    done = manage("demo", *FEW)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "!!" not in done.stdout
    for line in STORY:
        row = re.search(rf"^  {line.kind} +{line.state} +(\d+) +(\d+) .* ok$", done.stdout, re.MULTILINE)
        assert row, f"no row for {line}"
        assert int(row[2]) == line.attempts
    for error in (
        "the supplier does not sell TEA-01",
        "the label printer is out of paper",
        "has already written",
        "A dead letter: book_pickup",
        "-0001 has no address",
        "take_payment: the bank declined the transfer",
    ):
        assert error in done.stdout
    assert re.search(r"^   Ticks of the schedule by now: [1-9]\d*$", done.stdout, re.MULTILINE)
    for said, status in CALLS.items():
        assert re.search(rf"^     {said} +{status}$", done.stdout, re.MULTILINE)
    (source,) = re.findall(r"demo-[0-9a-f]{6}", done.stdout.splitlines()[0])
    receipts = database.execute(
        "SELECT count(*), count(DISTINCT order_id) FROM shop_receipt"
        " JOIN shop_order ON shop_order.id = order_id WHERE source = %s",
        (source,),
    ).fetchone()
    assert receipts == (12, 12)
    left = database.execute(
        "SELECT count(*) FROM awa.jobs WHERE state NOT IN ('completed', 'failed', 'cancelled')"
        " AND kind <> 'dress_window'"  # of which another may have come while the worker stopped
    ).fetchone()
    assert left == (0,), "the workers left nothing undone"
    redriven = database.execute(
        "SELECT state::text, attempt, cardinality(errors) FROM awa.jobs"
        " WHERE kind = 'book_pickup' AND %s = ANY (tags)",
        (source,),
    ).fetchall()
    assert redriven == [("completed", 1, 1)], "the error of the dead letter stays with the job"
    abandoned = database.execute(
        "SELECT count(*) FROM shop_order WHERE reference LIKE '%abandoned'"
    ).fetchone()
    assert abandoned == (0,)
    again = manage("demo", *FEW)
    assert again.returncode == 0, again.stdout + again.stderr


def test_the_demo_fails_and_names_what_differs(manage: Manage, database: psycopg.Connection) -> None:
    database.execute(
        "CREATE FUNCTION never_packed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " NEW.packed_at := NULL; NEW.shipped_at := NULL; RETURN NEW; END $$"
    )
    database.execute(
        "CREATE TRIGGER never_packed BEFORE UPDATE ON shop_order FOR EACH ROW EXECUTE FUNCTION never_packed()"
    )
    try:
        done = manage("demo", *FEW)
    finally:
        database.execute("DROP FUNCTION never_packed() CASCADE")
    assert done.returncode == 1
    assert "orders packed by the async job: 3 expected, 0 found" in done.stderr
    assert "orders shipped once they were paid: 1 expected, 0 found" in done.stderr
    assert "Everything came out as expected" not in done.stdout


def test_a_worker_that_takes_too_long_fails_the_demo_with_the_end_of_its_log(manage: Manage) -> None:
    done = manage("demo", *FEW, "--patience", "0")
    assert done.returncode == 1
    assert "the worker was still at work after 0 s; the end of " in done.stderr
    log = re.search(r"the end of (\S+):", done.stderr)
    assert log
    os.unlink(log[1])
    assert manage("demo", *FEW).returncode == 0, "what was left over does not disturb the next run"


def test_ctrl_c_ends_the_demo_and_its_worker_without_a_traceback(
    manage: Manage, shop_environment: dict[str, str], tmp_path: Path
) -> None:
    demo = subprocess.Popen(
        [sys.executable, "example_project/manage.py", "demo"],
        cwd=ROOT,
        env=shop_environment | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell, as these tests may be, passes an ignored SIGINT on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert demo.stdout is not None
        assert any("jobs after" in line for line in demo.stdout), "the worker's progress is shown"
        family = psutil.Process(demo.pid).children(recursive=True)
        assert family, "the worker is there"
        demo.send_signal(signal.SIGINT)
        rest, said = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.communicate()
    assert demo.returncode == 130
    assert said == "CommandError: interrupted; another run starts afresh\n"
    assert "What now?" not in rest
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert list(tmp_path.iterdir()) == [], "nor does a log stay behind"
    assert manage("demo", *FEW).returncode == 0, "what was left over does not disturb the next run"


def test_ctrl_c_at_the_moment_of_a_start_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(*arguments: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(processes, "start", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_worker(["awa_worker"], lambda: 0, 1, ProgressBar(io.StringIO(), "jobs"), patience=60)
    finally:
        signal.signal(signal.SIGINT, before)
    with started[0] as process:
        assert process.returncode == -signal.SIGTERM


def test_too_few_orders_are_refused(manage: Manage) -> None:
    done = manage("demo", "--orders", "4")
    assert done.returncode == 1
    assert "--orders: at least 5 are needed, not 4" in done.stderr


def test_an_account_names_missing_and_unexpected_jobs_and_failed_checks() -> None:
    receipt, failed = Line("send_receipt", "completed", 1), Line("send_receipt", "failed", 3)
    account = Account(
        jobs={receipt: (9, None), failed: (1, "IntegrityError: twice")},
        expected_jobs=Counter({receipt: 10}),
        checks=[Check("receipts", 10, 9), Check("orders", 10, 10), Check("in time", True, False)],
    )
    assert account.differences == [
        "send_receipt, completed after 1: 10 expected, 9 found",
        "send_receipt, failed after 3: 0 expected, 1 found",
        "receipts: 10 expected, 9 found",
        "in time: yes expected, no found",
    ]
    assert sum(line.endswith("!!") for line in account.table()) == 4
    assert max(map(len, account.table())) <= 79
    assert "not expected" in "\n".join(account.table())
    assert account.errors() == ["  send_receipt: IntegrityError: twice"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_redrawn_on_a_terminal_and_a_few_lines_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        bar = ProgressBar(out, "jobs")
        for done in range(101):
            bar.show(done, 100)
        bar.finish()
    drawn = terminal.getvalue().rstrip("\n").split("\r")
    assert "\n" not in "".join(drawn)
    assert max(map(len, drawn)) <= 80
    assert drawn[-1].startswith(f"  [{'#' * 36}] 100/100 jobs")
    assert [line.split(" after")[0] for line in file.getvalue().splitlines()] == [
        f"  {done}/100 jobs" for done in (0, 25, 50, 75, 100)
    ]


def wait_until(what: str, holds: object, seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < limit, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_runs_admin_and_worker_and_one_signal_stops_both(
    manage: Manage, shop_environment: dict[str, str], database: psycopg.Connection, number: signal.Signals
) -> None:
    port = free_port()
    serve = subprocess.Popen(
        [sys.executable, "example_project/manage.py", "serve", "--bind", f"127.0.0.1:{port}"],
        cwd=ROOT,
        env=shop_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output: list[str] = []
    try:
        assert serve.stdout is not None
        for line in serve.stdout:
            output.append(line)
            if line.startswith("The admin:"):
                break
        else:
            pytest.fail("serve ended early: " + "".join(output))
        assert f"http://127.0.0.1:{port}/admin/" in output[-1]
        assert "user demo, password demo" in output[-1]
        assert "Log out" in log_in(port)

        placed = manage(
            "shell",
            "--command",
            "from example_project.shop.checkout import place_order, stock_shelves\n"
            f"place_order('web-{port}', 'a@example.com', {{stock_shelves()['MUG-02']: 1}})",
        )
        assert placed.returncode == 0, placed.stderr
        wait_until(
            "the receipt",
            lambda: (
                database.execute(
                    "SELECT FROM shop_receipt JOIN shop_order ON shop_order.id = order_id"
                    " WHERE reference = %s",
                    (f"web-{port}",),
                ).fetchone()
                is not None
            ),
        )
        family = psutil.Process(serve.pid).children(recursive=True)
        assert len(family) >= 2
        serve.send_signal(number)
        rest, _ = serve.communicate(timeout=60)
        assert serve.returncode == 0, rest
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive
    finally:
        if serve.poll() is None:
            for process in [*psutil.Process(serve.pid).children(recursive=True), serve]:
                process.kill()
            serve.communicate()


def log_in(port: int) -> str:
    """Log in to the admin as the demo's user and return the index page."""
    cookies = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    login = f"http://127.0.0.1:{port}/admin/login/?next=/admin/"
    with opener.open(login, timeout=30) as page:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.read().decode())
    assert token
    form = {"username": "demo", "password": "demo", "csrfmiddlewaretoken": token[1], "next": "/admin/"}
    with opener.open(login, urllib.parse.urlencode(form).encode(), timeout=30) as page:
        return str(page.read().decode())


def test_serve_refuses_a_port_that_is_taken(manage: Manage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = manage("serve", "--bind", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


def test_serve_does_not_offer_the_demo_password_to_the_network(manage: Manage) -> None:
    code = (
        "from django.contrib.auth import get_user_model as get\n"
        "get().objects.filter(username='demo').exists() or get().objects.create_superuser('demo', '', 'demo')"
    )
    assert manage("shell", "--command", code).returncode == 0
    done = manage("serve", "--bind", f"0.0.0.0:{free_port()}")
    assert done.returncode == 1
    assert "could log in as demo/demo" in done.stderr
