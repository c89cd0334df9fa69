"""Whether the queue is well, as this site sees it: for load balancers, Kubernetes and monitors.

``GET .../health/`` answers 200 if the site can enqueue: the database answers and its schema is one that this release
can use. What else has to be true for a 200 is asked for:

* ``?require=workers``   a worker reports, is healthy and is not shutting down,
* ``?require=leader``    one of them leads, so that schedules fire and jobs of dead workers are rescued,
* ``?max_lag=300``       no job of a queue that is not paused has been due for longer, in seconds.

Anything missing makes it a 503. The body says what was found and tells nothing about jobs. It needs no login, and one
process looks once a second at most, however often it is asked.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, OperationalError, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.log import log_response

from awa_django.db import postgres
from awa_django.enqueue import queue_alias
from awa_django.errors import ConfigurationError, said
from awa_django.operations.desk import one_look
from awa_django.operations.queues import queue_overview
from awa_django.operations.runtimes import runtime_overview
from awa_django.schema import VERSION, read_schema
from awa_django.views.public import answer, public

__all__ = ["ahealth", "health"]

logger = logging.getLogger("awa_django.health")

#: How long one look serves everybody who asks, and how long an old one does while somebody takes the next.
FRESH_SECONDS = 1.0
STALE_SECONDS = 10.0
#: How long a look, and each statement of one, may take before the database counts as away.
WAIT_SECONDS = 5.0
#: What may be required, and what is said when it is missing.
_REQUIREMENTS = {
    "workers": "no worker reports that it is well",
    "leader": "no worker leads",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """One look at the queue. What could not be seen is None."""

    database: bool = False
    schema_version: int | None = None
    schema_compatible: bool = False
    workers: int | None = None
    leader: bool | None = None
    lag_seconds: float | None = None


class _Looks:
    """The last look, and who takes the next. ``with_lag`` ones are dearer and apart."""

    def __init__(self, *, with_lag: bool) -> None:
        self._with_lag = with_lag
        self._taking = threading.Lock()
        self._began = math.inf
        self._last: tuple[float, _Found] | None = None

    def last(self, seconds: float) -> _Found | None:
        """The last look, unless it is older than this."""
        if self._last is not None and time.monotonic() - self._last[0] <= seconds:
            return self._last[1]
        return None

    def look(self) -> _Found:
        """A look that is fresh, or nearly so while somebody else is about to take the next.

        Once that one hangs, nobody waits for it any more: threads of the site are worth more than an answer.
        """
        if (found := self.last(FRESH_SECONDS)) is not None:
            return found
        while not self._taking.acquire(timeout=0.1):
            if (found := self.last(STALE_SECONDS)) is not None:
                return found
            if time.monotonic() - self._began > WAIT_SECONDS:
                return _Found()
        try:
            self._began = time.monotonic()
            if (found := self.last(FRESH_SECONDS)) is None:
                found = _look(with_lag=self._with_lag)
                self._last = time.monotonic(), found
            return found
        finally:
            self._began = math.inf
            self._taking.release()

    def forget(self) -> None:
        """Have the next who asks look for himself; for tests."""
        self._last = None


_looks = {with_lag: _Looks(with_lag=with_lag) for with_lag in (False, True)}


def _look(*, with_lag: bool) -> _Found:
    alias = queue_alias()
    try:
        with transaction.atomic(using=alias):
            schema = read_schema(postgres(alias))
            if schema.fault() is not None:
                return _Found(database=True, schema_version=schema.version)
            with one_look(alias, statement_timeout=timedelta(seconds=WAIT_SECONDS)):
                workers = runtime_overview(using=alias)
                lag = _lag(alias) if with_lag else None
    except (DatabaseError, InterfaceError, ConfigurationError) as error:
        logger.warning("the queue's database %r cannot be looked at: %s", alias, said(error))
        # The others are answers, though not those that were hoped for.
        return _Found(database=not isinstance(error, OperationalError | InterfaceError))
    return _Found(
        database=True,
        schema_version=schema.version,
        schema_compatible=True,
        workers=workers.healthy,
        leader=workers.leaders > 0,
        lag_seconds=lag,
    )


def _lag(alias: str) -> float:
    queues = queue_overview(using=alias)
    return max((queue.lag_seconds or 0.0 for queue in queues if not queue.paused), default=0.0)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a request asks for. Raises ``ValueError`` with what is wrong with it."""

    require: frozenset[str]
    max_lag: float | None

    @classmethod
    def of(cls, request: HttpRequest) -> _Wanted:
        named = {name for text in request.GET.getlist("require") for name in text.split(",") if name}
        if unknown := named - _REQUIREMENTS.keys():
            raise ValueError(
                f"require: {', '.join(sorted(map(repr, unknown)))} is not known; {' and '.join(_REQUIREMENTS)} are"
            )
        return cls(frozenset(named), cls._seconds(request.GET.get("max_lag")))

    @staticmethod
    def _seconds(text: str | None) -> float | None:
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise ValueError(f"max_lag: a number of seconds is needed, not {text[:20]!r}")
        return seconds

    def missing(self, found: _Found) -> list[str]:
        """What keeps the answer from being 200, a sentence each."""
        if not found.database:
            return ["the database does not answer"]
        if not found.schema_compatible:
            return ["the schema of the queue is not one that this release can use"]
        truths: Mapping[str, Any] = {"workers": found.workers, "leader": found.leader}
        missing = [text for name, text in _REQUIREMENTS.items() if name in self.require and not truths[name]]
        if self.max_lag is not None and (found.lag_seconds or 0.0) > self.max_lag:
            missing.append(f"a job has been due for over {self.max_lag:g} seconds")
        return missing


