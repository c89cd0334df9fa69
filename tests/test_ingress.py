"""Callbacks that arrive over HTTP: what is answered, in what order, and what nobody gets to see."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock
from urllib.parse import quote
from uuid import UUID, uuid4

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.core import checks, mail
from django.core.asgi import get_asgi_application
from django.core.handlers.wsgi import WSGIHandler
from django.db import OperationalError, connection, connections
from django.test import AsyncClient, Client, override_settings
from django.urls import clear_url_caches, reverse
from django.utils.log import AdminEmailHandler

from awa_django import callbacks, job, signals
from awa_django.checks import check_receiver
from awa_django.jobs import JobInsert
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.signatures import DEFAULT_PATH_PREFIX, SIGNATURE_HEADER, build_callback_url, sign
from awa_django.states import JobState
from awa_django.views import ingress
from tests import receiving
from tests.answering import declared, parked, registered, session, state_of, undone
from tests.answering import world as either
from tests.planes.world import World
from tests.receiving import CASES, SECRET, Case, heartbeat, padded, refusal
from tests.stored import rows
from tests.workers import wait_until

__all__ = ["declared", "either"]

pytestmark = pytest.mark.django_db(transaction=True)

OLD_SECRET = bytes(reversed(range(32)))
JSON = "application/json"


@pytest.fixture
def world() -> Iterator[World]:
    """New jobs in queue storage; ``either`` has those of the canonical tables as well."""
    with session() as opened:
        yield World(opened, QueueStoragePlane())


@pytest.fixture(autouse=True)
def _site() -> Iterator[None]:
    awa = {"CALLBACK_SECRETS": [SECRET.hex(), OLD_SECRET.hex()]}
    with override_settings(ROOT_URLCONF="tests.receiving_urls", AWA=awa):
        yield


def signed(token: UUID | str, secret: bytes = SECRET) -> dict[str, str]:
    return {SIGNATURE_HEADER: sign(str(token), secret)}


def post(
    token: UUID | str, action: str = "complete", body: bytes = b"{}", *, prefix: str = "/awa", **options: Any
) -> Any:
    """Ours, over the test client, signed."""
    client = Client(enforce_csrf_checks=True)
    options.setdefault("headers", signed(token))
    return client.post(f"{prefix}/callbacks/{token}/{action}", body, content_type=JSON, **options)


async def _apost(path: str, case: Case, spelled: str) -> Any:
    headers = case.headers(spelled)
    kind = headers.pop("Content-Type", "") if case.body else ""
    return await AsyncClient(enforce_csrf_checks=True).generic(
        case.method, path, case.body, content_type=kind, headers=headers
    )


def ask(case: Case, token: UUID, prefix: str) -> Any:
    """Put one case to our receiver."""
    spelled = case.spell(str(token))
    path = f"{prefix}/{quote(spelled, safe='')}/{case.action}"
    if "async" in prefix:
        return async_to_sync(_apost)(path, case, spelled)
    headers = case.headers(spelled)
    kind = headers.pop("Content-Type", "") if case.body else ""
    return Client(enforce_csrf_checks=True).generic(
        case.method, path, case.body, content_type=kind, headers=headers
    )


def connection_limit() -> str:
    """How long Django's session waits for a lock."""
    (row,) = rows("SHOW lock_timeout")
    return str(row["lock_timeout"])


# The table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/awa/callbacks", "/async/callbacks"])
def test_every_case_of_the_table_is_answered_as_it_says_and_leaves_the_job_waiting(
    world: World, prefix: str
) -> None:
    attempt, token = parked(world)
    wrong = []
    for case in CASES:
        response = ask(case, token, prefix)
        said = ""
        if response.status_code >= 400 and case.method != "HEAD":
            said = refusal(response.content)
        if response.status_code != case.status or case.says not in said:
            wrong.append(f"{case.name}: {case.status} {case.says!r}, not {response.status_code} {said!r}")
        assert response["Content-Type"] == JSON
        assert response["Cache-Control"] == "no-store"
        assert response.get("Allow") == ("POST" if case.status == 405 else None)
        assert not {name for name in response.headers if name.lower().startswith("access-control")}
        assert not response.cookies
        assert "Cookie" not in response.get("Vary", "")
        if case.status == 200:
            assert json.loads(response.content) == {"id": attempt.job_id, "state": "WaitingExternal"}
    assert wrong == []
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


