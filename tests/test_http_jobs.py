"""Declaring jobs that functions run, the client that asks them, and what a function does with a request."""

from __future__ import annotations

import json
import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django.urls import include, path

from awa_django import ConfigurationError, InvalidJob
from awa_django.callbacks import MAX_TIMEOUT
from awa_django.checks import check_http_jobs, check_jobs
from awa_django.conf import get_settings, setting_faults
from awa_django.http_client import HttpCall, HttpClient, HttpReply, RequestCancelled
from awa_django.http_functions import DispatchRefused, read_dispatch, verify_dispatch
from awa_django.http_jobs import HttpJobKind, callback_prefix, declare_from_settings, http_job
from awa_django.http_options import MAX_CALLBACK_TIMEOUT
from awa_django.outcomes import Completed, Snooze
from awa_django.registry import job, registry
from awa_django.signatures import sign
from awa_django.unreadable import Unreadable
from tests.functions import Answer, Asked, serving

SECRET, OTHER = b"\x07" * 32, b"\x08" * 32
CERTIFICATE = Path(__file__).parent / "functions.pem"


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


# Declaring --------------------------------------------------------------------------------------------------------


def test_a_kind_that_a_function_runs_is_enqueued_as_any_other() -> None:
    resize = http_job(
        "resize_image", url="https://f.example", queue="images", max_attempts=3, owner="pictures"
    )
    assert registry["resize_image"] is resize
    assert resize.request(image={"id": 5}, self=1).args == {"image": {"id": 5}, "self": 1}
    stored = resize.using(priority=1, queue="now").request({"image": 5})
    assert (stored.kind, stored.queue, stored.priority, stored.max_attempts) == ("resize_image", "now", 1, 3)
    assert resize.name == f"http_job('resize_image') of {__name__}"
    assert (resize.descriptor.owner, resize.is_async, resize.takes_context) == ("pictures", False, True)
    resize.prepare()
    with pytest.raises(InvalidJob, match=r"args\.when"):
        resize.request(when={1, 2})


def test_a_class_of_arguments_names_the_kind_and_checks_them() -> None:
    @dataclass
    class ResizeImage:
        image: int
        width: int = 100

    resize = http_job(args=ResizeImage, url="https://f.example")
    assert resize.kind == "resize_image"
    assert resize.request(image=5).args == resize.request(ResizeImage(5)).args == {"image": 5, "width": 100}
    resize.prepare()
    with pytest.raises(InvalidJob, match="ResizeImage"):
        resize.request(picture=5)


@override_settings(
    AWA={
        "HTTP_JOBS": {
            "reports.monthly": {
                "url": "http://f.example:8080/r",
                "mode": "sync",
                "response_timeout": timedelta(minutes=2),
                "queue": "slow",
                "tags": ["report"],
                "description": "Made by the finance people.",
            },
            "plain": {"url": "https://f.example", "secret": "07" * 32},
        }
    }
)
def test_the_settings_declare_kinds_with_the_defaults_of_every_client() -> None:
    report, plain = declare_from_settings(get_settings())
    assert registry["reports.monthly"] is report
    assert report.name == "AWA['HTTP_JOBS']['reports.monthly']"
    assert (report.http.is_sync, report.http.timeout) == (True, timedelta(minutes=2))
    stored = report.request(year=2026)
    assert (stored.queue, stored.tags, stored.max_attempts) == ("slow", ("report",), 25)
    assert report.descriptor.description == "Made by the finance people."
    http = plain.http
    assert (http.mode, http.request_timeout, http.callback_timeout) == (
        "async",
        timedelta(seconds=30),
        timedelta(hours=1),
    )
    assert (http.secret, http.headers, http.callback_base_url, http.retry_throttled) == (
        SECRET,
        {},
        None,
        False,
    )
    declare_from_settings(get_settings())  # as after a reload


@override_settings(AWA={"HTTP_JOBS": {"resize_image": {"url": "https://f.example"}}})
def test_two_declarations_of_one_kind_are_refused_and_both_named() -> None:
    @job
    def resize_image() -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"resize_image.*<locals>.*AWA\['HTTP_JOBS'\]\['resize_image'\]"
    ):
        declare_from_settings(get_settings())


