from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from django.test import override_settings

from awa_django.errors import ConfigurationError, InvalidJob
from awa_django.jobs import JobInsert
from awa_django.registry import BoundJob, JobKind, derive_kind, job, registry
from awa_django.uniqueness import Unique
from awa_django.validation import validated
from tests.testapp.jobs import ProcessPayment, note, pay
from tests.vectors import load

if TYPE_CHECKING:
    from awa_django.worker.context import JobContext


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.mark.parametrize("vector", load("kind_names")["vectors"], ids=lambda vector: vector["class_name"])
def test_recorded_kinds_are_derived(vector: dict[str, Any]) -> None:
    assert derive_kind(vector["class_name"]) == vector["kind"]


def test_a_kind_is_named_by_its_option_its_class_or_its_function() -> None:
    @job
    def send_receipt(order_id: int) -> None: ...

    @dataclass
    class RefundHTTPOrder:
        order_id: int

    @job(args=RefundHTTPOrder)
    def anything(args: RefundHTTPOrder) -> None: ...

    @job(args=ProcessPayment, kind="pay-now")
    def other(args: ProcessPayment) -> None: ...

    assert (send_receipt.kind, anything.kind, other.kind) == ("send_receipt", "refund_http_order", "pay-now")
    assert registry["send_receipt"] is send_receipt
    assert "pay-now" in registry


def test_a_kind_is_still_the_function() -> None:
    @job(queue="email")
    def double(ctx: Any, number: int) -> int:
        """Twice the number."""
        return number * 2

    assert double(None, 4) == double(None, number=4) == 8
    assert isinstance(double, JobKind)
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice the number."
    assert inspect.signature(double) == inspect.signature(double.handler)
    assert not double.is_async


def test_an_async_kind_gives_a_coroutine() -> None:
    @job
    async def double(number: int) -> int:
        return number * 2

    assert double.is_async
    assert asyncio.run(double(3)) == 6
    assert asyncio.run(double.run(None, double.decode({"number": 3}))) == 6


def test_two_functions_of_one_kind_are_refused_and_both_named() -> None:
    @job(kind="clash")
    def first() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'clash'.*first.*second"):

        @job(kind="clash")
        def second() -> None: ...

    assert registry["clash"] is first


def test_the_same_function_again_takes_its_own_place() -> None:
    def declare() -> JobKind[..., Any]:
        @job
        def again() -> None: ...

        return again

    first, second = declare(), declare()
    assert registry["again"] is second is not first


def test_the_context_goes_to_a_first_parameter_named_or_annotated_for_it() -> None:
    @job
    def named(ctx, order_id: int): ...  # type: ignore[no-untyped-def]

    @job
    def annotated(context: JobContext, order_id: int) -> None: ...

    @job
    def without(order_id: int, ctx: int = 0) -> None: ...

    assert (named.takes_context, annotated.takes_context, without.takes_context) == (True, True, False)
    assert named.request(order_id=1).args == {"order_id": 1}
    assert without.request(order_id=1, ctx=2).args == {"order_id": 1, "ctx": 2}
    for kind in (named, annotated, without):
        kind.prepare()


def test_a_request_has_the_kinds_options() -> None:
    @job(queue="email", priority=1, max_attempts=3, tags=["a"], metadata={"team": "x"})
    def options(order_id: int) -> None: ...

    assert options.request(order_id=7) == JobInsert(
        kind="options",
        args={"order_id": 7},
        queue="email",
        priority=1,
        max_attempts=3,
        tags=("a",),
        metadata={"team": "x"},
    )


def test_using_changes_options_for_its_result_only() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    bound = note.using(queue="bulk", run_at=at, priority=4, unique=Unique(by_queue=True), ordering_key="c-1")
    request = bound.using(priority=3).request(order_id=1)
    assert (request.queue, request.run_at, request.priority) == ("bulk", at, 3)
    assert request.ordering_key == b"c-1"
    assert request.unique_states == "11101001"
    assert request.unique_key == Unique(by_queue=True).key("note", "bulk", {"order_id": 1})
    assert note.request(order_id=1) == JobInsert(kind="note", args={"order_id": 1})
    assert isinstance(bound, BoundJob)
    assert not isinstance(bound, JobKind)


def test_a_delay_counts_from_each_request() -> None:
    bound = note.using(run_at=timedelta(hours=1))
    before = datetime.now(UTC)
    run_at = bound.request(order_id=1).run_at
    assert run_at is not None
    assert timedelta(hours=1) <= run_at - before < timedelta(hours=1, minutes=1)