@pytest.mark.parametrize("prefix", ["/awa", "/async"])
def test_an_answer_ends_the_job_once_and_a_second_one_finds_nobody(either: World, prefix: str) -> None:
    world = either
    attempt, token = parked(world)
    response = post(token, body=b'{"payload": {"any": ["thing", 1]}}', prefix=prefix)
    assert (response.status_code, response.json()) == (200, {"id": attempt.job_id, "state": "Completed"})
    assert state_of(world, attempt.job_id) is JobState.COMPLETED
    unknown = uuid4()
    said = {refusal(post(unknown, prefix=prefix).content)}
    for action in ("complete", "fail", "heartbeat"):
        body = b'{"error": "late"}' if action == "fail" else b"{}"
        response = post(token, action, body, prefix=prefix)
        assert response.status_code == 404
        said.add(refusal(response.content))
    assert len(said) == 1, "an unknown id and a used one look the same"

    attempt, token = parked(world, max_attempts=5)
    response = post(token, "fail", '{"error": "declined, näturally"}'.encode(), prefix=prefix)
    assert (response.status_code, response.json()) == (200, {"id": attempt.job_id, "state": "Failed"})
    (row,) = rows("SELECT state::text, errors FROM awa.jobs WHERE id = %s", attempt.job_id)
    entry = json.loads(row["errors"][-1])
    assert (row["state"], entry["error"], len(row["errors"])) == ("failed", "declined, näturally", 1)


def test_an_error_may_be_empty_and_a_payload_of_a_megabyte_is_taken(world: World) -> None:
    attempt, token = parked(world)
    assert post(token, "fail", b'{"error": ""}').status_code == 200
    attempt, token = parked(world)
    body = json.dumps({"payload": {"pages": ["x" * 1023] * 1024}}).encode()
    assert len(body) > 1024 * 1024
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=1000):
        assert post(token, body=body).status_code == 200
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


def test_a_handler_that_still_runs_can_be_answered_but_not_prolonged(world: World) -> None:
    attempt, token = registered(world)
    assert post(token, "heartbeat").status_code == 404
    assert post(token).json() == {"id": attempt.job_id, "state": "Completed"}
    settlement = world.end([attempt])
    assert not settlement.completed, "what the handler says afterwards is not heard"


def test_a_heartbeat_sets_the_time_from_now_and_an_hour_without_one(world: World) -> None:
    attempt, token = parked(world)
    until = "SELECT extract(epoch FROM callback_timeout_at - now()) AS seconds FROM awa.jobs WHERE id = %s"
    for body, seconds in ((heartbeat("120.5"), 120.5), (b"{}", 3600), (heartbeat("0"), 0)):
        assert post(token, "heartbeat", body).status_code == 200
        (row,) = rows(until, attempt.job_id)
        assert seconds - 20 < row["seconds"] <= seconds
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


def test_each_secret_is_good_while_one_is_being_replaced(world: World) -> None:
    for secret in (SECRET, OLD_SECRET):
        _, token = parked(world)
        assert post(token, headers=signed(token, secret)).status_code == 200


def test_where_unsigned_calls_are_allowed_a_signature_is_not_looked_at(world: World) -> None:
    with override_settings(AWA={"CALLBACK_UNSIGNED": True}):
        for headers in ({}, {SIGNATURE_HEADER: "anything"}):
            _, token = parked(world)
            assert post(token, headers=headers).status_code == 200


