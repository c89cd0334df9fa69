"""Callback expressions in Common Expression Language: checked at registration, evaluated at resolve.

A stored expression may be evaluated by any awa client, and has to mean the same to all (contract: api/cel). The
evaluator is our own because no package in Python gives these meanings: they differ in what ``==`` says of numbers
of different types, in what a member of a value without members is, and in the functions. It needs nothing but
Python, save for ``matches``, whose regular expressions are those of the extra ``cel``.

Everything here is pure, and safe in any number of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

from awa_django.cel import tree as trees
from awa_django.cel.evaluation import evaluate
from awa_django.cel.faults import CelFault, SyntaxFault
from awa_django.cel.functions import FUNCTIONS, regular_expressions
from awa_django.cel.syntax import MACROS, parse
from awa_django.cel.values import Budget, Uint, from_json, to_json
from awa_django.encoding import text_fault
from awa_django.errors import InvalidJob

__all__ = [
    "Complete",
    "Decision",
    "DefaultAction",
    "Expressions",
    "Fail",
    "Ignored",
    "check",
    "decide",
    "hints",
]

logger = logging.getLogger(__name__)

#: What becomes of a callback that no expression decides.
DefaultAction: TypeAlias = Literal["complete", "fail", "ignore"]


@dataclass(frozen=True, slots=True)
class Expressions:
    """The expressions of one callback, as stored with its attempt; None where there is none."""

    filter: str | None = field(default=None, repr=False)
    on_complete: str | None = field(default=None, repr=False)
    on_fail: str | None = field(default=None, repr=False)
    transform: str | None = field(default=None, repr=False)

    @property
    def any(self) -> bool:
        """Whether there is an expression at all."""
        return any(text is not None for _, text in self.named())

    def named(self) -> Iterator[tuple[str, str | None]]:
        """Each expression under its name."""
        for item in fields(self):
            yield item.name, getattr(self, item.name)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The job stays as it is and the callback stays valid."""

    reason: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The job is completed; ``payload`` is what resolve returns, JSON or None."""

    payload: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Fail:
    """The job fails with ``error``; ``expression`` is the text of ``on_fail`` if that decided."""

    error: str = field(repr=False)
    expression: str | None = field(default=None, repr=False)


Decision: TypeAlias = Ignored | Complete | Fail


class _Undecided:
    """What an expression comes to that is missing or went wrong."""


_UNDECIDED = _Undecided()

#: Parsed expressions that are kept. Stored texts come from code, so there are few of them.
_KEPT = 512


@lru_cache(_KEPT)
def _parsed(text: str) -> tuple[trees.Node, bool]:
    """The tree of an expression, and whether it calls ``matches``."""
    tree = parse(text)
    return tree, any(isinstance(node, trees.Call) and node.function == "matches" for node in _walk(tree))


def _walk(node: trees.Node) -> Iterator[trees.Node]:
    yield node
    for inner in trees.below(node):
        yield from _walk(inner)


# --- At registration ---------------------------------------------------------------------------------------


def check(expressions: Expressions) -> None:
    """Refuse expressions that no resolve could evaluate, before they are stored.

    Raises ``InvalidJob`` whose ``path`` is ``filter``, ``on_complete``, ``on_fail`` or ``transform``, for what is
    no expression, for variables other than ``payload`` and those of comprehensions, for functions that do not
    exist or lack arguments, and for messages; ``CelNotInstalled`` if one calls ``matches`` without the extra
    ``cel``. Logs a warning, once for each text, about comparisons that are never true: see :func:`hints`.
    """
    for name, text in expressions.named():
        if text is None:
            continue
        if not isinstance(text, str):
            raise InvalidJob(name, f"an expression is text, not {text!r}")
        if fault := text_fault(text):
            raise InvalidJob(name, fault)
        try:
            tree, needs_matches = _parsed(text)
        except SyntaxFault as error:
            raise InvalidJob(name, f"no CEL expression: {error}") from None
        if faults := tuple(dict.fromkeys(_faults(tree, frozenset({"payload"})))):
            raise InvalidJob(name, "; ".join(faults))
        if needs_matches:
            regular_expressions()
        _warn_once(name, text)


def _faults(node: trees.Node, known: frozenset[str]) -> Iterator[str]:
    """Why a tree cannot be evaluated, whatever the payload."""
    match node:
        case trees.Name(name) if name not in known:
            yield f"unknown variable {name}; an expression knows payload alone"
        case trees.Message(kind):
            yield f"messages such as {kind}{{...}} do not exist here"
        case trees.Call(function, receiver, arguments):
            yield from _call_faults(function, receiver is not None, len(arguments))
        case trees.Comprehension(_, source, variable, condition, body):
            yield from _faults(source, known)
            for part in (condition, body):
                if part is not None:
                    yield from _faults(part, known | {variable})
            return
    for inner in trees.below(node):
        yield from _faults(inner, known)


def _call_faults(name: str, method: bool, arguments: int) -> Iterator[str]:
    function = FUNCTIONS.get(name)
    if function is not None:
        missing = (function.arguments(method=method) or 0) - arguments
        if missing > 0:
            yield f"{name}(...) lacks {missing} argument{'s' if missing > 1 else ''}"
    elif name in MACROS and method:
        takes = " or ".join(str(number) for number in MACROS[name])
        yield f"{name}(...) takes {takes} arguments, not {arguments}"
    elif name == "has" and not method:
        yield f"has(...) takes 1 argument, not {arguments}"
    else:
        yield f"unknown function {name}(...)"


_ARITHMETIC = frozenset("+-*/%")


def hints(text: str) -> tuple[str, ...]:
    """What is likely a mistake in a valid expression: a member of the payload beside an int or double literal.

    JSON integers from 0 up are uints, and neither equal to an int such as ``100`` nor added to one; ``100u`` is
    what to write. An order (``>=``) compares by value and needs no care.
    """
    found: list[str] = []
    for node in _walk(_parsed(text)[0]):
        if not isinstance(node, trees.Chain):
            continue
        operands = (node.first, *node.rest)
        for operator, pair in zip(node.operators, zip(operands, node.rest, strict=False), strict=True):
            literal = next((part for part in map(_numbers, pair) if part is not None), None)
            if literal is None or not any(map(_is_payload_path, pair)):
                continue
            if operator in _ARITHMETIC:
                found.append(f"payload... {operator} {literal} is an error if the payload has a uint there")
            elif operator in ("==", "!=", "in"):
                answer = "true" if operator == "!=" else "false"
                found.append(f"payload... {operator} {literal} is {answer} for every uint")
    return tuple(dict.fromkeys(found))


def _is_payload_path(node: trees.Node) -> bool:
    while isinstance(node, trees.Select | trees.Index):
        node = node.operand
    return node == trees.Name("payload")


def _numbers(node: trees.Node) -> str | None:
    """The int or double literal that ``node`` is, or holds as an item of a list; no negative, which no uint is."""
    for part in node.items if isinstance(node, trees.ListOf) else (node,):
        if isinstance(part, trees.Literal) and not part.signed:
            value = part.value
            if isinstance(value, int | float) and not isinstance(value, bool | Uint):
                return repr(value)
    return None


@lru_cache(_KEPT)
def _warn_once(name: str, text: str) -> None:
    for hint in hints(text):
        logger.warning(
            "callback expression %s: %s; a JSON integer from 0 up is a uint, written 100u", name, hint
        )


# --- At resolve --------------------------------------------------------------------------------------------


def decide(
    expressions: Expressions,
    payload: object = None,
    default: DefaultAction = "ignore",
    *,
    job_id: int | None = None,
) -> Decision:
    """What a resolve does with a callback (contract: api/cel section 1).

    ``filter`` false ignores it; ``on_fail`` true fails the job; ``on_complete`` true completes it, with the payload
    that ``transform`` makes; else ``default`` decides, with the payload as it came. An expression that goes wrong,
    or is no boolean, decides nothing, and a transform that goes wrong returns the payload; a warning with
    ``job_id`` and the name of the expression is logged, never the payload.

    Raises ``InvalidJob`` for another ``default``, and ``CelNotInstalled`` if an expression calls ``matches`` without
    the extra ``cel``: then nothing is decided, and the job has to be left waiting.
    """
    if default not in get_args(DefaultAction):
        raise InvalidJob(
            "default_action", f"unknown default_action: {default} (expected 'complete', 'fail', or 'ignore')"
        )
    if expressions.any:
        _require(expressions)
        run = _Run(payload, job_id)
        if run.value("filter", expressions.filter, boolean=True) is False:
            return Ignored("filter expression returned false")
        if run.value("on_fail", expressions.on_fail, boolean=True) is True:
            return Fail("callback failed: on_fail expression matched", expressions.on_fail)
        if run.value("on_complete", expressions.on_complete, boolean=True) is True:
            transformed = run.value("transform", expressions.transform)
            return Complete(payload if transformed is _UNDECIDED else transformed)
    match default:
        case "complete":
            return Complete(payload)
        case "fail":
            return Fail("callback failed: default action")
    return Ignored("no expressions configured, default is ignore")


def _require(expressions: Expressions) -> None:
    """Raise ``CelNotInstalled`` before anything is evaluated, whether or not the call would be reached."""
    for _, text in expressions.named():
        try:
            needed = text is not None and _parsed(text)[1]
        except SyntaxFault:
            continue  # it decides nothing, and is reported where it is evaluated
        if needed:
            regular_expressions()


class _Run:
    """One payload that several expressions are asked about."""

    def __init__(self, payload: object, job_id: int | None) -> None:
        self._payload = payload
        self._job_id = job_id
        self._variables: dict[str, object] | None = None

    def value(self, name: str, text: str | None, *, boolean: bool = False) -> object:
        """The result as JSON, or ``_UNDECIDED``."""
        if text is None:
            return _UNDECIDED
        try:
            tree, _ = _parsed(text)
            if self._variables is None:
                self._variables = {"payload": _payload(self._payload)}
            budget = Budget()
            result = evaluate(tree, self._variables, budget)
            if boolean and not isinstance(result, bool):
                raise CelFault("the result is not a bool")
            return _result(result, budget)
        except (SyntaxFault, CelFault) as error:
            logger.warning(
                "callback expression %s of job %s decides nothing: %s",
                name,
                "?" if self._job_id is None else self._job_id,
                error,
                extra={"job_id": self._job_id, "expression": name},
            )
            return _UNDECIDED


def _payload(payload: object) -> object:
    try:
        return from_json(payload)
    except RecursionError:
        raise CelFault("the payload is nested too deeply") from None
    except OverflowError:
        raise CelFault("the payload holds a number beyond a double") from None


def _result(result: object, budget: Budget) -> object:
    try:
        return to_json(result, budget)
    except RecursionError:
        raise CelFault("the result is nested too deeply") from None
