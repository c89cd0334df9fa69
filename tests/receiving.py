"""What a receiver of callbacks answers, case by case: ours, and awa's own where it answers otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from awa_django.signatures import SIGNATURE_HEADER, sign

SECRET = bytes(range(32))
MIB = 1024 * 1024
#: awa's receiver closes the connection without an answer.
DROPPED = "dropped"


@dataclass(frozen=True)
class Case:
    """One request about a job that waits, and goes on waiting. ``theirs`` is awa's answer where it is another."""

    name: str
    status: int
    body: bytes = b"{}"
    action: str = "heartbeat"
    method: str = "POST"
    content_type: str | None = "application/json"
    #: How the id is spelled in the address, before percent-encoding.
    spell: Callable[[str], str] = str
    #: From the id as it is spelled; None sends none.
    signature: Callable[[str], str | None] = lambda spelled: sign(spelled, SECRET)
    theirs: int | str | None = None
    why: str = ""
    #: Words of our answer.
    says: str = ""
    #: Whether the case ends the job where it is taken, so that a receiver which takes it needs one of its own.
    ends: bool = field(default=False, kw_only=True)

    def headers(self, spelled: str) -> dict[str, str]:
        """The headers of the request, for an id as it is spelled."""
        found = {} if self.content_type is None else {"Content-Type": self.content_type}
        signature = self.signature(spelled)
        return found if signature is None else {**found, SIGNATURE_HEADER: signature}

    @property
    def upstream(self) -> int | str:
        """What awa's own receiver answers."""
        return self.status if self.theirs is None else self.theirs


def heartbeat(timeout: str) -> bytes:
    return f'{{"timeout_seconds": {timeout}}}'.encode()


def padded(size: int) -> bytes:
    """A JSON body of that many bytes."""
    empty = len(json.dumps({"pad": ""}))
    return json.dumps({"pad": "x" * (size - empty)}).encode()


def nested(levels: int) -> bytes:
    """So many lists and objects within each other."""
    return b'{"payload": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


UNREAD = "a member that nobody reads is read all the same"
FIRST = "the signature is checked first"

SIGNATURES = [
    Case("no signature", 401, signature=lambda _: None, says="missing"),
    Case("a wrong signature", 401, signature=lambda _: "0" * 64, says="wrong"),
    Case("a signature under another secret", 401, signature=lambda i: sign(i, bytes(32)), says="wrong"),
    Case("a signature that is no hex", 401, signature=lambda _: "z" * 64, says="wrong"),
    Case("an empty signature", 401, signature=lambda _: "", says="wrong"),
    Case("a signature that is not ASCII", 401, signature=lambda _: "é" * 64),
    Case("a signature with a prefix", 401, signature=lambda i: f"0x{sign(i, SECRET)}"),
    Case("two signatures", 401, signature=lambda i: f"{sign(i, SECRET)},{sign(i, SECRET)}"),
    Case(
        "a signature of the other spelling", 401, spell=str.upper, signature=lambda i: sign(i.lower(), SECRET)
    ),
    Case("an upper-case signature", 200, signature=lambda i: sign(i, SECRET).upper()),
    Case("no signature and no JSON", 401, b"{", signature=lambda _: None, theirs=400, why=FIRST),
    Case("no signature and no type", 401, content_type=None, signature=lambda _: None, theirs=415, why=FIRST),
    Case(
        "no signature and too much", 401, padded(2 * MIB + 1), signature=lambda _: None, theirs=413, why=FIRST
    ),
    Case("no signature and no UUID", 401, spell=lambda _: "nope", signature=lambda _: None),
]

TYPES = [
    Case("no type", 415, content_type=None),
    Case("an empty type", 415, content_type=""),
    Case("text", 415, content_type="text/plain"),
    Case("text that is JSON", 415, content_type="text/json"),
    Case("a form", 415, content_type="application/x-www-form-urlencoded"),
    Case("a multipart form", 415, content_type="multipart/form-data; boundary=x"),
    Case("more than JSON", 415, content_type="application/jsonx"),
    Case("a suffix of nothing", 415, content_type="application/+json"),
    Case("JSON with parameters", 200, content_type="application/json; charset=latin1"),
    Case("JSON in capitals", 200, content_type="Application/JSON"),
    Case("JSON by suffix", 200, content_type="application/vnd.bank.v1+json"),
]