# At the same time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/awa", "/async"])
def test_of_two_answers_at_the_same_time_one_is_taken_and_the_other_finds_nobody(
    world: World, prefix: str
) -> None:
    ready = threading.Barrier(2)

    def call(token: UUID) -> int:
        try:
            ready.wait(60)
            status: int = post(token, prefix=prefix).status_code
            return status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as threads:
        for _ in range(5):
            attempt, token = parked(world)
            assert sorted(threads.map(call, [token, token])) == [200, 404]
            assert state_of(world, attempt.job_id) is JobState.COMPLETED


def test_an_answer_waits_for_one_that_is_not_decided_and_counts_if_that_one_is_undone(world: World) -> None:
    attempt, token = parked(world)
    done: list[int] = []

    def call() -> None:
        done.append(post(token).status_code)
        connections.close_all()

    other = threading.Thread(target=call)
    with undone():
        callbacks.fail(token, "no")
        other.start()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        wait_until(lambda: world.connection.execute(waiting).fetchone() == (1,))
        assert done == []
    other.join(60)
    assert done == [200]
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


def test_signals_and_follow_ups_are_those_of_any_outcome(world: World) -> None:
    seen = []

    @job(queue="q")
    def ship() -> None: ...

    @job(queue="q", kind="paid")
    def pay() -> None: ...

    @pay.on_completed
    def then(event: Any) -> Any:
        return ship.request()

    def hear(sender: object, **kwargs: object) -> None:
        seen.append(kwargs)

    signals.job_completed.connect(hear)
    try:
        _, token = parked(world, "paid")
        assert post(token).status_code == 200
        assert signals.outbox.wait_empty(30)
    finally:
        signals.job_completed.disconnect(hear)
    assert len(seen) == 1
    assert [row["kind"] for row in rows("SELECT kind FROM awa.jobs WHERE state = 'available'")] == ["ship"]


def test_a_follow_up_that_cannot_be_stored_undoes_the_answer_and_is_a_server_error(world: World) -> None:
    @job(queue="q", kind="paid")
    def pay() -> None: ...

    @pay.on_completed
    def then(event: Any) -> Any:
        raise RuntimeError("no stock")

    attempt, token = parked(world, "paid")
    client = Client(raise_request_exception=False)
    response = client.post(
        f"/awa/callbacks/{token}/complete", b"{}", content_type=JSON, headers=signed(token)
    )
    assert response.status_code == 500
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


def test_a_unique_key_that_was_taken_meanwhile_is_a_conflict(world: World) -> None:
    key, mask = b"k" * 16, "11110000"  # held until completed and for ever, but not while it waits
    attempt, token = parked(world, unique_key=key, unique_states=mask)
    world.enqueue(JobInsert(kind="k", args={}, queue="q", unique_key=key, unique_states=mask))
    holder = world.one("SELECT job_id FROM awa.job_unique_claims")
    response = post(token)
    assert response.status_code == 409
    assert "unique key" in refusal(response.content)
    assert str(holder) not in refusal(response.content)
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


# When it cannot ---------------------------------------------------------------------------------------------------


def test_without_a_secret_it_refuses_and_costs_no_query(world: World, django_assert_num_queries: Any) -> None:
    attempt, token = parked(world)
    with override_settings(AWA={}), django_assert_num_queries(0):
        response = post(token)
    assert (response.status_code, response["Retry-After"]) == (503, "60")
    assert refusal(response.content) == "this receiver is not set up"
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


