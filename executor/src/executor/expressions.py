"""Integer expressions over symbols, as in shapes and arena sizes: `4*n`, `max(n, 16) + 3`.

The grammar is Python's for + - * // % and parentheses over whole numbers and names, with `min` and `max`.
Expressions come out of files, so they are parsed, never evaluated as code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from executor.errors import ManifestError

Values = Mapping[str, int]
Evaluate = Callable[[Values], int]

_LONGEST = 2000
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"max": max, "min": min}


def evaluate(expression: int | str, values: Values) -> int:
    """The value of `expression` where `values` gives each of its symbols; ManifestError if one lacks."""
    if isinstance(expression, int):
        return expression
    try:
        return compiled(expression)(values)
    except KeyError as error:
        raise ManifestError(f"expression {expression!r} uses symbol {error}; known are {sorted(values)}") from None
    except ZeroDivisionError:
        raise ManifestError(f"expression {expression!r} divides by zero at {dict(values)}") from None


def symbols_of(expression: int | str) -> frozenset[str]:
    """The names that `expression` uses; ManifestError if it is outside the grammar."""
    if isinstance(expression, int):
        return frozenset()
    compiled(expression)
    names = (node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name))
    return frozenset(names) - _FUNCTIONS.keys()


@lru_cache(maxsize=4096)
def compiled(expression: str) -> Evaluate:
    """`expression` as a function of its symbols' values; ManifestError if it is outside the grammar."""
    return _lower(_parse(expression), expression)


def _parse(expression: str) -> ast.expr:
    if len(expression) > _LONGEST:
        raise ManifestError(f"an expression of {len(expression)} characters; the longest allowed is {_LONGEST}")
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ManifestError(f"{expression!r} is no expression over symbols: {error}") from None


def _lower(node: ast.expr, text: str) -> Evaluate:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return lambda values: value
        case ast.Name(id=name) if name not in _FUNCTIONS:
            return lambda values: values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _lower(operand, text)
            return lambda values: -inner(values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            apply, first, second = _OPERATORS[type(op)], _lower(left, text), _lower(right, text)
            return lambda values: apply(first(values), second(values))
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as args, keywords=[]) if name in _FUNCTIONS:
            function, terms = _FUNCTIONS[name], [_lower(arg, text) for arg in args]
            return lambda values: function(*(term(values) for term in terms))
    raise ManifestError(f"{text!r}: {type(node).__name__} has no place in an expression over symbols")