BODIES = [
    Case("an empty body", 400, b"", says="empty"),
    Case("a body that is not JSON", 400, b"status=paid", says="no JSON"),
    Case("JSON and more", 400, b"{} {}"),
    Case("a byte order mark", 400, b"\xef\xbb\xbf{}"),
    Case("UTF-16", 400, "{}".encode("utf-16")),
    Case("not a number", 400, b'{"x": NaN}', says="NaN"),
    Case("a control character", 400, b'{"x": "\n"}'),
    Case("invalid UTF-8", 400, b'{"x": "\xff"}', theirs=200, why=UNREAD, says="UTF-8"),
    Case("a lone surrogate", 400, b'{"x": "\\ud800"}', theirs=200, why=UNREAD, says="surrogate"),
    Case("a number beyond a float", 400, b'{"x": 1e400}', theirs=200, why=UNREAD),
    Case("a whole number beyond a float", 400, b'{"x": 1' + b"0" * 400 + b"}", theirs=200, why=UNREAD),
    Case(
        "ten thousand levels", 400, b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", theirs=200, why=UNREAD
    ),
    Case("128 levels", 400, nested(128), "complete", says="127"),
    Case("a payload that is no text", 400, b'{"payload": "\\ud800"}', "complete", says="surrogate"),
    Case("a payload beyond a float", 400, b'{"payload": [1e400]}', "complete"),
    Case("one byte over 2 MiB", 413, padded(2 * MIB + 1), says="2097152"),
    Case("2 MiB", 200, padded(2 * MIB)),
    Case("white space around", 200, b" \r\n\t{ }\n"),
    Case("unknown members", 200, b'{"job": 7, "job": 8, "state": null}'),
    Case("127 levels", 200, nested(127)),
]

SHAPES = [
    Case("a JSON null", 422, b"null"),
    Case("a JSON text", 422, b'"complete"'),
    Case("a list", 422, b"[60]", theirs=200, why="read by position"),
    Case("a list for complete", 422, b"[]", "complete", theirs=200, why="read by position", ends=True),
    Case("no error", 422, b"{}", "fail", says="missing"),
    Case("an error that is null", 422, b'{"error": null}', "fail"),
    Case("an error that is a number", 422, b'{"error": 7}', "fail"),
    Case("two errors", 422, b'{"error": "a", "error": "b"}', "fail", says="2 times"),
    Case("two payloads", 422, b'{"payload": 1, "payload": 1}', "complete"),
    Case("two timeouts", 422, b'{"timeout_seconds": 1, "timeout_seconds": 1}'),
    Case("a timeout that is null", 422, heartbeat("null")),
    Case("a timeout that is text", 422, heartbeat('"60"')),
    Case("a timeout that is true", 422, heartbeat("true")),
]

VALUES = [
    Case("a negative timeout", 400, heartbeat("-1"), says="ten years"),
    Case("minus nothing", 400, heartbeat("-0.0")),
    Case("a timeout beyond a float", 400, heartbeat("1e400")),
    Case("a timeout of many digits", 400, heartbeat("1" + "0" * 400)),
    Case("a timeout of five thousand digits", 400, heartbeat("1" + "0" * 5000)),
    Case("eleven years", 400, heartbeat("350000000"), theirs=200, why="no upper limit"),
    Case("2^64 seconds", 400, heartbeat(str(2**64)), theirs=DROPPED, why="no upper limit"),
    Case("ten years", 200, heartbeat("315360000")),
    Case("half a minute and a bit", 200, heartbeat("30.5")),
    Case("an error with U+0000", 400, b'{"error": "a\\u0000b"}', "fail", theirs=500, says="U+0000"),
    Case("an error with half a pair", 400, b'{"error": "\\udfff"}', "fail", says="surrogate"),
    Case("an id that is no UUID", 400, spell=lambda _: "nope", says="UUID"),
    Case("an id with something after it", 400, spell=lambda i: f"{i}x"),
    Case("an id without hyphens", 200, spell=lambda i: i.replace("-", "")),
    Case("an id in capitals", 200, spell=str.upper),
    Case("an id in braces", 200, spell=lambda i: f"{{{i}}}"),
    Case("an id as a URN", 200, spell=lambda i: f"urn:uuid:{i}"),
    Case("nobody's id", 404, spell=lambda _: "00000000-0000-4000-8000-000000000000", says="not found"),
]

ROUTES = [
    Case("another action", 404, action="explode"),
    Case("retry", 404, action="retry"),
    Case("resume", 404, action="resume"),
    Case("resolve", 404, action="resolve"),
    Case("a slash at the end", 404, action="heartbeat/"),
    Case("capitals", 404, action="Heartbeat"),
    Case("another action by GET", 404, b"", action="explode", method="GET"),
    *(
        Case(method, 405, b"", method=method)
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS")
    ),
]

CASES = [*SIGNATURES, *TYPES, *BODIES, *SHAPES, *VALUES, *ROUTES]
assert len({case.name for case in CASES}) == len(CASES), "names are for finding a case again"


def refusal(content: bytes) -> str:
    """The text of a refusal, which is all that its body has."""
    body: Mapping[str, Any] = json.loads(content)
    assert list(body) == ["error"], body
    text = body["error"]
    assert isinstance(text, str)
    assert text
    return text
