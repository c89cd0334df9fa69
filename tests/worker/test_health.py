"""How a worker says that it lives and that it is ready, and what it says while it is neither."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import psycopg
import pytest
from django.core.management import CommandError

from awa_django.conf import Settings
from awa_django.errors import ConfigurationError
from awa_django.management.commands.awa_worker import Command
from awa_django.worker import health
from awa_django.worker.health import (
    MAX_HEAD_BYTES,
    HealthListener,
    Look,
    readiness_of_children,
    readiness_of_worker,
    tcp_socket,
    unix_socket,
)
from awa_django.worker.instance import Numbers
from tests import databases
from tests.ports import free_port
from tests.workers import Worker, backends, insert, job, labels, open_attempts, terminate, wait_until, worker

WELL = Numbers(poll_loop_alive=True, heartbeat_alive=True, maintenance_alive=True)
READY = {
    "ready": True,
    "postgres_connected": True,
    "schema_version": 40,
    "expected_schema_version": 40,
    "schema_compatible": True,
    "poll_loop_alive": True,
    "heartbeat_alive": True,
    "maintenance_alive": True,
    "shutting_down": False,
    "leader": False,
}


def raw(port: int, request: bytes, *, finish: bool = False) -> bytes:
    """What comes back for some bytes, until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        if finish:
            connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def get(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    """Status and JSON of an answer."""
    answer = raw(port, f"{method} {path} HTTP/1.1\r\nHost: probe\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert "Connection: close" in lines
    assert f"Content-Length: {len(body)}" in lines
    assert "Content-Type: application/json" in lines
    return int(lines[0].split()[1]), json.loads(body)


def ready(port: int) -> tuple[int, bool] | None:
    """Status and word of ``/readyz``; None where nobody listens."""
    try:
        status, body = get(port, "/readyz")
    except OSError:
        return None
    return status, body["ready"]


def lives(port: int) -> bool:
    """Whether ``/healthz`` says so."""
    try:
        return get(port, "/healthz") == (200, {"status": "ok"})
    except OSError:
        return False


@contextmanager
def listening(ask: Callable[[], Any]) -> Iterator[int]:
    """A listener on a free port."""
    opened = tcp_socket("127.0.0.1:0")
    port: int = opened.getsockname()[1]
    listener = HealthListener(opened, ask)
    listener.start()
    try:
        yield port
    finally:
        listener.stop()
        assert listener.join(30)


def says(readiness: dict[str, Any]) -> Callable[[], Any]:
    async def ask() -> dict[str, Any]:
        return readiness

    return ask


# The listener -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(says(READY)) as port:
        yield port


def test_a_worker_that_is_well_is_alive_and_ready(port: int) -> None:
    assert get(port, "/healthz") == (200, {"status": "ok"})
    assert get(port, "/readyz") == (200, READY)
    assert get(port, "/readyz?verbose=1") == (200, READY)


def test_one_that_is_not_ready_still_lives() -> None:
    with listening(says({**READY, "ready": False})) as port:
        assert get(port, "/healthz") == (200, {"status": "ok"})
        assert get(port, "/readyz") == (503, {**READY, "ready": False})


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", 404),
        ("GET /healthz/ HTTP/1.1", 404),
        ("POST /nothing HTTP/1.1", 404),
        ("POST /healthz HTTP/1.1", 405),
        ("HEAD /readyz HTTP/1.1", 405),
        ("get /healthz HTTP/1.1", 405),
        ("GET http://probe/healthz HTTP/1.1", 200),
        ("GET /healthz HTTP/1.0", 200),
        ("GET /healthz", 400),
        ("GET /healthz HTTP/2", 400),
        ("GET /h\u00e9 HTTP/1.1", 400),
        ("GET //[ HTTP/1.1", 400),
        ("", 400),
    ],
)
def test_anything_else_is_refused(port: int, request_line: str, status: int) -> None:
    answer = raw(port, f"{request_line}\r\nHost: probe\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert (b"\r\nAllow: GET\r\n" in answer) == (status == 405)


def test_a_head_may_have_four_kibibytes_and_no_more(port: int) -> None:
    start = b"GET /healthz HTTP/1.1\r\nX: "
    fits = start + b"x" * (MAX_HEAD_BYTES - len(start) - 4) + b"\r\n\r\n"
    assert len(fits) == 4096
    assert raw(port, fits).startswith(b"HTTP/1.1 200 ")
    assert raw(port, fits.replace(b"X: ", b"X: x")).startswith(b"HTTP/1.1 431 ")
    assert raw(port, start + b"x" * 200_000).startswith(b"HTTP/1.1 431 ")
    assert raw(port, b"GET /healthz HTTP/1.1\n\n").startswith(b"HTTP/1.1 200 ")


def test_only_one_request_is_answered(port: int) -> None:
    two = b"GET /healthz HTTP/1.1\r\n\r\n" * 2
    assert raw(port, two).count(b"HTTP/1.1") == 1
    assert raw(port, b"GET /healthz HT", finish=True) == b""


def test_whoever_is_slow_is_dropped_and_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_SECONDS", 3600)
    with listening(says(READY)) as port:
        patient = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(20)]
        for each in patient:
            each.sendall(b"GET /hea")
        assert get(port, "/healthz")[0] == 200, "while they have an hour left"
        monkeypatch.setattr(health, "CONNECTION_SECONDS", 0.5)
        slow = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(20)]
        for each in slow:
            each.sendall(b"GET /hea")
        for each in slow:
            assert each.recv(10) == b"", "closed without an answer"
        for each in patient + slow:
            each.close()


