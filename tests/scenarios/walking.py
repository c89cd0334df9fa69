"""Going through the admin as its links lead, and writing down what each page took.

A page's figures are its statements, all that the driver sent for it, and the seconds until its last byte.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import psycopg
from django.test import Client

from awa_django.admin.kept import forget

__all__ = ["Page", "Statement", "Visit", "forbidden", "most_rows", "sent", "template", "visit", "walk"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as the driver sent it, and the seconds until its answer."""

    text: str
    values: Any
    seconds: float
    thread: str


@contextmanager
def sent() -> Iterator[list[Statement]]:
    """Every statement that this process sends while the block lasts, from any thread and by any cursor."""
    statements: list[Statement] = []
    execute = psycopg.Cursor.execute

    def noted(cursor: Any, query: Any, values: Any = None, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(cursor, query, values, **kwargs)
        finally:
            took = time.perf_counter() - began
            text = query if isinstance(query, str) else _text(query, cursor)
            statements.append(Statement(text, values, took, threading.current_thread().name))

    psycopg.Cursor.execute = noted  # type: ignore[method-assign]
    try:
        yield statements
    finally:
        psycopg.Cursor.execute = execute  # type: ignore[method-assign]


def _text(query: Any, cursor: Any) -> str:
    if isinstance(query, bytes):
        return query.decode()
    return str(query.as_string(cursor))


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page."""

    url: str
    status: int
    seconds: float
    statements: Sequence[Statement]
    html: str = field(repr=False)

    @property
    def queries(self) -> int:
        """Statements, whatever they do."""
        return len(self.statements)

    @property
    def slowest(self) -> Statement | None:
        """The statement that took longest."""
        return max(self.statements, key=lambda statement: statement.seconds, default=None)


def visit(client: Client, url: str, *, seconds: float = 0.5, attempts: int = 5) -> Visit:
    """Ask for a page; again when it took more than ``seconds``, as it may on a machine that is busy. The quickest.

    Each time it reads anew what pages keep for a while, as the unlucky one does.
    """
    best: Visit | None = None
    for _ in range(attempts):
        forget()
        with sent() as statements:
            began = time.perf_counter()
            answer = client.get(url)
            html = answer.content.decode()
            took = time.perf_counter() - began
        if best is None or took < best.seconds:
            best = Visit(url, answer.status_code, took, tuple(statements), html)
        if best.seconds < seconds:
            break
    assert best is not None
    return best


# What a page offers -------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The links of a page, its forms that only ask, and those that act."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        #: Of each form that asks: where to, and what each of its fields offers.
        self.asks: list[tuple[str, dict[str, list[str]]]] = []
        #: Where forms and buttons post to.
        self.acts: list[str] = []
        #: Where pages after this one are.
        self.next: str | None = None
        self._fields: dict[str, list[str]] | None = None
        self._select: str | None = None
        self._list: str | None = None
        self._lists: dict[str, list[str]] = {}
        self._suggested: list[tuple[dict[str, list[str]], str, str]] = []
        self.feed(html)
        for fields, name, suggestions in self._suggested:
            fields.setdefault(name, []).extend(self._lists.get(suggestions, []))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        match tag:
            case "a" if "href" in values:
                self.hrefs.append(values["href"])
                if values.get("rel") == "next":
                    self.next = values["href"]
            case "form":
                if values.get("method", "get").lower() == "post":
                    self.acts.append(values.get("action", ""))
                    self._fields = None
                else:
                    self._fields = {}
                    self.asks.append((values.get("action", ""), self._fields))
            case "button" | "input" if "formaction" in values:
                self.acts.append(values["formaction"])
            case "select":
                self._select = values.get("name")
            case "datalist":
                self._list = values.get("id")
            case "option" if self._list:
                self._lists.setdefault(self._list, []).append(values.get("value", ""))
            case "option" if self._fields is not None and self._select and values.get("value"):
                self._fields.setdefault(self._select, []).append(values["value"])
            case "input" if self._fields is not None and values.get("name"):
                if values.get("list"):
                    self._suggested.append((self._fields, values["name"], values["list"]))
                elif values.get("type") in ("radio", "checkbox", "hidden") and values.get("value"):
                    self._fields.setdefault(values["name"], []).append(values["value"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._fields = None
        elif tag == "select":
            self._select = None
        elif tag == "datalist":
            self._list = None

    def addresses(self, base: str) -> Iterator[str]:
        """Everything that can be asked for from here, a filter's choices one at a time."""
        for href in self.hrefs:
            yield _clean(urljoin(base, href))
        for action, fields in self.asks:
            for name, choices in fields.items():
                for choice in choices:
                    yield _clean(urljoin(base, action).partition("?")[0] + "?" + urlencode({name: choice}))


def _clean(url: str) -> str:
    """Without a fragment, and without parameters that say nothing."""
    parts = urlsplit(url)
    return urlunsplit(("", "", parts.path, urlencode(parse_qsl(parts.query)), ""))


_NUMBER = re.compile(r"(?<=/)(\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(?=/)")
_OBJECT = re.compile(r"(?<=/)[^/]+(?=/(change|history)/)")
_CURSOR = re.compile(r"\d{3,}|[0-9a-f]{8}-|[0-9]{4}-[0-9]{2}")


def template(url: str, *, thorough: bool = True) -> str:
    """The sort of page that an address is of: ids and cursors are all alike, and so are pairs of filters.

    Unless ``thorough``, so are queues, and kinds.
    """
    path, _, query = url.partition("?")
    found = sorted(parse_qsl(query))
    path = (_NUMBER if thorough else _OBJECT).sub("#", path)
    shown = [
        f"{name}={value}"
        if len(found) == 1 and not _CURSOR.search(value) and (thorough or name in ("state", "show"))
        else name
        for name, value in found
    ]
    return path + ("?" + "&".join(shown) if shown else "")


def walk(
    client: Client,
    start: str,
    *,
    also: Sequence[str] = (),
    thorough: bool = True,
    seconds: float = 0.5,
    limit: int = 1000,
) -> Iterator[Visit]:
    """Visit what can be reached from ``start`` by links and filters that stay below it, and what ``also`` names.

    Of pages that are alike (:func:`template`) two, or one unless ``thorough``.
    """
    waiting = deque([start, *also])
    seen: set[str] = {start, *also}
    alike = Counter(template(url, thorough=thorough) for url in waiting)
    while waiting:
        url = waiting.popleft()
        found = visit(client, url, seconds=seconds)
        limit -= 1
        assert limit > 0, "the admin has no end"
        yield found
        if found.status != 200:
            continue
        for link in Page(found.html).addresses(url):
            if not link.startswith(start) or link in seen:
                continue
            seen.add(link)
            sort = template(link, thorough=thorough)
            alike[sort] += 1
            if alike[sort] <= 1 + thorough:
                waiting.append(link)


# What no page may do ------------------------------------------------------------------------------------------

#: What Django's own lists do.
_ORM = re.compile(r'^SELECT (COUNT\(\*\) AS "__count"|DISTINCT ")')
_READS = re.compile(r"\s*(--[^\n]*\n\s*)*(SELECT|WITH)\b", re.IGNORECASE)


def forbidden(statements: Sequence[Statement]) -> list[str]:
    """Statements that count a table or ask for its different values, as the ORM writes them.

    Django's page of past actions counts those of one object, which is Django's affair.
    """
    return [
        statement.text
        for statement in statements
        if _ORM.match(statement.text) and "django_admin_log" not in statement.text
    ]


def most_rows(connection: psycopg.Connection[Any], statement: Statement) -> int:
    """The most rows that any part of a statement's plan went through, by running it again; 0 for what is no query."""
    if not _READS.match(statement.text):
        return 0
    with connection.transaction(force_rollback=True):
        cursor = psycopg.Cursor(connection)
        # As pages are read, but for the time limit: being watched takes a plan several times as long.
        cursor.execute("SET LOCAL jit = off")
        cursor.execute("SET LOCAL statement_timeout = '60s'")
        cursor.execute(
            f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement.text}".encode(), statement.values
        )
        row = cursor.fetchone()
    assert row is not None
    return max(_rows(row[0][0]["Plan"]))


def _rows(node: dict[str, Any]) -> Iterator[int]:
    passed = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    yield int(passed * node["Actual Loops"])
    for part in node.get("Plans", ()):
        yield from _rows(part)
