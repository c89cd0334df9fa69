"""A tree and a payload to a result (contract: api/cel section 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from awa_django.cel import tree as trees
from awa_django.cel.faults import CelFault
from awa_django.cel.functions import FUNCTIONS
from awa_django.cel.times import Duration, Timestamp
from awa_django.cel.values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    Budget,
    Uint,
    Value,
    compare,
    equal,
    holds,
    key_of,
    type_name,
    value_of_key,
)

__all__ = ["evaluate"]

Scope = Mapping[str, Value]


def evaluate(tree: trees.Node, variables: Scope, budget: Budget) -> Value:
    """The value of an expression. Raises ``CelFault`` if it has none, ``CelNotInstalled`` if it cannot be known."""
    try:
        return _value(tree, variables, budget)
    except RecursionError:
        raise CelFault("values nested too deeply") from None
    except UnicodeEncodeError:
        raise CelFault("a lone surrogate is not text") from None
    except MemoryError:
        raise CelFault("a result that does not fit into memory") from None


def _value(node: trees.Node, scope: Scope, budget: Budget) -> Value:
    return _EVALUATORS[type(node)](node, scope, budget)


def _boolean(value: Value, of: str) -> bool:
    if isinstance(value, bool):
        return value
    raise CelFault(f"{of} is a {type_name(value)}, not a bool")


def _literal(node: trees.Literal, scope: Scope, budget: Budget) -> Value:
    return node.value


def _name(node: trees.Name, scope: Scope, budget: Budget) -> Value:
    try:
        return scope[node.name]
    except KeyError:
        raise CelFault(f"there is no variable {node.name}") from None


def _select(node: trees.Select, scope: Scope, budget: Budget) -> Value:
    operand = _value(node.operand, scope, budget)
    if not isinstance(operand, dict):
        return False
    if node.test:
        return node.member in operand
    if node.member not in operand:
        raise CelFault(f"there is no member {node.member}")
    return operand[node.member]


def _index(node: trees.Index, scope: Scope, budget: Budget) -> Value:
    operand = _value(node.operand, scope, budget)
    key = _value(node.key, scope, budget)
    if isinstance(operand, dict):
        found = key_of(key)
        if found not in operand:
            raise CelFault(f"a map has no such {type_name(key)} key")
        return operand[found]
    if not isinstance(operand, list) or not isinstance(key, int) or isinstance(key, bool):
        raise CelFault(f"a {type_name(operand)} has no index of type {type_name(key)}")
    if not 0 <= key < len(operand):
        raise CelFault(f"a list of {len(operand)} has no such index")
    return operand[key]


def _call(node: trees.Call, scope: Scope, budget: Budget) -> Value:
    function = FUNCTIONS.get(node.function)
    if function is None:
        raise CelFault(f"there is no function {node.function}")
    values: list[Value] = []
    method = node.receiver is not None
    if node.receiver is not None:
        receiver = _value(node.receiver, scope, budget)
        if function.takes_receiver:
            values.append(receiver)
    # Arguments beyond those are not even evaluated.
    takes = function.arguments(method=method)
    values += [_value(argument, scope, budget) for argument in node.arguments[:takes]]
    if function.needs is not None and len(values) < function.needs:
        raise CelFault(f"{node.function} needs {function.needs} values, not {len(values)}")
    return function.body(values, budget)


def _list(node: trees.ListOf, scope: Scope, budget: Budget) -> Value:
    return [_value(item, scope, budget) for item in node.items]


def _map(node: trees.MapOf, scope: Scope, budget: Budget) -> Value:
    return {
        key_of(_value(key, scope, budget)): _value(value, scope, budget)
        for key, value in zip(node.keys, node.values, strict=True)
    }


def _message(node: trees.Message, scope: Scope, budget: Budget) -> Value:
    raise CelFault(f"there are no messages such as {node.type}")


def _not(node: trees.Not, scope: Scope, budget: Budget) -> Value:
    return not _boolean(_value(node.operand, scope, budget), "the operand of !")


def _negate(node: trees.Negate, scope: Scope, budget: Budget) -> Value:
    value = _value(node.operand, scope, budget)
    if isinstance(value, bool):
        return not value  # as every evaluator of a stored expression does
    if type(value) is int:
        return value if value == INT_MIN else -value
    if isinstance(value, float):
        return -value
    raise CelFault(f"a {type_name(value)} has no negative")


def _logic(node: trees.Logic, scope: Scope, budget: Budget) -> Value:
    """One decisive operand decides, whatever the others are; without one, all have to be booleans."""
    fault: CelFault | None = None
    for operand in node.operands:
        try:
            if _boolean(_value(operand, scope, budget), "an operand of || or &&") is node.decisive:
                return node.decisive
        except CelFault as error:
            fault = fault or error
    if fault is not None:
        raise fault
    return not node.decisive


def _ternary(node: trees.Ternary, scope: Scope, budget: Budget) -> Value:
    decided = _boolean(_value(node.condition, scope, budget), "the condition of ?:")
    return _value(node.then if decided else node.otherwise, scope, budget)


def _chain(node: trees.Chain, scope: Scope, budget: Budget) -> Value:
    value = _value(node.first, scope, budget)
    for operator, operand in zip(node.operators, node.rest, strict=True):
        value = _OPERATORS[operator](value, _value(operand, scope, budget), budget)
    return value


def _comprehension(node: trees.Comprehension, scope: Scope, budget: Budget) -> Value:
    source = _value(node.source, scope, budget)
    if isinstance(source, dict):
        items: Sequence[Value] = [value_of_key(key) for key in source]
    elif isinstance(source, list):
        items = source
    else:
        raise CelFault(f"{node.macro} over a {type_name(source)}")
    inner = dict(scope)

    def holds(test: trees.Node, item: Value) -> bool:
        inner[node.variable] = item
        return _boolean(_value(test, inner, budget), f"the condition of {node.macro}")

    found: list[Value] = []
    for item in items:
        budget.iterate()
        if node.macro == "map":
            if node.condition is None or holds(node.condition, item):
                inner[node.variable] = item
                found.append(_value(node.body, inner, budget))
        elif holds(node.body, item):
            if node.macro == "exists":
                return True
            found.append(item)
        elif node.macro == "all":
            return False
    match node.macro:
        case "all":
            return True
        case "exists":
            return False
        case "exists_one" | "existsOne":
            return len(found) == 1
    return found


_EVALUATORS: dict[type[trees.Node], Callable[[Any, Scope, Budget], Value]] = {
    trees.Literal: _literal,
    trees.Name: _name,
    trees.Select: _select,
    trees.Index: _index,
    trees.Call: _call,
    trees.Comprehension: _comprehension,
    trees.ListOf: _list,
    trees.MapOf: _map,
    trees.Message: _message,
    trees.Not: _not,
    trees.Negate: _negate,
    trees.Logic: _logic,
    trees.Ternary: _ternary,
    trees.Chain: _chain,
}


# --- Operators ---------------------------------------------------------------------------------------------


def _arithmetic(
    sign: str, of_integers: Callable[[int, int], int], of_doubles: Callable[[float, float], float] | None
) -> Callable[[Any, Any, Budget], Value]:
    """An operator between equal numeric types; what leaves their range is a fault."""

    def operate(left: Any, right: Any, budget: Budget) -> Value:
        kind = type(left)
        if kind is not type(right):
            raise CelFault(f"a {type_name(left)} {sign} a {type_name(right)}")
        if kind is float and of_doubles is not None:
            return of_doubles(left, right)
        if kind is int:
            number = of_integers(left, right)
            if INT_MIN <= number <= INT_MAX:
                return number
            raise CelFault(f"an int {sign} an int out of range")
        if kind is Uint:
            number = of_integers(int(left), int(right))
            if 0 <= number <= UINT_MAX:
                return Uint(number)
            raise CelFault(f"a uint {sign} a uint out of range")
        raise CelFault(f"a {type_name(left)} {sign} a {type_name(right)}")

    return operate


def _quotient(left: int, right: int) -> int:
    """Division truncated toward zero."""
    if right == 0:
        raise CelFault("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    if left == INT_MIN and right == -1:
        raise CelFault("a remainder whose quotient is out of range")
    return left - right * _quotient(left, right)


def _divided(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or left != left:
        return float("nan")
    # The sign of a zero counts: 1.0 / -0.0 is minus infinity.
    return float("inf") if (str(left)[0] == "-") == (str(right)[0] == "-") else float("-inf")


_sum = _arithmetic("+", lambda a, b: a + b, lambda a, b: a + b)
_difference = _arithmetic("-", lambda a, b: a - b, lambda a, b: a - b)


def _plus(left: Any, right: Any, budget: Budget) -> Value:
    if isinstance(right, Duration):
        if isinstance(left, Duration):
            return Duration(left.nanoseconds + right.nanoseconds)
        if isinstance(left, Timestamp):
            return left.plus(right)
    if type(left) is type(right) and isinstance(left, str | bytes | list):
        joined = left + right
        budget.work(len(joined) >> (0 if isinstance(joined, list) else 4))
        return joined
    return _sum(left, right, budget)


def _minus(left: Any, right: Any, budget: Budget) -> Value:
    if isinstance(right, Duration):
        if isinstance(left, Duration):
            return Duration(left.nanoseconds - right.nanoseconds)
        if isinstance(left, Timestamp):
            return left.plus(Duration(-right.nanoseconds))
    if isinstance(left, Timestamp) and isinstance(right, Timestamp):
        return left.minus(right)
    return _difference(left, right, budget)


def _in(left: Any, right: Any, budget: Budget) -> bool:
    if isinstance(right, list):
        return holds(right, left, budget)
    if isinstance(right, dict):
        return key_of(left) in right
    raise CelFault(f"in a {type_name(right)}")


_OPERATORS: dict[str, Callable[[Any, Any, Budget], Value]] = {
    "+": _plus,
    "-": _minus,
    "*": _arithmetic("*", lambda a, b: a * b, lambda a, b: a * b),
    "/": _arithmetic("/", _quotient, _divided),
    "%": _arithmetic("%", _remainder, None),
    "<": lambda left, right, budget: compare(left, right, budget) < 0,
    "<=": lambda left, right, budget: compare(left, right, budget) <= 0,
    ">": lambda left, right, budget: compare(left, right, budget) > 0,
    ">=": lambda left, right, budget: compare(left, right, budget) >= 0,
    "==": equal,
    "!=": lambda left, right, budget: not equal(left, right, budget),
    "in": _in,
}