def test_kinds_of_the_settings_are_there_when_django_has_started() -> None:
    code = (
        "import django; from django.conf import settings; "
        "awa = {'HTTP_JOBS': {'resize': {'url': 'https://f.example'}}}; "
        "settings.configure(INSTALLED_APPS=['awa_django'], AWA=awa); "
        "django.setup(); from awa_django.registry import registry; print(registry['resize'].http)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("HttpOptions(url='https://f.example'")


URL = {"url": "https://f.example/r?code=topsecret"}
WRONG: list[tuple[Any, str]] = [
    ([], "AWA['HTTP_JOBS']: a dict from kind to its options is needed, not list"),
    ({"": URL}, "kind: a name is needed"),
    ({"k": "https://f.example/topsecret"}, "['k']: a dict of options is needed, not str"),
    ({"k": {}}, "['url']: the address of the function is needed"),
    ({"k": {"url": None}}, "['url']: the address of the function is needed"),
    ({"k": {**URL, "urll": 1}}, "['urll']: unknown key; did you mean 'url'?"),
    ({"k": {**URL, "timeout": 1}}, "unknown key; did you mean 'request_timeout'?"),
    ({"k": {"url": ""}}, "beginning with http:// or https://"),
    ({"k": {"url": 5}}, "beginning with http:// or https://"),
    ({"k": {"url": "ftp://topsecret"}}, "http:// or https:// is needed, not ftp"),
    ({"k": {"url": "f.example/topsecret"}}, "not no scheme"),
    ({"k": {"url": "file:///topsecret"}}, "not file"),
    ({"k": {"url": "https:///topsecret"}}, "no host"),
    ({"k": {"url": "https://f.example/top secret"}}, "percent-encode"),
    ({"k": {"url": "https://f.example/\r\ntopsecret"}}, "percent-encode"),
    ({"k": {"url": "https://é.example"}}, "percent-encode"),
    ({"k": {"url": "https://f.example:99999/topsecret"}}, "host or port"),
    ({"k": {"url": "https://[::1/topsecret"}}, "host or port"),
    ({"k": {"url": "https://f.example/#topsecret"}}, "fragment"),
    ({"k": {**URL, "mode": "later"}}, "'async' or 'sync' is needed, not 'later'"),
    ({"k": {**URL, "mode": "sync"}}, "['response_timeout']: with mode 'sync' the time"),
    ({"k": {**URL, "response_timeout": 5}}, "['response_timeout']: means nothing with mode 'async'"),
    (
        {"k": {**URL, "mode": "sync", "response_timeout": 5, "secret": SECRET}},
        "['secret']: means nothing with",
    ),
    ({"k": {**URL, "request_timeout": 0}}, "['request_timeout']: a duration above zero"),
    ({"k": {**URL, "mode": "sync", "response_timeout": "5s"}}, "['response_timeout']: a duration is"),
    ({"k": {**URL, "callback_timeout": timedelta(days=3653)}}, "at most ten years"),
    ({"k": {**URL, "headers": ["topsecret"]}}, "a dict from header to its value is needed, not list"),
    ({"k": {**URL, "headers": {"X Y": "topsecret"}}}, "'X Y' is no name of a header"),
    ({"k": {**URL, "headers": {"X-Key": "topsecret\r\nX: y"}}}, "['X-Key']: a header's value is printable"),
    ({"k": {**URL, "headers": {"X-Key": b"topsecret"}}}, "['X-Key']: a header's value is printable"),
    ({"k": {**URL, "headers": {"x-awa-signature": "topsecret"}}}, "belongs to the request itself"),
    ({"k": {**URL, "headers": {"Content-Length": "3"}}}, "belongs to the request itself"),
    (
        {"k": {**URL, "secret": "topsecret"}},
        "['secret']: 64 hex digits (32 bytes) are needed, not 9 characters",
    ),
    ({"k": {**URL, "secret": b"topsecret"}}, "not bytes of 9"),
    ({"k": {**URL, "callback_base_url": "shop.example"}}, "['callback_base_url']: an address beginning"),
    (
        {"k": {**URL, "callback_base_url": "https://u:topsecret@shop.example"}},
        "neither a query nor credentials",
    ),
    ({"k": {**URL, "callback_path_prefix": 5}}, "a path such as"),
    ({"k": {**URL, "client": "send"}}, "its dotted path, is needed"),
    ({"k": {**URL, "client": 5}}, "its dotted path, is needed"),
    ({"k": {**URL, "retry_throttled": 1}}, "True or False"),
    ({"k": {**URL, "queue": "q" * 60}}, "['queue']: "),
    ({"k": {**URL, "priority": 9}}, "['priority']: a whole number from 1 to 4"),
    ({"k": {**URL, "max_attempts": 0}}, "['max_attempts']: a whole number from 1 to 1000"),
    ({"k": {**URL, "tags": "one"}}, "['tags']: a list of texts"),
    ({"k": {**URL, "owner": 5}}, "['owner']: text is needed"),
]


@pytest.mark.parametrize(("http_jobs", "words"), WRONG, ids=[words for _, words in WRONG])
def test_a_wrong_option_is_named_and_nothing_secret_repeated(http_jobs: Any, words: str) -> None:
    with override_settings(AWA={"HTTP_JOBS": http_jobs}):
        [fault] = setting_faults()
    assert fault.startswith("AWA['HTTP_JOBS']")
    assert words in fault
    assert "topsecret" not in fault


def test_a_wrong_declaration_names_its_kind_and_module() -> None:
    for options, words in (
        ({"url": "ftp://f"}, rf"http_job\('k'\) of {__name__}\['url'\]: "),
        ({"url": "https://f", "queue": "cancel"}, rf"http_job\('k'\) of {__name__}: queue: "),
        ({"url": "https://f", "args": int}, "args=<class 'int'>"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            http_job("k", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a kind is needed"):
        http_job(url="https://f")
    assert "k" not in registry


def test_a_callback_of_a_function_waits_as_long_as_any() -> None:
    assert MAX_CALLBACK_TIMEOUT == MAX_TIMEOUT


def test_nothing_that_may_be_secret_is_in_a_repr() -> None:
    kind = http_job(
        "k",
        url="https://user:topsecret@f.example:8443/path?code=topsecret",
        headers={"X-Key": "topsecret"},
        secret=b"topsecret" + bytes(23),
    )
    assert repr(kind.http) == (
        "HttpOptions(url='https://***@f.example:8443/path?***', mode='async', response_timeout=None, "
        "request_timeout=datetime.timedelta(seconds=30), callback_timeout=datetime.timedelta(seconds=3600), "
        "headers={'X-Key': '***'}, secret=***, callback_base_url=None, callback_path_prefix=None, client=None, "
        "retry_throttled=False)"
    )
    assert "topsecret" not in repr(kind)
    call = HttpCall("https://f.example/topsecret", {"X": "topsecret"}, b"topsecret", 3.0)
    assert repr(call) == "HttpCall(timeout=3.0, whole=False)"


class Receiver:
    """A project's URLs that include the receiver."""

    urlpatterns = [path("awa/", include("awa_django.urls"))]


def test_callbacks_go_where_this_project_takes_them() -> None:
    plain = http_job("plain", url="https://f.example").http
    explicit = http_job("explicit", url="https://f.example", callback_path_prefix="").http
    assert callback_prefix(plain) == "/api/callbacks"
    with override_settings(ROOT_URLCONF=None):
        assert callback_prefix(plain) == "/api/callbacks"
    with override_settings(ROOT_URLCONF=Receiver):
        assert callback_prefix(plain) == "/awa/callbacks"
        assert callback_prefix(explicit) == ""
        with override_settings(FORCE_SCRIPT_NAME="/shop"):
            assert callback_prefix(plain) == "/shop/awa/callbacks"


def test_what_cannot_be_read_is_not_sent() -> None:
    kind = http_job("k", url="https://f.example")
    assert kind.decode([1]) == {"args": [1]}
    with pytest.raises(InvalidJob, match="cannot be read"):
        kind.decode(Unreadable("1e999", "beyond a float"))


class Context:
    """As much of a context as a sync request needs."""

    class _flight:
        done = cancelled = False

    attempt = 2

    class job:
        id, kind, max_attempts = 7, "k", 3

    @classmethod
    def is_cancelled(cls) -> bool:
        return cls._flight.cancelled


def test_a_kind_that_is_called_sends_the_request_here_and_now() -> None:
    sent: list[HttpCall] = []

    def send(call: HttpCall) -> HttpReply:
        sent.append(call)
        return HttpReply(200)

    @dataclass
    class Resize:
        image: int

    kinds: list[HttpJobKind] = [
        http_job("k", url="https://f.example", mode="sync", response_timeout=5, client=send),
        http_job(args=Resize, url="https://f.example", mode="sync", response_timeout=5, client=send),
    ]
    assert kinds[0](Context, image=5) == kinds[1](Context, Resize(5)) == Completed()
    for call in sent:
        assert json.loads(call.body) == {
            "job_id": 7,
            "kind": "k",
            "args": {"image": 5},
            "attempt": 2,
            "max_attempts": 3,
        }

    class Cancelled(Context):
        class _flight:
            done, cancelled = False, True

    assert kinds[0](Cancelled, image=5) == Snooze(0)
    assert len(sent) == 2


# What is checked --------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "url": "https://f.example",
    "callback_base_url": "https://shop.example",
    "secret": "07" * 32,
}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"callback_base_url": None}, ["awa.W010"]),
        ({"secret": None}, ["awa.W011"]),
        ({"callback_base_url": None, "secret": None}, ["awa.W010", "awa.W011"]),
        ({"url": "http://f.example"}, ["awa.W012"]),
        ({"callback_base_url": "http://shop.example"}, ["awa.W012"]),
        ({"url": "http://localhost:8000", "callback_base_url": "http://[::1]"}, []),
        ({"url": "http://f.example", "secret": None}, ["awa.W011"]),
        ({"client": "tests.functions.serving"}, []),
        ({"client": "tests.functions.nothing"}, ["awa.E010"]),
        ({"client": "tests.test_http_jobs.ID"}, ["awa.E010"]),
    ],
)
def test_what_cannot_work_or_be_trusted_is_reported(changes: dict[str, Any], found: list[str]) -> None:
    kind = http_job("k", **{**GOOD, **changes})
    messages = check_http_jobs()
    assert [message.id for message in messages] == found
    assert all("'k'" in message.msg and message.obj == kind.name for message in messages)
    assert check_jobs() == []


