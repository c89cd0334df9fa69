"""The receiver of callbacks over HTTP (contract: api/callbacks section 3).

``POST .../<callback id>/<action>`` with a JSON body completes, fails or prolongs the job that waits for the callback.
A refusal is always ``{"error": text}``, and is decided in this order, so that whoever cannot sign learns nothing and
costs no query:

======  ==========================================================================================
404     the action is none of the three
405     the method is not POST
503     neither a secret nor ``CALLBACK_UNSIGNED`` is set
401     the signature is missing or wrong
503     ``READ_ONLY`` is set
400     the id is no UUID
415     the body does not say that it is JSON
413     it is over 2 MiB
400     it did not arrive whole, or is no JSON
422     it is JSON of another shape
400     a timeout or an error text that cannot be stored
404     nobody waits for this callback, or not any longer; there is no "already done"
409     another job took the unique key that the outcome needs
503     somebody else's transaction has held the job for ten seconds; the database is away or cannot be written to.
        Nothing has changed, unless the connection broke on the commit
======  ==========================================================================================

Each request is logged once, at INFO, and at WARNING where the receiver itself is at fault. The signature is a bearer
credential: it is in no log, and is taken out of the request before anything can fail, so that no report shows it.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

import psycopg
from asgiref.sync import sync_to_async
from django.db import InterfaceError, InternalError, OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.log import log_response
from django.views.decorators.debug import sensitive_variables

from awa_django import callbacks
from awa_django.callbacks import CONFLICT_TRIES, DEFAULT_TIMEOUT, callback_uuid, timeout_of
from awa_django.conf import Settings, get_settings
from awa_django.encoding import text_fault
from awa_django.enqueue import queue_alias
from awa_django.errors import CallbackNotFound, InvalidJob, UniqueConflict, said
from awa_django.jobs import Job
from awa_django.signatures import SIGNATURE_HEADER, verify
from awa_django.sql import statement
from awa_django.unreadable import finite
from awa_django.views.public import answer, public

__all__ = ["MAX_BODY_BYTES", "acallback", "callback", "no_such_route"]

logger = logging.getLogger("awa_django.callbacks")

#: What every receiver takes. ``DATA_UPLOAD_MAX_MEMORY_SIZE`` is about forms and does not count here.
MAX_BODY_BYTES = 2 * 1024 * 1024
#: Lists and objects within each other, the outermost counted.
MAX_DEPTH = 127
#: Seconds after which to call again: when the database was away or somebody held the job, and when people have to act.
RETRY_SOON, RETRY_LATER = 10, 60

_SIGNATURE = f"HTTP_{SIGNATURE_HEADER.upper().replace('-', '_')}"
_TAKEN = "(taken out after it was checked)"
_CHUNK_BYTES = 64 * 1024
_JSON_TYPE = re.compile(r"application/(?:[a-z0-9!#$&^_.+-]+\+)?json")
#: The greatest float has one digit more. Python reads whole numbers of many digits slowly, if at all.
_FEW_DIGITS = 308
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _Refused(Exception):
    """A request that is not taken: the status and what to tell. ``fault`` is for the log alone, in place of that."""

    def __init__(self, status: int, text: str, *, fault: str | None = None, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.fault = fault
        self.headers = headers


# -- the views ------------------------------------------------------------------------------------------------------


@public
def callback(request: HttpRequest, callback_id: str, action: str) -> HttpResponse:
    """Take the answer to a callback; for servers of either kind.

    Commits by itself: it is exempt from ``ATOMIC_REQUESTS``.
    """
    try:
        _admit(request, callback_id, action)
        return _done(request, action, _apply(request, callback_id, action))
    except _Refused as refused:
        return _refuse(request, callback_id, action, refused)


@public
async def acallback(request: HttpRequest, callback_id: str, action: str) -> HttpResponse:
    """:func:`callback` for async servers: what is refused before the body is looked at takes no thread."""
    try:
        _admit(request, callback_id, action)
        job = await sync_to_async(_apply, thread_sensitive=True)(request, callback_id, action)
        return _done(request, action, job)
    except _Refused as refused:
        return _refuse(request, callback_id, action, refused)


@public
def no_such_route(request: HttpRequest, **parts: str) -> HttpResponse:
    """A 404 for whatever else is asked below the receiver, so that no middleware redirects it elsewhere."""
    return _refuse(request, "", "", _Refused(404, "there is nothing here: POST <callback id>/<action> is"))


def _mark(view: Any) -> None:
    """What ``manage.py check`` knows the receiver again by, also below a project's decorators."""
    view.awa_receiver = True


