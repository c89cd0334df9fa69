"""The parts of a parsed callback expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "Call",
    "Chain",
    "Comprehension",
    "Index",
    "ListOf",
    "Literal",
    "Logic",
    "MapOf",
    "Message",
    "Name",
    "Negate",
    "Node",
    "Not",
    "Select",
    "Ternary",
    "below",
]


class Node:
    """A part of an expression. ``inner`` names the fields that hold nodes, or tuples of nodes."""

    inner: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Literal(Node):
    """A constant; ``signed`` tells ``-1`` from ``1``."""

    value: object
    signed: bool = False


@dataclass(frozen=True)
class Name(Node):
    """A variable."""

    name: str


@dataclass(frozen=True)
class Select(Node):
    """``operand.member``, or with ``test`` the question ``has(operand.member)``."""

    inner: ClassVar[tuple[str, ...]] = ("operand",)
    operand: Node
    member: str
    test: bool = False


@dataclass(frozen=True)
class Index(Node):
    """``operand[key]``."""

    inner: ClassVar[tuple[str, ...]] = ("operand", "key")
    operand: Node
    key: Node


@dataclass(frozen=True)
class Call(Node):
    """``function(*arguments)``, or ``receiver.function(*arguments)``."""

    inner: ClassVar[tuple[str, ...]] = ("receiver", "arguments")
    function: str
    receiver: Node | None
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Comprehension(Node):
    """``source.macro(variable, condition, body)``; only the long form of ``map`` has a condition."""

    inner: ClassVar[tuple[str, ...]] = ("source", "condition", "body")
    macro: str
    source: Node
    variable: str
    condition: Node | None
    body: Node


@dataclass(frozen=True)
class ListOf(Node):
    """``[items]``."""

    inner: ClassVar[tuple[str, ...]] = ("items",)
    items: tuple[Node, ...]


@dataclass(frozen=True)
class MapOf(Node):
    """``{key: value}``."""

    inner: ClassVar[tuple[str, ...]] = ("keys", "values")
    keys: tuple[Node, ...]
    values: tuple[Node, ...]


@dataclass(frozen=True)
class Message(Node):
    """``type{member: value}``, which no evaluator can make."""

    inner: ClassVar[tuple[str, ...]] = ("values",)
    type: str
    values: tuple[Node, ...]


@dataclass(frozen=True)
class Not(Node):
    """``!operand``."""

    inner: ClassVar[tuple[str, ...]] = ("operand",)
    operand: Node


@dataclass(frozen=True)
class Negate(Node):
    """``-operand``."""

    inner: ClassVar[tuple[str, ...]] = ("operand",)
    operand: Node


@dataclass(frozen=True)
class Logic(Node):
    """Operands joined by ``||``, whose ``decisive`` value is True, or by ``&&``, whose is False."""

    inner: ClassVar[tuple[str, ...]] = ("operands",)
    decisive: bool
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Chain(Node):
    """Operands joined from the left by operators of one precedence; a long sum is no deep tree."""

    inner: ClassVar[tuple[str, ...]] = ("first", "rest")
    first: Node
    operators: tuple[str, ...]
    rest: tuple[Node, ...]


@dataclass(frozen=True)
class Ternary(Node):
    """``condition ? then : otherwise``."""

    inner: ClassVar[tuple[str, ...]] = ("condition", "then", "otherwise")
    condition: Node
    then: Node
    otherwise: Node


def below(node: Node) -> Iterator[Node]:
    """The nodes directly inside ``node``."""
    for name in node.inner:
        part = getattr(node, name)
        if isinstance(part, tuple):
            yield from part
        elif part is not None:
            yield part