def test_a_sync_kind_has_nothing_to_sign_and_nobody_to_call_back() -> None:
    http_job("k", url="http://f.example", mode="sync", response_timeout=5)
    assert check_http_jobs() == []


def test_a_secret_that_the_projects_own_receiver_does_not_know_is_a_warning() -> None:
    http_job("k", **GOOD)
    with override_settings(ROOT_URLCONF=Receiver):
        for secrets, found in ((["08" * 32], ["awa.W013"]), (["08" * 32, "07" * 32], [])):
            with override_settings(AWA={"CALLBACK_SECRETS": secrets}):
                assert [message.id for message in check_http_jobs()] == found
    with override_settings(AWA={"CALLBACK_SECRETS": ["08" * 32]}):
        assert check_http_jobs() == [], "the receiver is elsewhere"


@override_settings(AWA={"CALLBACK_SECRETS": ["topsecret"]})
def test_http_jobs_are_not_checked_while_the_settings_are_wrong() -> None:
    http_job("k", url="https://f.example")
    assert check_http_jobs() == []


# The client -------------------------------------------------------------------------------------------------------


def call(url: str, **changes: Any) -> HttpCall:
    return HttpCall(url, {"Content-Type": "application/json"}, b"{}", **{"timeout": 10.0, **changes})