_mark(callback)
_mark(acallback)


def _done(request: HttpRequest, action: str, job: Job) -> HttpResponse:
    logger.info("callback %s: job %d is %s", action, job.id, job.state.value)
    state = "".join(word.capitalize() for word in job.state.value.split("_"))
    return answer(200, {"id": job.id, "state": state})


def _refuse(request: HttpRequest, callback_id: str, action: str, refused: _Refused) -> HttpResponse:
    response = answer(refused.status, {"error": refused.text}, **refused.headers)
    # Django leaves out of its own log what was logged here, and so mails nobody for each 503.
    log_response(
        "callback refused with %d: %s (%r, id %r)",
        refused.status,
        refused.fault or refused.text,
        action[:20] or request.path[:80],
        callback_id[:60],
        response=response,
        request=request,
        logger=logger,
        level="warning" if refused.status >= 500 else "info",
    )
    return response


# -- before the body ------------------------------------------------------------------------------------------------


def _admit(request: HttpRequest, callback_id: str, action: str) -> None:
    """Refuse what can be refused without body and database."""
    settings = get_settings()
    if action not in _ACTIONS:
        raise _Refused(404, "there is no such action: complete, fail and heartbeat are")
    if request.method != "POST":
        raise _Refused(405, "POST is needed", Allow="POST")
    _authenticate(request, callback_id, settings)
    if settings.read_only:
        raise _Refused(503, "this receiver is read-only", Retry_After=str(RETRY_LATER))
    try:
        callback_uuid(callback_id)
    except InvalidJob:
        raise _Refused(400, "the callback id is no UUID") from None
    if not _JSON_TYPE.fullmatch(request.content_type or ""):
        raise _Refused(415, "a body of type application/json is needed")
    if _declared_length(request) > MAX_BODY_BYTES:
        raise _too_large()


@sensitive_variables()
def _authenticate(request: HttpRequest, callback_id: str, settings: Settings) -> None:
    signature = request.META.get(_SIGNATURE)
    if signature is not None:
        request.META[_SIGNATURE] = _TAKEN
    if not settings.callback_secrets:
        if settings.callback_unsigned:
            return
        raise _Refused(
            503,
            "this receiver is not set up",
            fault="neither AWA['CALLBACK_SECRETS'] nor AWA['CALLBACK_UNSIGNED'] is set",
            Retry_After=str(RETRY_LATER),
        )
    if signature is None:
        raise _Refused(401, f"the header {SIGNATURE_HEADER} is missing")
    if not verify(callback_id, signature, settings.callback_secrets):
        raise _Refused(401, f"the signature in {SIGNATURE_HEADER} is wrong")


def _declared_length(request: HttpRequest) -> int:
    text = request.META.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _too_large() -> _Refused:
    return _Refused(413, f"the body is over {MAX_BODY_BYTES} bytes")


# -- the body -------------------------------------------------------------------------------------------------------


def _read_body(request: HttpRequest) -> bytes:
    """The body, of which no more is read than it may have."""
    stream: Any = request
    environ = getattr(request, "environ", {})
    if not environ.get("CONTENT_LENGTH") and environ.get("HTTP_TRANSFER_ENCODING"):
        # Sent in chunks. Django reads none of a body without a length, though some servers know where it ends.
        if not environ.get("wsgi.input_terminated"):
            raise _Refused(400, "this server takes no body in chunks; send it with a Content-Length")
        stream = environ["wsgi.input"]
    chunks, size = [], 0
    while chunk := _read(stream):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _too_large()
    return b"".join(chunks)


def _read(stream: Any) -> bytes:
    try:
        part: bytes = stream.read(_CHUNK_BYTES)
    except Exception:  # servers have errors of their own for chunks that are none
        raise _Refused(400, "the body did not arrive whole") from None
    return part


def _document(body: bytes) -> Any:
    """The JSON of a body. Objects are lists of their members, since a name given twice is a fault here."""
    if not body:
        raise _Refused(400, "the body is empty; JSON is needed")
    try:
        text = body.decode()
        found = json.loads(
            text,
            object_pairs_hook=_Members,
            parse_float=finite,
            parse_int=_whole,
            parse_constant=_no_constant,
        )
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()  # one half of a pair is no text
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"the body is no JSON: {_why(error)}") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper(found, MAX_DEPTH):
        raise _Refused(400, f"the body is no usable JSON: nested deeper than {MAX_DEPTH} levels")
    return found


class _Members(list[tuple[str, Any]]):
    """The members of an object as they were given."""


