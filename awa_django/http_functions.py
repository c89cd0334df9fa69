"""For those who write the functions that HTTP jobs call (contract: api/http_worker sections 2 and 4).

Needs no database and no settings: a function may run anywhere that this package is installed::

    def resize(request):
        job = verify_dispatch(request.headers, request.body, [SECRET], callback_base_url="https://shop.example")
        ...                                        # take note of it, answer 202 at once, and work afterwards
        answer = job.complete({"width": 100})      # a value: url, headers and body of the request to send

A job may be dispatched more than once, each time with another ``callback_id``: ``job_id`` is what tells whether it
has been done already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from awa_django.errors import AwaError
from awa_django.signatures import DEFAULT_PATH_PREFIX, SIGNATURE_HEADER, build_callback_url, verify

__all__ = ["CallbackRequest", "DispatchRefused", "DispatchedJob", "read_dispatch", "verify_dispatch"]


class DispatchRefused(AwaError, ValueError):
    """A request that is no dispatch of a job, or that nobody who knows the secret has sent.

    ``status`` is what to answer with: 401 where the signature is missing or wrong, else 400.
    """

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status

    def __reduce__(self) -> tuple[type[DispatchRefused], tuple[str, int]]:
        return type(self), (self.reason, self.status)


@dataclass(frozen=True, slots=True)
class CallbackRequest:
    """A request to send to the receiver of callbacks. It answers 200, or 404 where nobody waits any more.

    Whoever reads ``headers`` can end the job: they are not in the repr, and do not belong into a log.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    method: Literal["POST"] = "POST"


@dataclass(frozen=True, slots=True)
class DispatchedJob:
    """One attempt of a job, as its function gets it. ``callback_id`` is None where the response is the outcome."""

    job_id: int
    kind: str
    args: Any = field(repr=False)
    attempt: int
    max_attempts: int
    callback_id: str | None = None
    callback_url: str | None = None
    signature: str | None = field(default=None, repr=False)

    def complete(self, payload: Any = None) -> CallbackRequest:
        """The request that completes the job. The payload is for the receiver, which stores it or not."""
        return self._request("complete", {} if payload is None else {"payload": payload})

    def fail(self, error: str) -> CallbackRequest:
        """The request that fails the job for good, whatever attempts are left."""
        return self._request("fail", {"error": error})

    def heartbeat(self, timeout: float | timedelta = 3600.0) -> CallbackRequest:
        """The request that gives the function ``timeout`` (seconds, or a timedelta) from then on."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"a finite time of 0 or more is needed, not {timeout!r}")
        return self._request("heartbeat", {"timeout_seconds": seconds})

    def _request(self, action: str, members: Mapping[str, Any]) -> CallbackRequest:
        if self.callback_url is None:
            raise ValueError(
                "the job says no callback_url; give callback_base_url to verify_dispatch"
                if self.callback_id is not None
                else "nobody waits for a callback: the response is the outcome of this job"
            )
        headers = {"Content-Type": "application/json"}
        if self.signature is not None:
            headers[SIGNATURE_HEADER] = self.signature
        body = json.dumps(members, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return CallbackRequest(f"{self.callback_url.rpartition('/')[0]}/{action}", headers, body)


def verify_dispatch(
    headers: Mapping[str, str],
    body: bytes | str,
    secrets: Iterable[bytes],
    *,
    callback_base_url: str | None = None,
    callback_path_prefix: str | None = None,
) -> DispatchedJob:
    """The job of a request whose signature is right under one of ``secrets`` (32 bytes each; see ``parse_secret``).

    The signature is over the callback's id and nothing else: it shows that the sender knows of this callback, not what
    the job is, nor where to answer. So name ``callback_base_url``, and ``callback_path_prefix`` if you know it: the
    function then answers below it and nowhere else, also where the body names no address. Names of headers may be
    spelled in any case.

    Raises :class:`DispatchRefused`, also for a job without a callback, which nobody signs: :func:`read_dispatch`.
    """
    signature = _header(headers, SIGNATURE_HEADER)
    if signature is None:
        raise DispatchRefused(f"the header {SIGNATURE_HEADER} is missing", 401)
    job = read_dispatch(body)
    if job.callback_id is None or not verify(job.callback_id, signature, secrets):
        raise DispatchRefused("the signature is wrong", 401)
    url = job.callback_url
    if callback_base_url is not None:
        url = _checked_url(job.callback_id, url, callback_base_url, callback_path_prefix)
    return replace(job, callback_url=url, signature=signature)


def _checked_url(callback_id: str, named: str | None, base: str, prefix: str | None) -> str:
    """Where to answer: the address that the body names, if it is where it may be."""
    known = build_callback_url(
        base, DEFAULT_PATH_PREFIX if prefix is None else prefix, callback_id, "complete"
    )
    if named is None or named == known:
        return known
    is_below = named.startswith(f"{base.rstrip('/')}/") and named.endswith(f"/{callback_id}/complete")
    if prefix is not None or not is_below:
        raise DispatchRefused(f"callbacks go below {base}, and this one names another address")
    return named


def read_dispatch(body: bytes | str) -> DispatchedJob:
    """The job of a request **as it says**, for functions whose caller is known by other means, such as a header.

    Raises :class:`DispatchRefused` for a body that is none. Members that nobody knows are ignored.
    """
    try:
        members = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DispatchRefused(f"the body is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise DispatchRefused("the body is no JSON object")
    for name, kind in _MEMBERS.items():
        if name not in members:
            if name in _OPTIONAL:
                continue
            raise DispatchRefused(f"the body has no {name}")
        if type(members[name]) is not kind:  # a bool is an int to isinstance
            raise DispatchRefused(f"{name} is {'no text' if kind is str else 'no whole number'}")
    if "args" not in members:
        raise DispatchRefused("the body has no args")
    return DispatchedJob(
        args=members["args"], **{name: members[name] for name in _MEMBERS if name in members}
    )


_MEMBERS: Mapping[str, type] = {
    "job_id": int,
    "kind": str,
    "attempt": int,
    "max_attempts": int,
    "callback_id": str,
    "callback_url": str,
}
_OPTIONAL = frozenset({"callback_id", "callback_url"})


def _header(headers: Mapping[str, str], name: str) -> str | None:
    return next((value for key, value in headers.items() if key.lower() == name.lower()), None)