def test_a_naive_instant_is_in_the_projects_zone_and_warned_of() -> None:
    with (
        override_settings(TIME_ZONE="Pacific/Auckland"),
        pytest.warns(RuntimeWarning, match="naive datetime"),
    ):
        bound = note.using(run_at=datetime(2026, 1, 1, 12))
    request = bound.request(order_id=1)
    assert request.run_at == datetime(2025, 12, 31, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"queue": "q" * 60}, "queue", "at most 59"),
        ({"queue": "é" * 30}, "queue", "at most 59"),
        ({"queue": ""}, "queue", "name"),
        ({"queue": "cancel"}, "queue", "cancel"),
        ({"queue": "a\nb"}, "queue", "control"),
        ({"queue": None}, "queue", "text"),
        ({"priority": 0}, "priority", "1 to 4"),
        ({"priority": 5}, "priority", "1 to 4"),
        ({"priority": True}, "priority", "1 to 4"),
        ({"max_attempts": 0}, "max_attempts", "1 to 1000"),
        ({"max_attempts": 1001}, "max_attempts", "1 to 1000"),
        ({"tags": ["t"] * 21}, "tags", "at most 20"),
        ({"tags": "abc"}, "tags", "list"),
        ({"tags": ["a", 1]}, "tags[1]", "text"),
        ({"tags": ["a\0"]}, "tags[0]", "U+0000"),
        ({"metadata": ["a"]}, "metadata", "dict"),
        ({"metadata": {"a": {"b\0": 1}}}, "metadata.a", "U+0000"),
        ({"metadata": {"_awa_result": 1}}, "metadata._awa_result", "belong to awa"),
        ({"metadata": {"awa:x": 1}}, 'metadata["awa:x"]', "belong to awa"),
        ({"run_at": date(2026, 1, 1)}, "run_at", "datetime"),
        ({"run_at": "2026-01-01"}, "run_at", "datetime"),
        ({"run_at": timedelta.max}, "run_at", "calendar"),
        ({"unique": {"by": 1}}, "unique.by", "unknown option"),
        ({"ordering_key": [1]}, "ordering_key", "bytes or text"),
        ({"using": 1}, "using", "alias"),
        ({"on_conflict": "ignore"}, "on_conflict", "'holder'"),
        ({"deadline": 5}, "deadline", "unknown option"),
        ({"quue": "x"}, "quue", "known are max_attempts, metadata"),
    ],
)
def test_options_that_cannot_be_stored_are_refused(options: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        note.using(**options)
    assert refusal.value.path == path
    assert words in refusal.value.reason


def test_options_at_their_limits_are_taken() -> None:
    request = note.using(
        queue="é" * 29 + "x",
        priority=4,
        max_attempts=1000,
        tags=["t"] * 20,
        metadata={"awa:traceparent": "00-1"},
    ).request(order_id=1)
    assert len(request.queue.encode()) == 59
    assert len(request.tags) == 20
    longest = replace(request, kind="é" * 200, unique_key=b"x" * 16, unique_states="1" * 8)
    assert validated(longest) == longest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing order_id"),
        ({"order": 1}, "missing order_id"),
        ({"order_id": 1, "extra": 2, "other": 3}, "unknown extra, other; note takes note, order_id"),
    ],
)
def test_arguments_the_handler_does_not_take_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words) as refusal:
        note.request(**arguments)
    assert refusal.value.path == "args"


def test_arguments_may_come_as_one_dict_or_one_instance() -> None:
    assert note.request({"order_id": 1}) == note.request(order_id=1)
    due = datetime(2026, 1, 1, tzinfo=UTC)
    stored = {"order_id": 1, "due": "2026-01-01T00:00:00Z", "currency": "NZD"}
    assert pay.request(ProcessPayment(1, due)).args == stored
    assert pay.request(order_id=1, due=due).args == stored
    assert pay.request({"order_id": 1, "due": due}).args == stored
    for wrong in ((1,), ("x",), ({"order_id": 1}, {"order_id": 2})):
        with pytest.raises(InvalidJob, match="by name"):
            note.request(*wrong)
    with pytest.raises(InvalidJob, match="not both"):
        note.request({"order_id": 1}, order_id=1)
    with pytest.raises(InvalidJob, match=r"do not make a ProcessPayment.*order"):
        pay.request(order=1)
    with pytest.raises(InvalidJob, match="a ProcessPayment or a dict"):
        pay.request(3)


def test_arguments_that_json_cannot_hold_are_refused_with_their_path() -> None:
    with pytest.raises(InvalidJob) as refusal:
        note.request(order_id=1, note=[0, {"when": {1}}])
    assert refusal.value.path == "args.note[1].when"


def test_plain_arguments_are_handed_on_as_they_are() -> None:
    stored = {"order_id": 7}
    assert note.decode(stored) is stored