def test_it_holds_so_many_connections_and_closes_the_oldest_for_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(health, "CONNECTION_SECONDS", 60)  # it is not for their time that one is closed
    with listening(says(READY)) as port:
        held = []
        for _ in range(3):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=10))
            held[-1].sendall(b"GET /hea")
        oldest, *others = held
        assert get(port, "/healthz")[0] == 200, "slow clients keep no probe away"
        assert oldest.recv(10) == b""
        for each in others:
            each.sendall(b"lthz HTTP/1.1\r\n\r\n")
            assert each.recv(100).startswith(b"HTTP/1.1 200 ")
        for each in held:
            each.close()


def test_it_does_nothing_while_nobody_asks(port: int) -> None:
    get(port, "/healthz")
    threads = {thread.name: thread for thread in threading.enumerate()}
    native = threads["awa-health"].native_id

    def spent() -> float:
        return next(
            each.user_time + each.system_time for each in psutil.Process().threads() if each.id == native
        )

    def spends() -> float:
        before = spent()
        assert not threading.Event().wait(0.5)
        return spent() - before

    # The end of the last answer may fall into the first half second.
    assert any(spends() < 0.02 for _ in range(4))


# Addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000", ":-1", ""]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT is needed"):
        tcp_socket(address)


def test_an_address_where_nothing_can_listen_says_why() -> None:
    with (
        tcp_socket("127.0.0.1:0") as taken,
        pytest.raises(ConfigurationError, match="something else listens there"),
    ):
        tcp_socket(f"127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(ConfigurationError, match=r"'192\.0\.2\.1:0': cannot listen there"):
        tcp_socket("192.0.2.1:0")
    with pytest.raises(ConfigurationError, match="cannot listen there"):
        tcp_socket("no such host:8080")


def test_no_host_is_every_interface() -> None:
    for address in (":0", "0.0.0.0:0"):
        with tcp_socket(address) as opened:
            assert opened.getsockname()[0] == "0.0.0.0"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ipv6_stands_in_brackets_and_its_every_interface_takes_ipv4_as_well() -> None:
    with tcp_socket("[::]:0") as opened:
        socket.create_connection(("127.0.0.1", opened.getsockname()[1]), timeout=5).close()
    with tcp_socket("[::1]:0") as opened:
        assert opened.getsockname()[0] == "::1"


# What is looked at ------------------------------------------------------------------------------------------------


@contextmanager
def looking(look: Look, *, seconds: float = 30) -> Iterator[Look]:
    """A look that waits so long for the database."""
    with mock.patch.object(health, "LOOK_SECONDS", seconds):
        look.start()
        try:
            yield look
        finally:
            look.stop()
            assert look.join(30)


def test_ready_is_what_the_contract_says(awa_database: str) -> None:
    with looking(Look(lambda: psycopg.connect(awa_database, autocommit=True))) as look:

        def of(**numbers: bool) -> dict[str, Any]:
            now = Numbers(**{**{name: getattr(WELL, name) for name in WELL.__slots__}, **numbers})
            return asyncio.run(readiness_of_worker(lambda: now, look)())  # type: ignore[arg-type]

        assert of() == READY
        assert list(of()) == list(READY)
        assert of(leader=True) == {**READY, "leader": True}
        for name in ("poll_loop_alive", "heartbeat_alive", "maintenance_alive"):
            assert of(**{name: False}) == {**READY, name: False, "ready": False}
        assert of(shutting_down=True) == {**READY, "shutting_down": True, "ready": False}


def test_an_older_schema_or_none_is_not_ready_and_a_newer_one_is(
    awa_database: str, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FRESH_SECONDS", 0)

    def of(look: Look) -> tuple[Any, ...]:
        said = asyncio.run(readiness_of_worker(lambda: WELL, look)())  # type: ignore[arg-type]
        return said["schema_version"], said["schema_compatible"], said["postgres_connected"], said["ready"]

    with (
        psycopg.connect(awa_database, autocommit=True) as connection,
        looking(Look(lambda: psycopg.connect(awa_database, autocommit=True))) as look,
    ):
        connection.execute("INSERT INTO awa.schema_version (version, description) VALUES (43, 'later')")
        assert of(look) == (43, True, True, True)
        connection.execute("DELETE FROM awa.schema_version WHERE version >= 40")
        assert of(look)[1:] == (False, True, False)
    with looking(Look(lambda: psycopg.connect(empty_database, autocommit=True))) as look:
        assert of(look) == (None, False, True, False)


def test_a_database_is_asked_once_a_second_and_again_after_it_was_lost(
    awa_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health.FRESH_SECONDS == 1.0
    opened: list[psycopg.Connection[Any]] = []

    def connect() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(awa_database, autocommit=True, application_name="awa test look"))
        return opened[-1]

    with (
        looking(Look(connect)) as look,
        mock.patch.object(health, "_version", wraps=health._version) as asked,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(health, "FRESH_SECONDS", 3600)  # a second may pass between two lines
            for _ in range(5):
                assert asyncio.run(look.version()) == 40
            assert (len(opened), asked.call_count) == (1, 1)
        with psycopg.connect(awa_database, autocommit=True) as connection:
            assert terminate(connection, "awa test look") == 1
        wait_until(lambda: asyncio.run(look.version()) is None, what="the loss to be noticed")
        wait_until(lambda: asyncio.run(look.version()) == 40, what="a new session")
        assert len(opened) == 2
    assert opened[-1].closed


def test_a_database_that_hangs_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hangs() -> psycopg.Connection[Any]:
        answers.wait(60)
        raise psycopg.OperationalError("at last")

    with looking(Look(hangs), seconds=0.2) as look:
        try:
            with listening(readiness_of_worker(lambda: WELL, look)) as port:
                said = [get(port, "/readyz") for _ in range(2)]
                assert [status for status, _ in said] == [503, 503]
                assert said[0][1]["postgres_connected"] is False
                monkeypatch.setattr(health, "LOOK_SECONDS", 60)
                assert get(port, "/healthz")[0] == 200, "it does not look"
        finally:
            answers.set()


def test_a_supervisor_is_ready_if_all_of_its_children_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHILD_SECONDS", 30)
    paths = [tmp_path / f"{number}.sock" for number in (1, 2)]
    (tmp_path / "2.sock").touch()  # left from a child that was killed
    first = HealthListener(unix_socket(paths[0]), says({**READY, "leader": True}))
    second = HealthListener(unix_socket(paths[1]), says(READY))
    stopping = {**READY, "ready": False, "shutting_down": True}
    ask = readiness_of_children(paths)
    both = {"processes": 2, "processes_ready": 2}

    def asked() -> dict[str, Any]:
        return asyncio.run(ask())  # type: ignore[arg-type]

    first.start()
    second.start()
    assert asked() == {**READY, "leader": True, **both}
    second.stop()
    assert second.join(30)
    dead = asked()
    assert (dead["ready"], dead["poll_loop_alive"], dead["processes_ready"]) == (False, False, 1)
    second = HealthListener(unix_socket(paths[1]), says(stopping))
    second.start()
    assert asked() == {**stopping, "leader": True, "processes": 2, "processes_ready": 1}
    for each in (first, second):
        each.stop()
        assert each.join(30)


# Real workers -----------------------------------------------------------------------------------------------------


@pytest.mark.worker
def test_while_it_drains_a_worker_lives_and_is_not_ready_and_heartbeats_go_on(awa_database: str) -> None:
    port = free_port()
    with (
        psycopg.connect(awa_database, autocommit=True) as connection,
        worker(
            awa_database,
            "--health-addr",
            f"127.0.0.1:{port}",
            HEARTBEAT_INTERVAL=0.3,
            STALE_AFTER=60,
            DRAIN_TIMEOUT=30,
        ) as process,
    ):
        wait_until(lambda: ready(port) == (200, True), what="the worker to be ready")
        assert "awa_worker health" in backends(connection)
        job_id = insert(connection, "spell", {"seconds": 3})
        wait_until(lambda: labels(connection, job_id) == ["start"], what="the job to run")
        process.signal(signal.SIGTERM)
        wait_until(lambda: ready(port) == (503, False), what="the worker to drain")
        said: list[Any] = []
        beats = set()

        def ended() -> bool:
            now = ready(port), lives(port)
            beats.update(connection.execute("SELECT heartbeat_at FROM awa.attempt_state").fetchall())
            if open_attempts(connection):  # it was asked while the job ran
                said.append(now)
            return process.process.poll() is not None

        wait_until(ended, what="the worker to end")
        assert len(said) >= 2, "it was asked all along"
        assert set(said) == {((503, False), True)}
        assert len(beats) >= 2
        assert process.wait(10) == 0
        assert ready(port) is None
        found = job(connection, job_id)
        assert (found["state"], found["attempt"]) == ("completed", 1)
        assert labels(connection, job_id) == ["start", "end"]
        wait_until(lambda: backends(connection) == [])


@pytest.mark.worker
def test_a_supervisor_answers_for_its_children_and_notices_that_one_is_gone(awa_database: str) -> None:
    port = free_port()
    with worker(awa_database, "--processes", "2", "--health-port", str(port)) as process:
        wait_until(lambda: ready(port) == (200, True), what="both to be ready")
        assert get(port, "/readyz")[1]["processes"] == 2
        victim = process.children()[0]
        victim.kill()
        wait_until(lambda: ready(port) == (503, False), what="the death to show")
        assert get(port, "/healthz") == (200, {"status": "ok"})
        wait_until(lambda: ready(port) == (200, True), what="its successor")
        folder = Path(_socket_of(process)).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert process.stop() == 0
        assert not folder.exists()


def _socket_of(process: Worker) -> str:
    return process.children()[0].environ()["AWA_WORKER_HEALTH_SOCKET"]


@pytest.mark.worker
def test_an_address_that_cannot_be_ends_a_worker_with_code_2(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it looks for its database."""
    nowhere = databases.address(server_url, "no_such_database")
    with tcp_socket("127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        both = [Worker(nowhere, "--processes", "2", "--health-addr", address)]
        monkeypatch.setenv("AWA_HEALTH_ADDR", "nowhere")
        both.append(Worker(nowhere))
        words = ["something else listens there", "'nowhere': HOST:PORT is needed"]
        for process, said in zip(both, words, strict=True):
            assert process.wait(30) == 2
            assert said in process.output()
            assert "Traceback" not in process.output()


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "80.0", "١"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    parser = Command().create_parser("manage.py", "awa_worker")
    with pytest.raises(CommandError, match="a port from 1 to 65535 is needed"):
        parser.parse_args([f"--health-port={port}"])
    with pytest.raises(CommandError, match="not allowed with"):
        parser.parse_args(["--health-port=80", "--health-addr=:80"])


def test_the_option_goes_before_the_environment_and_that_before_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, environment, setting = free_port(), free_port(), free_port()
    monkeypatch.setenv("AWA_HEALTH_ADDR", f"127.0.0.1:{environment}")

    def bound(**options: Any) -> int:
        given = {"health_addr": None, "health_port": None, **options}
        opened = Command._listening(Settings(health_addr=f"127.0.0.1:{setting}"), given)
        assert opened is not None
        with opened:
            port: int = opened.getsockname()[1]
        return port

    assert bound(health_addr=f"127.0.0.1:{asked}") == asked
    assert bound(health_port=asked) == asked
    assert bound() == environment
    monkeypatch.delenv("AWA_HEALTH_ADDR")
    assert bound() == setting
    assert Command._listening(Settings(), {"health_addr": None, "health_port": None}) is None
    monkeypatch.setenv("AWA_WORKER_CHILD", "1")
    assert Command._listening(Settings(health_addr=f"127.0.0.1:{setting}"), {"health_port": asked}) is None
    assert os.environ.get("AWA_WORKER_HEALTH_SOCKET") is None
