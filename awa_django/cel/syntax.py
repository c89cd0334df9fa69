"""The grammar of callback expressions: text to a tree (contract: api/cel sections 2 to 4).

What is accepted is what every evaluator of a stored expression accepts, peculiarities included: ``!!x`` is ``!x``
and ``--x`` is ``-x``, and a hexadecimal number takes no minus sign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from awa_django.cel.faults import SyntaxFault
from awa_django.cel.tokens import Token, bytes_of, text_of, tokens
from awa_django.cel.tree import (
    Call,
    Chain,
    Comprehension,
    Index,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Message,
    Name,
    Negate,
    Node,
    Not,
    Select,
    Ternary,
    below,
)
from awa_django.cel.values import INT_MAX, INT_MIN, UINT_MAX, Uint

__all__ = ["MACROS", "parse"]

#: Bytes of UTF-8 in one expression (contract: api/cel section 6).
MAX_LENGTH = 10_000
#: Levels of brackets, and levels of the tree.
MAX_NESTING = 100

#: Comprehensions, by name, with the numbers of arguments they take.
MACROS = {
    "all": (2,),
    "exists": (2,),
    "exists_one": (2,),
    "existsOne": (2,),
    "filter": (2,),
    "map": (2, 3),
}

#: Operators by falling looseness; those of one row group from the left.
_LEVELS = (
    frozenset({"||"}),
    frozenset({"&&"}),
    frozenset({"<", "<=", ">", ">=", "==", "!=", "in"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
)
_OPERATORS = frozenset().union(*_LEVELS)
_CONSTANTS = {"true": True, "false": False, "null": None}


def _grouped(operands: Sequence[Node], operators: Sequence[str], level: int = 0) -> Node:
    """One node for operands with operators between them, which were read without regard to precedence."""
    if not operators:
        return operands[0]
    cuts = [place for place, operator in enumerate(operators) if operator in _LEVELS[level]]
    if not cuts:
        return _grouped(operands, operators, level + 1)
    starts = [0, *(cut + 1 for cut in cuts)]
    ends = [*cuts, len(operators)]
    parts = tuple(
        _grouped(operands[start : end + 1], operators[start:end], level + 1)
        for start, end in zip(starts, ends, strict=True)
    )
    if level < 2:
        return Logic(level == 0, parts)
    return Chain(parts[0], tuple(operators[cut] for cut in cuts), parts[1:])


@dataclass
class _Parser:
    """Reads one expression; each method takes its part from the tokens that are left."""

    tokens: list[Token]
    place: int = 0
    nesting: int = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.place]

    def sees(self, *signs: str) -> bool:
        return self.next.kind == "sign" and self.next.text in signs

    def take(self) -> Token:
        token = self.next
        self.place += 1
        return token

    def skip(self, sign: str) -> bool:
        found = self.sees(sign)
        self.place += found
        return found

    def need(self, sign: str) -> None:
        if not self.skip(sign):
            raise self.wanted(f"{sign!r}")

    def wanted(self, what: str) -> SyntaxFault:
        """What is needed instead of the next token."""
        token = self.next
        found = "the end" if token.kind == "end" else token.text[:40]
        return SyntaxFault(f"{what} is needed at character {token.at + 1}, not {found}")

    def whole(self) -> Node:
        tree = self.expression()
        if self.next.kind != "end":
            raise self.wanted("an operator or the end")
        return tree

    def expression(self) -> Node:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise SyntaxFault(f"nested deeper than {MAX_NESTING} levels")
        tree = self.binary()
        if self.skip("?"):
            then = self.binary()  # another ?: needs brackets here, by the grammar of CEL
            self.need(":")
            tree = Ternary(tree, then, self.expression())
        self.nesting -= 1
        return tree

    def binary(self) -> Node:
        operands, operators = [self.operand()], []
        while self.sees(*_OPERATORS):
            operators.append(self.take().text)
            operands.append(self.operand())
        return _grouped(operands, operators)

    def operand(self) -> Node:
        if self.sees("!"):
            while self.skip("!"):
                pass
            signed = self.skip("-")
            if signed and self.next.kind not in ("int", "float", "hex"):
                raise self.wanted("a number")
            return Not(self.member(signed))
        if not self.skip("-"):
            return self.member(False)
        if self.next.kind in ("int", "float", "hex"):
            return self.member(True)
        while self.skip("-"):
            pass
        return Negate(self.member(False))

    def member(self, signed: bool) -> Node:
        token = self.next
        tree = self.primary(signed)
        # Only a path of plain names can be the type of a message.
        path = [tree.name] if isinstance(tree, Name) and token.text != "(" else []
        while True:
            if self.skip("."):
                if self.next.kind not in ("name", "quoted") or self.next.text in _CONSTANTS:
                    raise self.wanted("a member's name")
                name = self.take()
                if name.kind == "name" and self.skip("("):
                    tree = self.called(name.text, tree)
                    path = []
                else:
                    tree = Select(tree, name.text)
                    path = [*path, name.text] if path and name.kind == "name" else []
            elif self.skip("["):
                tree = Index(tree, self.expression())
                self.need("]")
                path = []
            elif path and self.skip("{"):
                tree = self.message(".".join(path))
                path = []
            else:
                return tree

    def primary(self, signed: bool) -> Node:
        token = self.take()
        if token.kind == "sign":
            match token.text:
                case "(":
                    tree = self.expression()
                    self.need(")")
                    return tree
                case "[":
                    return ListOf(self.items("]"))
                case "{":
                    return self.map()
                case "." if self.next.kind == "name" and self.next.text not in _CONSTANTS:
                    token = self.take()
                    if self.skip("("):  # no function has such a name, but the text is well formed
                        return self.called(f".{token.text}", None)
        match token.kind:
            case "name" if token.text in _CONSTANTS:
                return Literal(_CONSTANTS[token.text])
            case "name":
                return self.called(token.text, None) if self.skip("(") else Name(token.text)
            case "string":
                return Literal(text_of(token.text))
            case "bytes":
                return Literal(bytes_of(token.text))
            case "int" | "hex" | "uint" | "float":
                return self.number(token, signed)
        self.place -= 1
        raise self.wanted("a value")

    def number(self, token: Token, signed: bool) -> Node:
        sign = "-" if signed else ""
        if token.kind == "float":
            value = float(sign + token.text)
            if math.isinf(value):
                raise SyntaxFault(f"{sign}{token.text[:40]} is beyond the range of a double")
            return Literal(value, signed)
        if token.kind == "hex" and signed:
            raise SyntaxFault(f"-{token.text[:40]}: a hexadecimal number takes no minus sign")
        digits = token.text.rstrip("uU")
        hexadecimal = digits.startswith("0x")
        # More digits than any number of 64 bits has are not read at all: ``int`` refuses thousands of them.
        significant = digits.removeprefix("0x").lstrip("0")[:21] or "0"
        whole = int(sign + significant, 16 if hexadecimal else 10)
        if token.kind == "uint":
            if whole > UINT_MAX:
                raise SyntaxFault(f"{token.text[:40]} is beyond the range of a uint")
            return Literal(Uint(whole))
        if not INT_MIN <= whole <= INT_MAX:
            raise SyntaxFault(f"{sign}{token.text[:40]} is beyond the range of an int")
        return Literal(whole, signed)

    def items(self, end: str) -> tuple[Node, ...]:
        """Expressions up to the bracket that ends a list, where a comma may stand last, or arguments."""
        found: list[Node] = []
        if end == "]" and self.skip(","):
            self.need(end)
            return ()
        while not self.skip(end):
            if found:
                self.need(",")
                if end == "]" and self.skip(end):
                    break
            found.append(self.expression())
        return tuple(found)

    def map(self) -> Node:
        keys: list[Node] = []
        values: list[Node] = []
        if self.skip(","):
            self.need("}")
            return MapOf((), ())
        while not self.skip("}"):
            if keys:
                self.need(",")
                if self.skip("}"):
                    break
            keys.append(self.expression())
            self.need(":")
            values.append(self.expression())
        return MapOf(tuple(keys), tuple(values))

    def message(self, kind: str) -> Node:
        values: list[Node] = []
        while not self.skip("}"):
            if values:
                self.need(",")
                if self.skip("}"):
                    break
            if self.next.kind not in ("name", "quoted"):
                raise self.wanted("a member's name")
            self.take()
            self.need(":")
            values.append(self.expression())
        return Message(kind, tuple(values))

    def called(self, function: str, receiver: Node | None) -> Node:
        """A call whose opening bracket was read, or the macro of that name."""
        arguments = self.items(")")
        if function == "has" and receiver is None and len(arguments) == 1:
            if not isinstance(arguments[0], Select):
                raise SyntaxFault("has(...) takes a member, such as has(payload.status)")
            return Select(arguments[0].operand, arguments[0].member, test=True)
        if receiver is not None and len(arguments) in MACROS.get(function, ()):
            if not isinstance(arguments[0], Name):
                raise SyntaxFault(f"the first argument of {function}(...) is the name of its variable")
            condition = arguments[1] if len(arguments) == 3 else None
            return Comprehension(function, receiver, arguments[0].name, condition, arguments[-1])
        return Call(function, receiver, arguments)


def parse(text: str) -> Node:
    """The tree of an expression. Raises ``SyntaxFault``."""
    if len(text.encode(errors="surrogatepass")) > MAX_LENGTH:
        raise SyntaxFault(f"longer than {MAX_LENGTH} bytes")
    try:
        tree = _Parser(tokens(text)).whole()
    except RecursionError:
        raise SyntaxFault("nested too deeply for what is left of the stack") from None
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise SyntaxFault(f"nested deeper than {MAX_NESTING} levels")
        level = [inner for node in level for inner in below(node)]
    return tree