def test_tls_is_verified_and_a_private_authority_is_a_context_of_the_projects() -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(CERTIFICATE)
    with serving(tls=server_side) as functions:
        functions.tell(404, b"over TLS")
        with pytest.raises(ssl.SSLCertVerificationError):
            HttpClient()(call(functions.url))
        assert functions.none_came()
        trusting = HttpClient(ssl_context=ssl.create_default_context(cafile=str(CERTIFICATE)))
        assert trusting(call(functions.url)).body == b"over TLS"
        over = threading.Event()
        functions.tell(500, trickle=lambda: not over.wait(0.02))
        try:
            with pytest.raises(TimeoutError, match=r"not done within 0\.3 s"):
                trusting(call(functions.url, timeout=0.3))
        finally:
            over.set()


def test_a_request_is_given_up_when_nobody_wants_it_any_more() -> None:
    over, wanted = threading.Event(), threading.Event()
    wanted.set()
    with serving() as functions:

        def hold(asked: Asked) -> None:
            wanted.clear()
            over.wait(60)

        functions.tell(200, before=hold)
        began = time.monotonic()
        try:
            with pytest.raises(RequestCancelled):
                HttpClient()(call(functions.url, timeout=60.0, is_cancelled=lambda: not wanted.is_set()))
        finally:
            over.set()
        assert time.monotonic() - began < 30