def test_refusals_before_the_last_cost_no_query(world: World, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        for case in CASES:
            if case.status not in (200, 404):
                ask(case, uuid4(), "/awa/callbacks")


def test_read_only_refuses_whoever_can_sign(world: World, django_assert_num_queries: Any) -> None:
    attempt, token = parked(world)
    awa = {"CALLBACK_SECRETS": [SECRET.hex()], "READ_ONLY": True}
    with override_settings(AWA=awa), django_assert_num_queries(0):
        response = post(token)
        assert post(token, headers={}).status_code == 401
    assert (response.status_code, response["Retry-After"]) == (503, "60")
    assert "read-only" in refusal(response.content)
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


def test_a_database_that_takes_no_changes_makes_it_read_only(world: World) -> None:
    attempt, token = parked(world)
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        for action, body in (("complete", b"{}"), ("heartbeat", b"{}"), ("fail", b'{"error": "x"}')):
            response = post(token, action, body)
            assert response.status_code == 503
            assert "read-only" in refusal(response.content)
    finally:
        connection.close()
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
    assert post(token).status_code == 200


def test_a_job_that_another_transaction_holds_for_long_is_waited_for_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress, "statement", lambda subject, name: "SET LOCAL lock_timeout = '100ms'")
    attempt, token = parked(world)
    with world.connection.transaction(force_rollback=True):
        world.connection.execute("SELECT FROM awa.leases WHERE callback_id = %s FOR UPDATE", [token])
        response = post(token)
    assert (response.status_code, response["Retry-After"]) == (503, "10")
    assert refusal(response.content) == "somebody else is changing this job"
    assert post(token).json() == {"id": attempt.job_id, "state": "Completed"}


def test_how_long_it_waits_holds_for_its_own_transaction_only(world: World) -> None:
    _, token = parked(world)
    limits: list[str] = []

    def asked(*args: Any, **kwargs: Any) -> Any:
        limits.append(connection_limit())
        return found(*args, **kwargs)

    found = callbacks._found
    with mock.patch("awa_django.callbacks._found", asked):
        assert post(token).status_code == 200
    assert limits == ["10s"]
    assert connection_limit() == "0"


def test_a_deadlock_is_tried_again(world: World) -> None:
    attempt, token = parked(world)
    found = callbacks._found
    deadlock = psycopg.errors.DeadlockDetected("deadlock detected")
    with mock.patch("awa_django.callbacks._found", side_effect=[deadlock, mock.DEFAULT], wraps=found):
        assert post(token).status_code == 200
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


@pytest.mark.parametrize("prefix", ["/awa", "/async"])
def test_a_database_that_is_away_is_no_server_error_and_the_caller_may_come_again(
    world: World, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    attempt, token = parked(world)
    away = OperationalError("connection refused")
    with (
        override_settings(ADMINS=[("Ann", "ann@example.com")]),
        mock.patch("awa_django.callbacks.transaction.atomic", side_effect=away),
        caplog.at_level(logging.INFO),
    ):
        response = post(token, prefix=prefix)
    assert (response.status_code, response["Retry-After"]) == (503, "10")
    assert refusal(response.content) == "the database does not answer"
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("awa_django.callbacks", "WARNING")
    ]
    assert "connection refused" in caplog.text
    assert post(token, prefix=prefix).status_code == 200
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


def test_a_session_that_the_server_broke_off_is_the_same(world: World) -> None:
    _, token = parked(world)
    with connection.cursor() as cursor:
        pid = cursor.connection.info.backend_pid
    world.connection.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
    assert post(token).status_code == 503
    connection.close_if_unusable_or_obsolete()
    assert post(token).status_code == 200


def test_it_commits_by_itself_where_requests_are_atomic(world: World) -> None:
    with mock.patch.dict(connection.settings_dict, {"ATOMIC_REQUESTS": True}):
        for prefix in ("/awa", "/async"):
            attempt, token = parked(world)
            assert post(token, prefix=prefix).status_code == 200
            assert state_of(world, attempt.job_id) is JobState.COMPLETED


# The site around it -----------------------------------------------------------------------------------------------


def test_addresses_are_those_that_are_built(world: World) -> None:
    token = uuid4()
    for action in ("complete", "fail", "heartbeat"):
        names = {
            "awa_django:callback": build_callback_url("", "/awa/callbacks", str(token), action),
            "awa_receiver:callback": build_callback_url("", DEFAULT_PATH_PREFIX, str(token), action),
        }
        for name, path in names.items():
            assert reverse(name, args=[token, action]) == path