def _why(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"{error.msg.lower()} at line {error.lineno} column {error.colno}"
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case UnicodeEncodeError():
            return "it has a lone surrogate"
        case RecursionError():
            return "it is nested too deep"
    return str(error)


def _whole(text: str) -> int:
    if len(text) > _FEW_DIGITS:
        finite(text)
    return int(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _deeper(value: Any, limit: int) -> bool:
    """Whether lists and objects lie within each other more than ``limit`` levels deep."""
    level = [value] if isinstance(value, list) else []
    for _ in range(limit):
        level = [
            item
            for holder in level
            for item in ((member for _, member in holder) if isinstance(holder, _Members) else holder)
            if isinstance(item, list)
        ]
        if not level:
            return False
    return True


# -- what it asks for -----------------------------------------------------------------------------------------------


@sensitive_variables()
def _apply(request: HttpRequest, callback_id: str, action: str) -> Job:
    """Do what an admitted request asks for, in a transaction of its own."""
    act = _ACTIONS[action](callback_id, _document(_read_body(request)))
    try:
        return _briefly(act)
    except CallbackNotFound:
        raise _Refused(
            404, "callback not found: it was never registered, or is used, replaced or over"
        ) from None
    except UniqueConflict as error:
        raise _Refused(
            409, "another job took the unique key that this one needs meanwhile", fault=str(error)
        ) from None
    except InternalError as error:
        if isinstance(error.__cause__, psycopg.errors.ReadOnlySqlTransaction):
            raise _Refused(
                503, "this receiver is read-only", fault=said(error), Retry_After=str(RETRY_LATER)
            ) from None
        raise
    except (OperationalError, InterfaceError) as error:
        is_held = isinstance(error.__cause__, psycopg.errors.LockNotAvailable)
        text = "somebody else is changing this job" if is_held else "the database does not answer"
        raise _Refused(503, text, fault=said(error), Retry_After=str(RETRY_SOON)) from None


def _briefly(act: Callable[[], Job]) -> Job:
    """Do it in one transaction, which a deadlock repeats, and wait ten seconds at most for a lock of somebody else's.

    Senders who get no answer call again, and each call would hold one more thread of the site.
    """
    alias = queue_alias()
    for tries in range(1, CONFLICT_TRIES + 1):
        try:
            with transaction.atomic(using=alias):
                with connections[alias].cursor() as cursor:
                    cursor.execute(statement("control/patience", "wait_briefly"))
                return act()
        except OperationalError as error:
            if tries == CONFLICT_TRIES or not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                raise
            logger.info("a callback met a deadlock, again: %s", said(error))
    raise AssertionError("the last try answers or raises")


def _member(document: Any, name: str) -> tuple[Any, ...]:
    """The one member of a body that an action knows, as a tuple of one; empty if it is missing."""
    if not isinstance(document, _Members):
        raise _Refused(422, "a JSON object is needed")
    found = [value for key, value in document if key == name]
    if len(found) > 1:
        raise _Refused(422, f"{name} is given {len(found)} times")
    return tuple(found)


def _complete(callback_id: str, document: Any) -> Callable[[], Job]:
    _member(document, "payload")  # any JSON, which completing does not store
    return lambda: callbacks.complete(callback_id)


def _fail(callback_id: str, document: Any) -> Callable[[], Job]:
    match _member(document, "error"):
        case (str() as error,):
            if (fault := text_fault(error)) is not None:
                raise _Refused(400, f"error: {fault}")
            return lambda: callbacks.fail(callback_id, error)
        case (_,):
            raise _Refused(422, "error is to be text")
    raise _Refused(422, "error is missing")


def _heartbeat(callback_id: str, document: Any) -> Callable[[], Job]:
    match _member(document, "timeout_seconds"):
        case ():
            seconds = DEFAULT_TIMEOUT
        case (bool(),):
            raise _Refused(422, "timeout_seconds is to be a number")
        case (int() | float() as given,):
            seconds = float(given)
        case _:
            raise _Refused(422, "timeout_seconds is to be a number")
    try:
        if math.copysign(1, seconds) < 0:
            raise InvalidJob("timeout", "it is negative")
        timeout = timeout_of(seconds, may_be_zero=True)
    except InvalidJob:
        raise _Refused(400, "timeout_seconds is to be from 0 to ten years") from None
    return lambda: callbacks.heartbeat(callback_id, timeout)


_ACTIONS: dict[str, Callable[[str, Any], Callable[[], Job]]] = {
    "complete": _complete,
    "fail": _fail,
    "heartbeat": _heartbeat,
}
