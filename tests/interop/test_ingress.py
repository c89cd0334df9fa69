"""Callbacks over HTTP between us and real awa: a worker of one registers, the receiver of the other is told."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import quote

import pytest
from awa import callback_contract
from django.db import connection
from django.test import Client, override_settings

from awa_django.signatures import DEFAULT_PATH_PREFIX, SIGNATURE_HEADER, build_callback_url, sign
from tests import invariants
from tests.inprocess import working
from tests.interop.test_callbacks import (
    QUEUE,
    SECONDS,
    awa_pg,
    declared,
    errors_of,
    lasting,
    parked,
    parks,
    state_of,
    told,
    url,
    wait_for,
    wait_for_error,
)
from tests.receiving import CASES, DROPPED, SECRET, Case, heartbeat
from tests.workers import wait_until

__all__ = ["declared", "told", "url"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interop]

JSON = {"Content-Type": "application/json"}
AWA = Path(sys.executable).with_name("awa")


@contextmanager
def receiver(url: str, *command: str) -> Iterator[int]:
    """A receiver of the real awa command line; its port."""
    with socket.socket() as reserved:
        # Kept while it starts: bound and not listened at, the port is given to nobody who asks for any.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        with _serving(url, port, command):
            yield port


@contextmanager
def _serving(url: str, port: int, command: tuple[str, ...]) -> Iterator[None]:
    arguments = [*command, "--port", str(port), "--pool-max", "2", "--pool-min", "1"]
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "AWA_CALLBACK_HMAC_SECRET": SECRET.hex(),
        "RUST_BACKTRACE": "0",
    }
    with subprocess.Popen(
        [AWA, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(lambda: _listens(port), seconds=SECONDS, what=f"awa {' '.join(command)}")
            yield
        finally:
            process.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def send(
    port: int, path: str, body: bytes, headers: dict[str, str], method: str = "POST"
) -> tuple[Any, bytes]:
    """Status and body of an answer; ``DROPPED`` for none."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        # A body that is too long may be answered before it has been read.
        with suppress(BrokenPipeError, ConnectionResetError):
            client.request(method, path, body, headers)
        answer = client.getresponse()
        return answer.status, answer.read()
    except http.client.RemoteDisconnected:
        return DROPPED, b""
    finally:
        client.close()


def post(port: int, token: str, action: str, body: bytes = b"{}") -> tuple[Any, Any]:
    """What a receiver of awa answers to a signed call."""
    path = build_callback_url("", DEFAULT_PATH_PREFIX, token, action)
    status, content = send(port, path, body, {**JSON, SIGNATURE_HEADER: sign(token, SECRET)})
    return status, json.loads(content)


def ours(token: str, action: str, body: bytes = b"{}") -> tuple[Any, Any]:
    """What our receiver answers to a call that awa's own functions address and sign."""
    response = Client(enforce_csrf_checks=True).post(
        callback_contract.build_callback_url("", "/awa/callbacks", token, action),
        body,
        content_type="application/json",
        headers={SIGNATURE_HEADER: callback_contract.sign(SECRET, token)},
    )
    return response.status_code, response.json()


@pytest.fixture
def _site() -> Iterator[None]:
    with override_settings(ROOT_URLCONF="tests.receiving_urls", AWA={"CALLBACK_SECRETS": [SECRET.hex()]}):
        yield


@pytest.mark.usefixtures("_site")
def test_our_receiver_answers_callbacks_that_an_awa_pg_worker_registered(url: str) -> None:
    with awa_pg(url) as theirs:
        job_id, token = parked(theirs, url)
        assert ours(token, "heartbeat", heartbeat("120")) == (200, {"id": job_id, "state": "WaitingExternal"})
        assert ours(token, "complete", b'{"payload": [1]}') == (200, {"id": job_id, "state": "Completed"})
        assert state_of(job_id) in ("completed", None)  # their leader forgets it within seconds
        assert ours(token, "complete")[0] == 404

        job_id, token = parked(theirs, url)
        assert ours(token, "fail", b'{"error": "declined"}') == (200, {"id": job_id, "state": "Failed"})
        assert (lasting(job_id)["state"], errors_of(job_id)) == ("failed", ["declined"])

        job_id, token = parked(theirs, url)
        assert ours(token, "heartbeat", heartbeat("0"))[0] == 200
        wait_for_error(job_id)
        assert ours(token, "complete")[0] == 404
    with connection.cursor() as cursor:
        assert invariants.violated(cursor.connection, mixed=True) == []


@pytest.mark.parametrize("command", [("callbacks", "serve"), ("serve",)], ids=" ".join)
def test_awas_receivers_answer_callbacks_that_our_worker_registered(
    url: str, told: Queue[Any], command: tuple[str, ...]
) -> None:
    park = parks(told)

    def waiting() -> tuple[int, str]:
        job_id = park.enqueue(judges={}).id
        token = told.get(timeout=SECONDS)
        wait_for(job_id, "waiting_external")
        return job_id, token

    with receiver(url, *command) as port, working({QUEUE: 2}):
        job_id, token = waiting()
        assert post(port, token, "heartbeat", heartbeat("120")) == (
            200,
            {"id": job_id, "state": "WaitingExternal"},
        )
        assert post(port, token, "complete") == (200, {"id": job_id, "state": "Completed"})
        assert state_of(job_id) == "completed"
        assert post(port, token, "complete")[0] == 404
        job_id, token = waiting()
        assert post(port, token, "fail", b'{"error": "no"}') == (200, {"id": job_id, "state": "Failed"})
        assert (state_of(job_id), errors_of(job_id)) == ("failed", ["no"])
    with connection.cursor() as cursor:
        assert invariants.violated(cursor.connection, mixed=True) == []


def test_the_table_says_what_awas_receiver_answers(url: str, told: Queue[Any]) -> None:
    """So that each difference between the two is one that is written down."""
    park = parks(told)
    with receiver(url, "callbacks", "serve") as port, working({QUEUE: 2}):
        lasting = park.enqueue(judges={})
        token = told.get(timeout=SECONDS)
        wait_for(lasting.id, "waiting_external")
        wrong = []
        for case in CASES:
            if case.ends:
                ending = park.enqueue(judges={})
                own = told.get(timeout=SECONDS)
                wait_for(ending.id, "waiting_external")
            else:
                own = token
            status = _put(port, case, own)
            if status != case.upstream:
                wrong.append(f"{case.name}: {case.upstream}, not {status}")
        assert wrong == []
        assert state_of(lasting.id) == "waiting_external"


def _put(port: int, case: Case, token: str) -> int | str:
    spelled = case.spell(token)
    path = f"{DEFAULT_PATH_PREFIX}/{quote(spelled, safe='')}/{case.action}"
    headers = {name: value.encode("latin1") for name, value in case.headers(spelled).items()}
    status: int | str = send(port, path, case.body, headers, case.method)[0]  # type: ignore[arg-type]
    return status