@pytest.mark.parametrize("append", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        "callbacks/{id}/complete/",
        "callbacks/{id}",
        "callbacks/{id}/",
        "callbacks/{id}/complete/twice",
        "callbacks/x",
    ],
)
def test_nothing_below_it_is_redirected_or_answered_by_another_page(path: str, append: bool) -> None:
    with override_settings(APPEND_SLASH=append):
        for prefix in ("/awa", "/api", "/async"):
            for method in ("POST", "GET"):
                response = Client().generic(method, f"{prefix}/{path.format(id=uuid4())}", b"")
                assert response.status_code == 404
                refusal(response.content)


def test_neither_a_login_nor_a_session_nor_a_token_against_forgery_is_needed(world: World) -> None:
    middleware = [
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    with override_settings(MIDDLEWARE=middleware):
        for prefix in ("/awa", "/async"):
            _, token = parked(world)
            response = post(token, prefix=prefix)
            assert response.status_code == 200
            assert not response.cookies
            assert post(token, "explode", prefix=prefix).status_code == 404


def test_a_project_may_mount_the_view_itself_with_a_decorator_around_it(world: World) -> None:
    _, token = parked(world)
    client = Client(enforce_csrf_checks=True)
    path = f"/hooks/{token}/complete"
    assert client.post(f"{path}?flood", b"{}", content_type=JSON, headers=signed(token)).status_code == 429
    assert client.post(path, b"{}", content_type=JSON, headers=signed(token)).status_code == 200


def test_a_body_that_middleware_has_read_is_read_again(world: World) -> None:
    def reads_first(get_response: Callable[..., Any]) -> Callable[..., Any]:
        def middleware(request: Any) -> Any:
            assert request.body
            return get_response(request)

        return middleware

    _, token = parked(world)
    with (
        mock.patch("tests.receiving_urls.reads_first", reads_first, create=True),
        override_settings(MIDDLEWARE=["tests.receiving_urls.reads_first"]),
    ):
        assert post(token, "fail", b'{"error": "x"}').status_code == 200


# How bodies arrive ------------------------------------------------------------------------------------------------


class Body(io.RawIOBase):
    """A body on its way, which says how much of it was asked for. With ``fails`` the connection breaks after it."""

    def __init__(self, content: bytes, *, fails: bool = False) -> None:
        self.left = content
        self.fails = fails
        self.given = 0

    def read(self, size: int = -1, /) -> bytes:
        assert size > 0, "a body of any length is not to be read at once"
        part, self.left = self.left[:size], self.left[size:]
        if not part and self.fails:
            raise ConnectionResetError("gone")
        self.given += len(part)
        return part


def wsgi(token: UUID, body: Body, *, action: str = "complete", **environ: Any) -> tuple[int, bytes]:
    """The answer of the site as a WSGI server gets it; no length is declared."""
    started: list[str] = []
    content = WSGIHandler()(
        {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": f"/awa/callbacks/{token}/{action}",
            "SERVER_NAME": "testserver",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_TYPE": JSON,
            "HTTP_X_AWA_SIGNATURE": sign(str(token), SECRET),
            "wsgi.url_scheme": "http",
            "wsgi.input": body,
            "wsgi.errors": io.StringIO(),
            **environ,
        },
        lambda status, headers, *rest: started.append(status),  # type: ignore[arg-type, return-value]
    )
    answer = b"".join(content)
    content.close()  # type: ignore[attr-defined]
    return int(started[0].split()[0]), answer


def test_a_body_in_chunks_is_read_where_the_server_ends_it(world: World) -> None:
    attempt, token = parked(world)
    chunked = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    assert wsgi(token, Body(padded(100_000)), action="heartbeat", **chunked)[0] == 200
    big = Body(padded(5 * receiving.MIB))
    assert wsgi(token, big, **chunked)[0] == 413
    assert big.given <= 2 * receiving.MIB + 64 * 1024, "no more is read than decides"
    status, content = wsgi(token, Body(b"{}"), HTTP_TRANSFER_ENCODING="chunked")
    assert (status, "send it with a Content-Length" in refusal(content)) == (400, True), (
        "nobody knows where it ends"
    )
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


def test_of_a_body_that_declares_too_much_nothing_is_read(world: World) -> None:
    _, token = parked(world)
    body = Body(padded(3 * receiving.MIB))
    assert wsgi(token, body, CONTENT_LENGTH=str(3 * receiving.MIB))[0] == 413
    assert wsgi(token, body, CONTENT_LENGTH=str(3 * receiving.MIB), HTTP_X_AWA_SIGNATURE="x")[0] == 401
    assert body.given == 0


def test_a_body_that_does_not_arrive_whole_answers_nothing(world: World) -> None:
    attempt, token = parked(world)
    for body in (Body(b'{"payload"', fails=True), Body(b'{"payload"')):
        status, content = wsgi(token, body, CONTENT_LENGTH="500")
        assert status == 400
        refusal(content)

    class InvalidChunk(Exception):
        """As a server has it."""

    body = Body(b"{}")
    with mock.patch.object(body, "read", side_effect=InvalidChunk):
        chunked = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
        assert wsgi(token, body, **chunked)[0] == 400
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


def asgi(token: UUID, parts: list[bytes], prefix: str, headers: dict[str, str]) -> int:
    """The status that an ASGI server sends for a body without a declared length."""

    async def call() -> int:
        sent: list[dict[str, Any]] = []
        coming = [
            {"type": "http.request", "body": part, "more_body": number < len(parts)}
            for number, part in enumerate(parts, 1)
        ]
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if coming:
                return coming.pop(0)
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": f"{prefix}/callbacks/{token}/complete",
            "query_string": b"",
            "headers": [
                (name.lower().encode(), value.encode())
                for name, value in {"Host": "testserver", "Content-Type": JSON, **headers}.items()
            ],
        }
        await get_asgi_application()(scope, receive, send)  # type: ignore[arg-type]
        status: int = sent[0]["status"]
        return status

    return asyncio.run(call())