def test_what_of_a_body_is_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy that nobody answers at: it is not used.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving() as functions:
        functions.tell(500, b"x" * 100_000, headers={"X-Trace": "abc"})
        reply = HttpClient()(call(functions.url))
        assert (reply.status, len(reply.body), reply.header("x-trace")) == (500, 4097, "abc")
        functions.tell(200, b"x" * 100_000)
        assert HttpClient()(call(functions.url)).body == b""
        broken = call(functions.tell_below("/broken", Answer(200, b"x", cut=True)))
        assert HttpClient()(broken).status == 200, "who only acknowledges is not waited for"


def test_responses_that_come_before_the_final_one_are_passed_over() -> None:
    early = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                request = b""
                while not request.endswith(b"{}"):  # a socket that is closed with something unread is reset
                    request += peer.recv(65536)
                peer.sendall(early + b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        reply = HttpClient()(call(f"http://127.0.0.1:{listening.getsockname()[1]}/"))
        answering.join(10)
    assert (reply.status, reply.body, reply.header("Link")) == (404, b"gone", None)


# The function's side ----------------------------------------------------------------------------------------------

ID = "5f8b4a52-8a62-4c07-a6f4-7b5e0b7a0c11"


def body(**changes: Any) -> bytes:
    members = {
        "job_id": 7,
        "kind": "resize_image",
        "args": {"image": 5},
        "attempt": 1,
        "max_attempts": 25,
        "callback_id": ID,
        "callback_url": f"https://shop.example/awa/callbacks/{ID}/complete",
        **changes,
    }
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


SIGNED = {"x-awa-signature": sign(ID, SECRET)}


def test_a_function_reads_a_signed_dispatch_and_makes_the_three_answers() -> None:
    dispatched = verify_dispatch(SIGNED, body(), [OTHER, SECRET])
    assert (dispatched.job_id, dispatched.kind, dispatched.args) == (7, "resize_image", {"image": 5})
    assert (dispatched.attempt, dispatched.max_attempts, dispatched.callback_id) == (1, 25, ID)
    assert sign(ID, SECRET) not in repr(dispatched)
    for request, action, sent in (
        (dispatched.complete(), "complete", {}),
        (dispatched.complete({"é": [1]}), "complete", {"payload": {"é": [1]}}),
        (dispatched.fail(""), "fail", {"error": ""}),
        (dispatched.heartbeat(), "heartbeat", {"timeout_seconds": 3600.0}),
        (dispatched.heartbeat(timedelta(minutes=2)), "heartbeat", {"timeout_seconds": 120.0}),
    ):
        assert (request.method, request.url) == ("POST", f"https://shop.example/awa/callbacks/{ID}/{action}")
        assert request.headers == {"Content-Type": "application/json", "X-Awa-Signature": sign(ID, SECRET)}
        assert json.loads(request.body) == sent
        assert sign(ID, SECRET) not in repr(request)
    with pytest.raises(ValueError, match="finite time"):
        dispatched.heartbeat(float("nan"))
    with pytest.raises(ValueError, match="JSON compliant"):
        dispatched.complete(float("nan"))


@pytest.mark.parametrize(
    ("headers", "sent", "status", "words"),
    [
        ({}, body(), 401, "X-Awa-Signature is missing"),
        ({"X-Awa-Signature": sign(ID, OTHER)}, body(), 401, "signature is wrong"),
        ({"X-Awa-Signature": "rubbish"}, body(), 401, "signature is wrong"),
        (SIGNED, body(callback_id=ID.upper()), 401, "signature is wrong"),
        (SIGNED, body(callback_id=..., callback_url=...), 401, "signature is wrong"),
        (SIGNED, b"", 400, "not JSON"),
        (SIGNED, b"\xff", 400, "not JSON"),
        (SIGNED, b"[" * 100_000, 400, "not JSON"),
        (SIGNED, b"[]", 400, "no JSON object"),
        (SIGNED, body(job_id=...), 400, "no job_id"),
        (SIGNED, body(args=...), 400, "no args"),
        (SIGNED, body(attempt=True), 400, "attempt is no whole number"),
        (SIGNED, body(kind=5), 400, "kind is no text"),
        (SIGNED, body(callback_id=None), 400, "callback_id is no text"),
    ],
)
def test_what_is_no_dispatch_is_refused(headers: Any, sent: bytes, status: int, words: str) -> None:
    with pytest.raises(DispatchRefused, match=words) as refused:
        verify_dispatch(headers, sent, [SECRET])
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.status, again.reason) == (refused.value.status, refused.value.reason)
    assert again.status == status


