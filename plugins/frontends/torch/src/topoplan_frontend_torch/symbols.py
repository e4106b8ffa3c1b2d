"""Symbolic sizes of an exported program: texts to numbers, once each symbol has a value.

The texts are those of sympy: ``2*s0 + 1``, or ``Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(1))``.
"""

from __future__ import annotations

import ast
import functools
from typing import Any

from topoplan import TopoplanError
from topoplan.errors import shown

__all__ = ["Symbols"]

#: Characters of the longest expression, and the largest number on the way to its value.
_LONGEST, _LARGEST = 1000, 2**62


class Symbols:
    """Values of symbols: the batch as users say, all others as the file was saved with (its hints)."""

    def __init__(self, where: str, batch_size: int | None) -> None:
        self._where = where
        self._batch_size = batch_size
        self._values: dict[str, int] = {}

    def bind(self, size: Any, name: str) -> None:
        """Take the first size of input ``name`` for the batch.

        Raises:
            TopoplanError: users ask for another batch size, and this size is a number or an expression.
        """
        if self._batch_size is None:
            return
        expression = size.get("as_expr") if isinstance(size, dict) else None
        text = expression.get("expr_str") if isinstance(expression, dict) else None
        symbol = _symbol(text) if isinstance(text, str) else ""
        if symbol:
            self._values[symbol] = self._batch_size
        elif self.size(size, f"{self._where}: {name}") != self._batch_size:
            raise TopoplanError(
                f"{self._where}: the first size of input {shown(name)} is {self.size(size, self._where)} and not a "
                f"symbol, so that the batch size cannot be {self._batch_size} (leave it out, or export with "
                'dynamic_shapes=({0: torch.export.Dim("batch")},))'
            )

    def size(self, table: Any, where: str) -> int:
        """Return a size: ``{"as_int": 3}`` or ``{"as_expr": {"expr_str": "s0", "hint": {"as_int": 2}}}``.

        Raises:
            TopoplanError: it is neither, or a symbol has no value.
        """
        if isinstance(table, dict) and len(table) == 1:
            if type(number := table.get("as_int")) is int:
                return number
            expression = table.get("as_expr")
            if isinstance(expression, dict) and isinstance(text := expression.get("expr_str"), str):
                hint = expression.get("hint")
                value = hint.get("as_int") if isinstance(hint, dict) else None
                return self._evaluated(text, value if type(value) is int else None, where)
        raise TopoplanError(f"{where}: {shown(table)} is no size (expected as_int or as_expr)")

    def _evaluated(self, text: str, hint: int | None, where: str) -> int:
        if len(text) > _LONGEST:
            raise TopoplanError(f"{where}: an expression of {len(text)} characters (at most {_LONGEST})")
        if hint is not None and (symbol := _symbol(text)):
            self._values.setdefault(symbol, hint)
        try:
            return self._value(ast.parse(text, mode="eval").body)
        except KeyError as error:
            raise TopoplanError(
                f"{where}: symbol {error} of size {shown(text)} has no value (export with this size as a number)"
            ) from None
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            raise TopoplanError(f"{where}: {shown(text)} is no size that can be read") from None

    def _value(self, node: ast.expr) -> int:
        """Return the value of an expression of integers, symbols and their arithmetic."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return self._values[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand)
        if isinstance(node, ast.BinOp):
            return _operation(type(node.op).__name__, self._value(node.left), self._value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if symbol := _named(node):
                return self._values[symbol]
            values = [self._value(argument) for argument in node.args]
            if node.func.id == "Integer" and len(values) == 1:
                return values[0]
            if node.func.id in ("Max", "Min") and values:
                return max(values) if node.func.id == "Max" else min(values)
            if len(values) > 1:
                return functools.reduce(functools.partial(_operation, node.func.id), values)
        raise ValueError


def _operation(name: str, first: int, second: int) -> int:
    """Return arithmetic of two integers, by the name that Python or torch has for it."""
    if name == "Add":
        result = first + second
    elif name == "Sub":
        result = first - second
    elif name in ("Mult", "Mul"):
        result = first * second
    elif name in ("FloorDiv", "CleanDiv", "IntTrueDiv") or (name == "Div" and first % second == 0):
        result = first // second
    elif name in ("CeilDiv", "CeilToInt"):
        result = -(-first // second)
    elif name in ("Mod", "PythonMod"):
        result = first % second
    elif name == "Pow" and 0 <= second <= 8:
        result = first**second
    else:
        raise ValueError
    if abs(result) > _LARGEST:
        raise ValueError
    return result


def _symbol(text: str) -> str:
    """Return the symbol that a text is; empty if it is something else."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return node.id if isinstance(node, ast.Name) else _named(node)


def _named(node: ast.expr) -> str:
    """Return the name in ``Symbol('s0', integer=True)``; empty for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol" and node.args:
        first = node.args[0]
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    return ""