@pytest.mark.parametrize("prefix", ["/awa", "/async"])
def test_under_an_async_server_the_limit_and_the_signature_count_the_same(world: World, prefix: str) -> None:
    attempt, token = parked(world)
    big = [b'{"pad": "', *[b"x" * receiving.MIB] * 3, b'"}']
    assert asgi(token, big, prefix, signed(token)) == 413
    assert asgi(token, [b"{", b"}"], prefix, {}) == 401
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
    assert asgi(token, [b"{", b"}"], prefix, signed(token)) == 200
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


def test_what_the_async_view_refuses_takes_no_thread(world: World) -> None:
    with mock.patch("awa_django.views.ingress.sync_to_async") as threads:
        for case in (*receiving.SIGNATURES, *receiving.TYPES, *receiving.ROUTES):
            if case.status not in (200, 404):
                ask(case, uuid4(), "/async/callbacks")
    threads.assert_not_called()


# What nobody gets to see ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/awa", "/async"])
@pytest.mark.parametrize("debug", [True, False])
def test_the_signature_is_in_no_log_and_no_report_of_an_error(
    world: World, debug: bool, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, token = parked(world)
    signature = sign(str(token), SECRET)
    secret = b'{"payload": {"iban": "NL91ABNA"}}'
    mailer = AdminEmailHandler(include_html=True)
    logging.getLogger("django.request").addHandler(mailer)
    admins = [("Ann", "ann@example.com")]
    client = Client(raise_request_exception=False)
    path = f"{prefix}/callbacks/{token}/complete"
    try:
        with (
            override_settings(DEBUG=debug, ADMINS=admins),
            mock.patch("awa_django.callbacks._found", side_effect=ZeroDivisionError("boom")),
            caplog.at_level(logging.DEBUG),
        ):
            response = client.post(path, secret, content_type=JSON, headers=signed(token))
            assert response.status_code == 500
            client.post(path, secret, content_type=JSON, headers={SIGNATURE_HEADER: signature[::-1]})
            client.post(path, b"{", content_type=JSON, headers=signed(token))
    finally:
        logging.getLogger("django.request").removeHandler(mailer)
    assert len(mail.outbox) == (1 if debug else 2), "the project's own handler mails as well"
    shown = [response.content.decode(), caplog.text]
    shown += [repr(record.__dict__) for record in caplog.records]
    for report in mail.outbox:
        assert "boom" in report.body
        shown += [str(report.body), *(str(content) for content, _ in report.alternatives)]
    for text in shown:
        for hidden in (signature, signature[::-1], SECRET.hex(), repr(SECRET)):
            assert hidden not in text
    if not debug:
        assert "NL91ABNA" not in "".join(shown)


def test_settings_that_cannot_be_read_show_neither_signature_nor_secret() -> None:
    token = uuid4()
    awa = {"CALLBACK_SECRETS": [SECRET.hex()], "POLL_INTERVAL": "soon"}
    with override_settings(DEBUG=True, AWA=awa):
        client = Client(raise_request_exception=False)
        response = client.post(
            f"/awa/callbacks/{token}/complete", b"{}", content_type=JSON, headers=signed(token)
        )
    assert response.status_code == 500
    assert sign(str(token), SECRET).encode() not in response.content


def test_each_request_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    attempt, token = parked(world)
    with caplog.at_level(logging.INFO):
        post(token, headers={})
        post(token, "explode\r\nforged", b"")
        post(token)
        post(token)
    said = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert {(name, level) for name, level, _ in said} == {("awa_django.callbacks", "INFO")}
    assert len(said) == 4
    assert "refused with 401" in said[0][2]
    assert f"job {attempt.job_id} is completed" in said[2][2]
    assert "refused with 404: callback not found" in said[3][2]
    assert not [message for *_, message in said if "\n" in message or "\r" in message]


# The check --------------------------------------------------------------------------------------------------------


def ids(found: list[checks.CheckMessage]) -> list[str | None]:
    return [message.id for message in found]


@pytest.mark.parametrize("patterns", ["awa_django.urls", "tests.receiving_urls", "tests.test_ingress"])
def test_a_receiver_without_a_secret_is_an_error(patterns: str) -> None:
    with override_settings(ROOT_URLCONF=patterns, AWA={}):
        clear_url_caches()
        (fault,) = check_receiver()
        assert fault.id == "awa.E005"
        assert "openssl rand" in str(fault.hint)
        with override_settings(AWA={"CALLBACK_UNSIGNED": True}):
            assert check_receiver() == []
        with override_settings(AWA={"CALLBACK_SECRETS": [SECRET.hex()]}):
            assert check_receiver() == []
        with override_settings(AWA={"CALLBACK_SECRETS": 7}):
            assert check_receiver() == [], "awa.E001 says so"


def test_without_the_receiver_no_secret_is_needed() -> None:
    with override_settings(ROOT_URLCONF="tests.urls", AWA={}):
        assert check_receiver() == []
    with override_settings(AWA={}, ROOT_URLCONF=None):
        assert check_receiver() == []


def test_a_permission_that_means_nothing_is_a_warning() -> None:
    awa = {"CALLBACK_SECRETS": [SECRET.hex()], "CALLBACK_UNSIGNED": True}
    with override_settings(AWA=awa):
        assert ids(check_receiver()) == ["awa.W007"]
    assert check_receiver in checks.registry.registry.get_checks()


def _patterns() -> list[Any]:
    from django.urls import path

    from awa_django import views
    from tests.receiving_urls import limited

    return [path("hooks/<str:callback_id>/<str:action>", limited(views.acallback))]


urlpatterns = _patterns()