@pytest.mark.parametrize(
    "elsewhere",
    [
        f"https://evil.example/awa/callbacks/{ID}/complete",
        f"https://shop.example.evil.example/awa/callbacks/{ID}/complete",
        f"https://shop.example@evil.example/awa/callbacks/{ID}/complete",
        f"http://shop.example/awa/callbacks/{ID}/complete",
        "https://shop.example/admin/",
        f"https://shop.example/awa/callbacks/{ID}/fail",
    ],
)
def test_answers_go_only_where_the_function_knows_the_receiver_to_be(elsewhere: str) -> None:
    with pytest.raises(DispatchRefused, match=r"below https://shop\.example"):
        verify_dispatch(
            SIGNED, body(callback_url=elsewhere), [SECRET], callback_base_url="https://shop.example"
        )


def test_a_function_may_know_the_address_itself() -> None:
    base = {"callback_base_url": "https://shop.example/"}
    named = verify_dispatch(SIGNED, body(), [SECRET], **base)
    assert named.callback_url == f"https://shop.example/awa/callbacks/{ID}/complete"
    unnamed = verify_dispatch(SIGNED, body(callback_url=...), [SECRET], **base)
    assert unnamed.callback_url == f"https://shop.example/api/callbacks/{ID}/complete"
    with pytest.raises(DispatchRefused):
        verify_dispatch(SIGNED, body(), [SECRET], **base, callback_path_prefix="/other")
    with pytest.raises(ValueError, match="callback_base_url"):
        verify_dispatch(SIGNED, body(callback_url=...), [SECRET]).complete()


def test_a_function_that_answers_at_once_has_nobody_to_call_back() -> None:
    dispatched = read_dispatch(body(callback_id=..., callback_url=..., unknown=1))
    assert (dispatched.callback_id, dispatched.args) == (None, {"image": 5})
    with pytest.raises(ValueError, match="the response is the outcome"):
        dispatched.complete()


def test_a_function_needs_no_settings() -> None:
    code = (
        "import sys; from awa_django.http_functions import verify_dispatch; "
        f"job = verify_dispatch({SIGNED!r}, {body()!r}, [bytes([7]) * 32]); print(job.fail('no').url); "
        "assert 'django.db' not in sys.modules"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == f"https://shop.example/awa/callbacks/{ID}/fail\n", done.stderr