def _refusal(request: HttpRequest) -> tuple[_Wanted | None, HttpResponse | None]:
    """What is wanted, or the answer to a request that cannot be served."""
    if request.method not in ("GET", "HEAD"):
        return None, answer(405, {"error": "GET is needed"}, Allow="GET, HEAD")
    try:
        return _Wanted.of(request), None
    except ValueError as error:
        return None, answer(400, {"error": str(error)})


def _report(request: HttpRequest, wanted: _Wanted, found: _Found) -> HttpResponse:
    missing = wanted.missing(found)
    body: dict[str, Any] = {
        "status": "failing" if missing else "ok",
        "missing": missing,
        "database": found.database,
        "schema_version": found.schema_version,
        "expected_schema_version": VERSION,
        "schema_compatible": found.schema_compatible,
        "workers": found.workers,
        "leader": found.leader,
    }
    if wanted.max_lag is not None:
        body["lag_seconds"] = None if found.lag_seconds is None else round(found.lag_seconds, 3)
    response = answer(503 if missing else 200, body)
    if missing:
        # Or else Django would log an error, and mail it to the admins, each time somebody asks.
        log_response(
            "not well: %s",
            "; ".join(missing),
            response=response,
            request=request,
            logger=logger,
            level="info",
        )
    return response


@public
def health(request: HttpRequest) -> HttpResponse:
    """Whether the queue is well; for servers of either kind."""
    wanted, response = _refusal(request)
    if wanted is not None:
        response = _report(request, wanted, _looks[wanted.max_lag is not None].look())
    assert response is not None
    return response


@public
async def ahealth(request: HttpRequest) -> HttpResponse:
    """:func:`health` for async servers: a fresh look takes a thread, and the next seconds' requests none."""
    wanted, response = _refusal(request)
    if wanted is not None:
        looks = _looks[wanted.max_lag is not None]
        found = looks.last(FRESH_SECONDS)
        if found is None:
            found = await sync_to_async(looks.look, thread_sensitive=True)()
        response = _report(request, wanted, found)
    assert response is not None
    return response
