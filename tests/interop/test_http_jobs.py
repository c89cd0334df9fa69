"""A job of awa-pg that we dispatch, a function, and the receiver of real awa that the function answers to."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest
from awa import callback_contract

from awa_django.http_functions import CallbackRequest, verify_dispatch
from awa_django.http_jobs import http_job
from tests.functions import serving
from tests.inprocess import working
from tests.interop.test_callbacks import SECONDS, declared, errors_of, state_of, url, wait_for
from tests.interop.test_ingress import receiver
from tests.receiving import SECRET

__all__ = ["declared", "url"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interop]

PRODUCER = """
import asyncio, sys, awa

async def main():
    client = awa.AsyncClient(sys.argv[1])
    job = await client.insert({"image": 5, "name": "é"}, kind="resize_image", max_attempts=3)
    print(job.id)
    await client.close()

asyncio.run(main())
"""


def deliver(request: CallbackRequest) -> tuple[int, Any]:
    parts = urlsplit(request.url)
    assert parts.hostname is not None
    client = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    try:
        client.request(request.method, parts.path, request.body, dict(request.headers))
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        client.close()


def test_a_function_takes_a_job_of_awa_pg_from_us_and_answers_to_awas_receiver(url: str) -> None:
    with serving() as functions, receiver(url, "callbacks", "serve") as port, working():
        base = f"http://127.0.0.1:{port}"
        functions.tell(202)
        resize = http_job("resize_image", url=functions.url, secret=SECRET, callback_base_url=base)
        done = subprocess.run(
            [sys.executable, "-c", PRODUCER, url],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        job_id = int(done.stdout)
        asked = functions.next()
        wait_for(job_id, "waiting_external")
        assert callback_contract.verify(SECRET, asked.json["callback_id"], asked.header("X-Awa-Signature"))
        job = verify_dispatch(dict(asked.headers), asked.body, [SECRET], callback_base_url=base)
        assert (job.job_id, job.args, job.max_attempts) == (job_id, {"image": 5, "name": "é"}, 3)
        assert deliver(job.heartbeat(60)) == (200, {"id": job_id, "state": "WaitingExternal"})
        assert deliver(job.complete({"bytes": 7})) == (200, {"id": job_id, "state": "Completed"})
        assert state_of(job_id) == "completed"
        assert deliver(job.complete())[0] == 404

        failing = resize.enqueue(image=6)
        asked = functions.next()
        wait_for(failing.id, "waiting_external")
        job = verify_dispatch(dict(asked.headers), asked.body, [SECRET])
        assert deliver(job.fail("no such image")) == (200, {"id": failing.id, "state": "Failed"})
        assert (state_of(failing.id), errors_of(failing.id)) == ("failed", ["no such image"])