def test_annotated_arguments_come_back_as_annotated() -> None:
    @job
    def typed(
        ctx: Any, when: datetime, price: Decimal | None = None, days: tuple[date, ...] = ()
    ) -> None: ...

    values = {
        "when": datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC),
        "price": Decimal("1.10"),
        "days": (date(2026, 1, 2),),
    }
    assert typed.decode(typed.request(**values).args) == values
    assert typed.decode({"when": "2026-01-01T00:00:00Z"}) == {"when": datetime(2026, 1, 1, tzinfo=UTC)}


def test_a_dataclass_comes_back_as_an_instance() -> None:
    sent = ProcessPayment(1, datetime(2026, 1, 1, tzinfo=UTC), "EUR")
    assert pay.decode(pay.request(sent).args) == {"args": sent}
    assert pay.decode({"order_id": 2}) == {"args": ProcessPayment(2)}


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({}, r"args: missing order_id \(handler tests.testapp.jobs.note\)"),
        ({"order_id": 1, "gone": 2}, "unknown gone"),
        ([1], "an object is needed"),
        (None, "an object is needed"),
    ],
)
def test_stored_arguments_that_do_not_fit_say_why(stored: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        note.decode(stored)


def test_stored_dataclass_arguments_that_do_not_fit_say_where() -> None:
    with pytest.raises(InvalidJob, match=r"args\.due: a text of 4 characters is not a datetime"):
        pay.decode({"order_id": 1, "due": "soon"})
    with pytest.raises(InvalidJob, match="unknown colour; ProcessPayment has currency, due, order_id"):
        pay.decode({"order_id": 1, "colour": "red"})


def test_a_handler_with_open_keywords_takes_any_name() -> None:
    @job
    def open_ended(ctx: Any, order_id: int, **rest: Any) -> dict[str, Any]:
        return rest

    request = open_ended.request(order_id=1, other=2)
    assert open_ended.run(None, open_ended.decode(request.args)) == {"other": 2}
    with pytest.raises(InvalidJob, match="missing order_id"):
        open_ended.request(other=2)


def test_the_handler_gets_the_context_only_if_it_takes_it() -> None:
    @job
    def with_context(ctx: Any, number: int) -> tuple[Any, int]:
        return ctx, number

    @job
    def without_context(number: int) -> int:
        return number

    assert with_context.run("context", {"number": 1}) == ("context", 1)
    assert without_context.run("context", {"number": 1}) == 1


def test_a_declaration_that_cannot_work_is_refused() -> None:
    def handler(ctx: Any, order_id: int) -> None: ...

    for options, words in (
        ({"queue": "cancel"}, "handler: queue"),
        ({"priority": 9}, "handler: priority"),
        ({"kind": ""}, "handler: kind"),
        ({"kind": "k" * 201}, "handler: kind"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": "1h"}, "timeout='1h'"),
        ({"args": dict}, "args=<class 'dict'>"),
        ({"args": ProcessPayment(1)}, "args="),
        ({"unique": {"states": 4}}, "add available"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            job(**options)(handler)  # type: ignore[call-overload]
    assert "handler" not in registry


def test_functions_that_cannot_be_handlers_are_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    def positional(ctx: Any, order_id: int, /) -> None: ...

    def two(ctx: Any, args: ProcessPayment, more: int) -> None: ...

    def none(ctx: Any) -> None: ...

    class Holder:
        def method(self) -> None: ...

    with pytest.raises(ConfigurationError, match="generator"):
        job(generator)
    with pytest.raises(ConfigurationError, match="'order_id' must be usable by name"):
        job(positional)
    with pytest.raises(ConfigurationError, match="more than one argument"):
        job(args=ProcessPayment)(two)
    with pytest.raises(ConfigurationError, match="no argument"):
        job(args=ProcessPayment)(none)
    with pytest.raises(ConfigurationError, match="method is a method"):
        job(Holder.method)
    with pytest.raises(ConfigurationError, match="declares a function"):
        job(Holder)


def test_limits_and_descriptions_are_kept() -> None:
    @job(timeout=1.5, keep_result=True, display_name="Receipt", owner="shop", docs_url="https://example.org")
    def described() -> None: ...

    assert described.timeout == timedelta(seconds=1.5)
    assert described.keep_result
    assert described.descriptor == ("Receipt", None, "shop", "https://example.org")
    assert note.timeout is None


def test_annotations_only_type_checkers_can_read_stop_a_kind_when_prepared() -> None:
    @job
    def unreadable(ctx: Any, when: NowhereToBeFound) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match="unreadable cannot be read"):
        unreadable.prepare()


def test_autodiscovery_finds_the_jobs_of_installed_apps() -> None:
    assert registry["note"] is note
    assert registry["process_payment"] is pay
