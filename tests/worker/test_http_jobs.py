"""Jobs that functions run over HTTP, through a real worker and a real server (contract: api/http_worker)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import connection, connections
from django.test import override_settings

import awa_django
from awa_django import CallbackNotFound, TerminalError, callbacks, job, operations
from awa_django.http_client import HttpCall, HttpReply
from awa_django.http_functions import verify_dispatch
from awa_django.http_jobs import HttpJobKind, declare_from_settings, http_job
from awa_django.outcomes import Failed
from awa_django.redaction import MASK
from awa_django.registry import registry
from awa_django.signatures import verify
from tests.functions import Answer, Asked, Functions, serving
from tests.inprocess import working
from tests.worker.calling import Database, Told, database, declared, first_line, queue_storage, told
from tests.workers import wait_until

__all__ = ["database", "declared", "queue_storage", "told"]

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = b"\x07" * 32


@pytest.fixture(scope="module")
def server() -> Iterator[Functions]:
    with serving() as functions:
        yield functions


@pytest.fixture
def functions(server: Functions) -> Functions:
    server.tell(202)
    return server


def outcome(database: Database, kind: HttpJobKind, *states: str, **args: Any) -> dict[str, Any]:
    """Run one job of a kind until it is in one of these states; its row."""
    with database.working():
        return database.wait_for(kind.enqueue(**args).id, *states)


# The request ------------------------------------------------------------------------------------------------------


def test_an_async_job_is_posted_with_seven_members_and_a_signature_and_ended_by_its_callback(
    database: Database, functions: Functions
) -> None:
    resize = http_job(
        "resize_image",
        url=f"{functions.url}/resize?size=big",
        headers={"X-Api-Key": "key-of-the-shop"},
        secret=SECRET,
        callback_base_url="https://x/",
        max_attempts=7,
    )
    with database.working():
        waiting = resize.enqueue(image={"id": 5, "name": "Café ☕"}, ctx=[1, 2.5, None])
        asked = functions.next()
        row = database.wait_for(waiting.id, "waiting_external")
        assert (row["attempt"], row["errors"] or []) == (1, [])
        token = asked.json["callback_id"]
        assert asked.json == {
            "job_id": waiting.id,
            "kind": "resize_image",
            "args": {"image": {"id": 5, "name": "Café ☕"}, "ctx": [1, 2.5, None]},
            "attempt": 1,
            "max_attempts": 7,
            "callback_id": token,
            "callback_url": f"https://x/api/callbacks/{token}/complete",
        }
        assert str(database.held(waiting.id)["callback_id"]) == token
        signature = asked.header("X-Awa-Signature")
        assert signature is not None
        assert verify(token, signature, [SECRET])
        dispatched = verify_dispatch(dict(asked.headers), asked.body, [SECRET])
        assert (dispatched.job_id, dispatched.args) == (waiting.id, waiting.args)
        callbacks.complete(token)
        assert database.job(waiting.id)["state"] == "completed"
    assert functions.none_came()


def test_the_bytes_of_a_request_are_those_that_functions_know(
    queue_storage: Database, functions: Functions
) -> None:
    resize = http_job(
        "resize_image", url=f"{functions.url}/resize", headers={"X-Api-Key": "k"}, secret=SECRET
    )
    with queue_storage.working():
        job_id = resize.enqueue(name="é", n=1.0).id
        asked = functions.next()
        queue_storage.wait_for(job_id, "waiting_external")
    token = asked.json["callback_id"]
    assert asked.body.decode() == (
        f'{{"job_id":{job_id},"kind":"resize_image","args":{{"n":1.0,"name":"é"}},"attempt":1,"max_attempts":25,'
        f'"callback_id":"{token}"}}'
    )
    assert asked.path == "/resize"
    host = functions.url.removeprefix("http://")
    assert {name.lower(): value for name, value in asked.headers} == {
        "host": host,
        "accept": "*/*",
        "content-type": "application/json",
        "user-agent": f"awa-django/{awa_django.__version__}",
        "x-api-key": "k",
        "x-awa-signature": asked.header("X-Awa-Signature"),
        "content-length": str(len(asked.body)),
    }


def test_without_base_url_and_secret_there_are_six_members_and_no_signature(
    queue_storage: Database, functions: Functions
) -> None:
    resize = http_job("resize_image", url=functions.url)
    outcome(queue_storage, resize, "waiting_external")
    asked = functions.next()
    assert set(asked.json) == {"job_id", "kind", "args", "attempt", "max_attempts", "callback_id"}
    assert asked.header("X-Awa-Signature") is None
    assert asked.path == "/"


@override_settings(AWA={"CALLBACK_SECRETS": ["07" * 32, "08" * 32]})
def test_the_projects_first_secret_signs_what_names_none(
    queue_storage: Database, functions: Functions
) -> None:
    outcome(queue_storage, http_job("resize_image", url=functions.url), "waiting_external")
    asked = functions.next()
    assert verify(asked.json["callback_id"], asked.header("X-Awa-Signature") or "", [SECRET])


def test_arguments_of_any_shape_arrive_as_another_client_stored_them(
    queue_storage: Database, functions: Functions
) -> None:
    http_job("shapes", url=functions.url, mode="sync", response_timeout=5)
    shapes: list[Any] = [None, [], "text", 7, {"kwargs": {"self": 1}}]
    with queue_storage.working({"default": 1}):
        for shape in shapes:
            queue_storage.rows(
                "SELECT id FROM awa.insert_job_compat('shapes', p_args => %s::jsonb)", json.dumps(shape)
            )
        arrived = [functions.next().json["args"] for _ in shapes]
    assert arrived == shapes


def test_a_sync_job_is_posted_with_five_members_and_completed_by_the_response(
    database: Database, functions: Functions
) -> None:
    resize = http_job("resize_image", url=functions.url, mode="sync", response_timeout=5)
    functions.tell(204)
    row = outcome(database, resize, "completed", image=5)
    asked = functions.next()
    assert set(asked.json) == {"job_id", "kind", "args", "attempt", "max_attempts"}
    assert asked.header("X-Awa-Signature") is None
    assert (row["attempt"], row["callback_id"], row["callback_timeout_at"]) == (1, None, None)


def test_follow_ups_see_the_outcome_of_a_function(
    queue_storage: Database, functions: Functions, told: Told
) -> None:
    resize = http_job("resize_image", url=functions.url, mode="sync", response_timeout=5)

    @job
    def caption(image: int) -> None:
        told(image)

    resize.on_completed(lambda done: caption.request(image=done.args["image"]))
    functions.tell(200, b'{"width": 100}')
    with queue_storage.working():
        resize.enqueue(image=5)
        assert told.next() == 5


# What a response means ----------------------------------------------------------------------------------------------

RESPONSES: dict[str, tuple[Answer, str, str]] = {
    "busy": (
        Answer(503, b"out of memory", {"Retry-After": "1"}),
        "retryable",
        "function returned 503 Service Unavailable: out of memory",
    ),
    "odd": (Answer(599, b"?"), "retryable", "function returned 599: ?"),
    "missing": (
        Answer(404, b"no such function"),
        "failed",
        "function returned 404 Not Found: no such function",
    ),
    "throttled": (
        Answer(429, b"slow down", {"Retry-After": "1"}),
        "failed",
        "function returned 429 Too Many Requests: slow down",
    ),
    "moved": (
        Answer(302, b"moved", {"Location": "http://user:pw@metadata.internal/latest?key=1"}),
        "failed",
        "function returned 302 Found: redirects are not followed, this one leads to metadata.internal",
    ),
    "turned": (
        Answer(308, b"moved", {"Location": "/other"}),
        "failed",
        "function returned 308 Permanent Redirect: redirects are not followed, this one leads to the same host",
    ),
}


def test_each_response_ends_its_attempt_as_every_client_has_it(
    database: Database, functions: Functions
) -> None:
    kinds: dict[HttpJobKind, tuple[Answer, str, str]] = {}
    for name, response in RESPONSES.items():
        url = functions.tell_below(f"/{name}", response[0])
        kinds[http_job(f"{name} async", url=url)] = response
        kinds[http_job(f"{name} sync", url=url, mode="sync", response_timeout=5)] = response
    with database.working():
        jobs = {kind: kind.enqueue().id for kind in kinds}
        rows = {kind: database.wait_for(job_id, "failed", "retryable") for kind, job_id in jobs.items()}
    for kind, (_, state, text) in kinds.items():
        row = rows[kind]
        assert (row["state"], row["attempt"], row["max_attempts"]) == (state, 1, 25), kind
        [entry] = row["errors"]
        assert (entry["error"], entry["attempt"], entry.get("terminal")) == (
            text,
            1,
            True if state == "failed" else None,
        )
    asked = [functions.next() for _ in kinds]
    assert functions.none_came(), "no redirect was followed, nothing was sent twice"
    tokens = [request.json["callback_id"] for request in asked if "callback_id" in request.json]
    assert len(tokens) == len(kinds) / 2
    with pytest.raises(CallbackNotFound):
        callbacks.complete(tokens[0])


def test_a_function_that_asks_for_time_gets_it_where_the_kind_says_so(
    queue_storage: Database, functions: Functions
) -> None:
    functions.tell(429, b"slow down", headers={"Retry-After": "3600"})
    silent = functions.tell_below("/silent", Answer(408, b"too slow"))
    patient = http_job("patient", url=functions.url, retry_throttled=True)
    usual = http_job("usual", url=silent, retry_throttled=True)
    last = http_job("last", url=functions.url, retry_throttled=True, max_attempts=1)
    with queue_storage.working():
        ids = [kind.enqueue().id for kind in (patient, usual, last)]
        row = queue_storage.wait_for(ids[0], "retryable")
        assert not row["errors"]
        assert timedelta(minutes=59) < row["run_at"] - row["created_at"] < timedelta(minutes=61)
        row = queue_storage.wait_for(ids[1], "retryable")
        assert first_line(row) == "function returned 408 Request Timeout: too slow"
        assert row["run_at"] - row["created_at"] < timedelta(minutes=1)
        row = queue_storage.wait_for(ids[2], "failed")
        assert first_line(row) == "function returned 429 Too Many Requests: slow down"


def test_of_an_error_page_little_is_kept_and_nothing_that_was_sent_in_confidence(
    queue_storage: Database, functions: Functions
) -> None:
    huge = functions.tell_below("/huge", Answer(400, b"\x1b[31m\0" + "é".encode() * 1_500_000))
    echo = Answer(400)

    def repeat(asked: Asked) -> None:
        echo.body = repr((asked.path, asked.headers)).encode() + b" abcdefgh-ijkl"

    echo.before = repeat
    long_key = "key-of-the-shop-" * 4
    query = "code=azure-function-key&v=2&pin=4711%2F4712%2F4713"
    functions.tell_below(f"/echo?{query}", echo)
    # One that quotes a value alone, with the end of the page in the middle of a header's.
    quotes = Answer(400, b"azure-function-key 4711/4712/4713 ".ljust(4040, b".") + long_key.encode())
    functions.tell_below(f"/quotes?{query}", quotes)
    resize = http_job("resize_image", url=huge)
    confide = http_job(
        "confide",
        url=f"{functions.url}/echo?{query}".replace("//", "//shop:s3cret-word@", 1),
        headers={"X-Api-Key": "key-of-the-shop", "X-Token": "Bearer abcdefgh-ijkl"},
        secret=SECRET,
    )
    quote = http_job("quote", url=f"{functions.url}/quotes?{query}", headers={"X-Api-Key": long_key})
    with queue_storage.working({"default": 1}):
        ids = [kind.enqueue().id for kind in (resize, confide, quote)]
        entry = queue_storage.wait_for(ids[0], "failed")["errors"][0]
        text = queue_storage.wait_for(ids[1], "failed")["errors"][0]["error"]
        quoted = queue_storage.wait_for(ids[2], "failed")["errors"][0]["error"]
    assert 4000 < len(json.dumps(entry, ensure_ascii=False).encode()) < 5 * 1024
    assert "\x1b" not in entry["error"]
    functions.next()
    asked = functions.next()
    assert asked.header("Authorization") == "Basic c2hvcDpzM2NyZXQtd29yZA=="
    signature = asked.header("X-Awa-Signature")
    assert signature is not None
    for secret in (
        "azure-function-key",
        "key-of-the-shop",
        "abcdefgh-ijkl",
        "c2hvcDpzM2NyZXQtd29yZA==",
        signature,
    ):
        assert secret not in text
    assert "X-Api-Key" in text
    assert "v=2" not in text
    assert quoted.startswith(f"function returned 400 Bad Request: {MASK} {MASK} ..")
    assert "key-of" not in quoted


# No response -------------------------------------------------------------------------------------------------------


def test_without_a_whole_response_in_time_the_job_is_retried(
    queue_storage: Database, functions: Functions
) -> None:
    over = threading.Event()
    slowly = {"trickle": lambda: not over.wait(0.05)}  # each byte comes in time, the whole does not
    silent = functions.tell_below("/silent", Answer(before=lambda asked: over.wait(10) and None))
    error = functions.tell_below("/error", Answer(500, **slowly))
    success = functions.tell_below("/success", Answer(200, **slowly))
    broken = functions.tell_below("/broken", Answer(200, b"half of it", cut=True))
    late = f"no response from {functions.url}: TimeoutError: not done within 0.4 s"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        kinds = {
            http_job("silent", url=silent, request_timeout=0.4): late,
            http_job("error", url=error, request_timeout=0.4): late,
            http_job("silent sync", url=silent, mode="sync", response_timeout=0.4): late,
            http_job("success", url=success, mode="sync", response_timeout=0.4): late,
            http_job("broken", url=broken, mode="sync", response_timeout=5): (
                f"no response from {functions.url}: IncompleteRead"
            ),
            http_job("refused", url=f"{nobody}/path?code=secret-code"): (
                f"no response from {nobody}: ConnectionRefusedError: "
            ),
        }
        try:
            with queue_storage.working({"default": 6}):
                jobs = {kind: kind.enqueue().id for kind in kinds}
                rows = {kind: queue_storage.wait_for(job_id, "retryable") for kind, job_id in jobs.items()}
        finally:
            over.set()
    for kind, words in kinds.items():
        assert rows[kind]["errors"][0]["error"].startswith(words)


def test_a_cancelled_job_gives_its_request_up(queue_storage: Database, functions: Functions) -> None:
    resize = http_job("resize_image", url=functions.url, mode="sync", response_timeout=60)
    over, gone = threading.Event(), threading.Event()

    def trickle() -> bool:
        return not over.wait(0.02)

    functions.tell(200, trickle=trickle)
    ended: list[Any] = []
    with queue_storage.working({"default": 1}, heartbeat_interval=timedelta(seconds=0.2)) as worker:
        running = resize.enqueue()
        functions.next()
        [flight] = worker.runtime.flights.all()
        finish = worker.runtime.executor._finish

        def note(flight: Any, outcome: Any, *, returned: bool = True) -> None:
            ended.append(outcome)
            finish(flight, outcome, returned=returned)
            gone.set()

        worker.runtime.executor._finish = note  # type: ignore[method-assign]
        operations.cancel(running.id)
        try:
            assert gone.wait(30), "the request was given up, though the function never ends"
        finally:
            over.set()
        assert flight.cancelled
    assert isinstance(ended[0], Failed)
    assert "RequestCancelled" in ended[0].error
    assert queue_storage.job(running.id)["state"] == "cancelled"


def test_a_stopping_worker_lets_a_request_end(queue_storage: Database, functions: Functions) -> None:
    resize = http_job("resize_image", url=functions.url, mode="sync", response_timeout=60)
    go_on = threading.Event()
    functions.tell(200, before=lambda asked: go_on.wait(60) and None)
    with working({"default": 1}, drain_timeout=timedelta(seconds=20)) as worker:
        running = resize.enqueue()
        functions.next()
        worker.runtime.stop_claiming()
        threading.Timer(0.3, go_on.set).start()
        assert worker.runtime.drained(30)
    assert queue_storage.job(running.id)["state"] == "completed"


# The function is faster than its own answer -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 500])
def test_a_function_that_calls_back_before_it_answers_has_ended_the_job_once(
    database: Database, functions: Functions, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    resize = http_job("resize_image", url=functions.url)
    events: list[str] = []
    resize.on_completed(lambda done: events.append("completed"))
    resize.on_waiting(lambda done: events.append("waiting"))
    resize.on_retried(lambda done: events.append("retried"))

    def call_back(asked: Asked) -> None:
        callbacks.complete(asked.json["callback_id"])
        connections.close_all()

    functions.tell(status, b"late", before=call_back)
    with database.working() as worker:
        job_id = resize.enqueue().id
        database.wait_for(job_id, "completed")
        wait_until(lambda: not worker.runtime.flights.all(), what="the late answer")
        row = database.job(job_id)
    assert (row["state"], row["attempt"], row["errors"] or []) == ("completed", 1, [])
    assert events == ["completed"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# Declaring in the settings, and clients -----------------------------------------------------------------------------


def test_kinds_of_the_settings_follow_them(queue_storage: Database, functions: Functions) -> None:
    def awa(path: str) -> dict[str, Any]:
        return {
            "HTTP_JOBS": {
                "resize_image": {"url": f"{functions.url}{path}", "queue": "default", "priority": 1}
            }
        }

    with override_settings(AWA=awa("/before")):
        from awa_django.conf import get_settings

        [resize] = declare_from_settings(get_settings())
        assert registry["resize_image"] is resize
        with queue_storage.working():
            assert resize.request(x=1).priority == 1
            resize.enqueue(x=1)
            assert functions.next().path == "/before"
            with override_settings(AWA=awa("/after")):
                resize.enqueue(x=1)
                assert functions.next().path == "/after"


def test_another_client_sends_the_request_without_a_connection_of_its_thread(
    queue_storage: Database, told: Told
) -> None:
    def send(call: HttpCall) -> HttpReply:
        opened = [
            each.alias for each in connections.all(initialized_only=True) if each.connection is not None
        ]
        told((call, call.is_cancelled(), opened))
        return HttpReply(201)

    @job
    def touch() -> None:
        connection.ensure_connection()

    resize = http_job("resize_image", url="https://functions.example/resize", client=send, request_timeout=3)
    persistent = mock.patch.dict(connection.settings_dict, CONN_MAX_AGE=None)
    with persistent, queue_storage.working({"default": 1}):
        touch.enqueue()  # leaves its connection open in the only thread
        job_id = resize.enqueue(x=1).id
        call, cancelled, opened = told.next()
        queue_storage.wait_for(job_id, "waiting_external")
    assert (opened, cancelled) == ([], False)
    assert (call.url, call.timeout, call.whole) == ("https://functions.example/resize", 3.0, False)
    assert json.loads(call.body)["args"] == {"x": 1}


def _broken(error: Exception) -> Callable[[HttpCall], HttpReply]:
    def send(call: HttpCall) -> HttpReply:
        raise error

    return send


def test_what_another_client_does_is_recorded(queue_storage: Database) -> None:
    kinds: dict[HttpJobKind, tuple[str, str]] = {}
    for name, client, state, words in (
        (
            "raises",
            _broken(LookupError("no route")),
            "retryable",
            "no response from https://f.example: LookupError:",
        ),
        ("decides", _broken(TerminalError("no such tenant")), "failed", "TerminalError: no such tenant"),
        (
            "answers",
            lambda call: "done",
            "retryable",
            "ConfigurationError: the client of kind 'answers' returned str",
        ),
        (
            "nowhere",
            "nowhere.send",
            "retryable",
            "ConfigurationError: the client 'nowhere.send' cannot be imported",
        ),
    ):
        kinds[http_job(name, url="https://f.example/a", client=client)] = (state, words)  # type: ignore[arg-type]
    with queue_storage.working():
        jobs = {kind: kind.enqueue().id for kind in kinds}
        for kind, (state, words) in kinds.items():
            assert first_line(queue_storage.wait_for(jobs[kind], state)).startswith(words)
