"""The text of a kernel: where it is, its syntax tree, and places in it for error messages."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helium.errors import Location, SourceUnavailable


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's function: its tree, and what is needed to point into the user's file."""

    name: str
    file: str
    first_line: int
    indent: int
    lines: tuple[str, ...]
    tree: ast.FunctionDef
    names: dict[str, Any]
    """Globals and closure of the function, as they were when the kernel was defined or first compiled."""

    def line(self, node: ast.AST) -> int:
        """The line of `node` in the user's file."""
        return self.first_line + int(getattr(node, "lineno", 1)) - 1

    def location(self, node: ast.AST) -> Location:
        """The place of `node`, with the text of its line."""
        row = int(getattr(node, "lineno", 1)) - 1
        column = int(getattr(node, "col_offset", 0))
        single = getattr(node, "end_lineno", None) == row + 1
        end = int(getattr(node, "end_col_offset", column + 1)) if single else len(self.lines[row])
        return Location(self.file, self.first_line + row, column, end, self.lines[row])


def read(function: Callable[..., Any], text: str | None = None) -> Source:
    """The source of `function`; from `text` where the interpreter cannot know it.

    Raises:
        SourceUnavailable: There is no text, or it holds no such function.
    """
    name, file, first = function.__name__, function.__code__.co_filename, function.__code__.co_firstlineno
    if text is None:
        try:
            found, first = inspect.getsourcelines(function)
        except (OSError, TypeError) as error:
            raise SourceUnavailable(name, str(error)) from error
        text = "".join(found)
    else:
        first = 1
    dedented = textwrap.dedent(text)
    tree = _find(ast.parse(dedented), name)
    indent = len(text.splitlines()[0]) - len(dedented.splitlines()[0])
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    return Source(name, file, first, indent, tuple(dedented.splitlines()), tree, names)


def _find(module: ast.Module, name: str) -> ast.FunctionDef:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise SourceUnavailable(name, "its text holds no function of that name")
