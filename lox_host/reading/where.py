"""Conditions on runs: `{"lr": 1e-3}`, or `'lr > 1e-3 and env == "CartPole"'`.

A text is a Python expression with comparisons, `and`, `or`, `not`, `in`, numbers, texts and
lists. lox parses it and never executes it. Names are the fields of `run_fields.py`,
including `train/loss` and `optim.lr`.

As in SQL, a comparison with a value that a run does not have is neither true nor false, and
neither is its negation. Only runs for which the whole condition is true are selected:

    lr > 1e-3              a run without `lr` is not selected
    not lr > 1e-3          nor is it here
    lr > 1e-3 or seed < 3  selected if its `seed` is less than 3
    lr is None             selected, as is a run whose `lr` is None
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from lox_host.reading.run_fields import Getter, field, is_from_device, last_value, setting
from lox_host.store import StoredRun

Where = Mapping[str, Any] | str
# True, False, or None if a run lacks a value.
Condition = Callable[[StoredRun], bool | None]

_NUMBERS = {"nan": math.nan, "inf": math.inf, "true": True, "false": False}
_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def select_where(runs: Sequence[StoredRun], where: Where | None) -> list[StoredRun]:
    """Return the runs for which a condition is true.

    Raises:
        LookupError: If it has a name that no run has.
        ValueError: If it is not a valid condition.
    """
    if where is None:
        return list(runs)
    condition = condition_of(runs, where)
    return [run for run in runs if condition(run)]


def condition_of(runs: Sequence[StoredRun], where: Where) -> Condition:
    """Return a function that tells whether a run matches. Names refer to these runs."""
    if isinstance(where, str):
        return _Parser(runs, where).parse()
    if not isinstance(where, Mapping):
        raise TypeError(
            f"`where` is {type(where).__name__!r}. Give a mapping such as {{'lr': 1e-3}}, "
            "or a string such as 'lr > 1e-3'."
        )
    # Without runs, names cannot be looked up.
    pairs = [(field(runs, name)[1], wanted) for name, wanted in where.items() if runs]

    def matches(run: StoredRun) -> bool:
        return all(_matches(get(run), wanted) for get, wanted in pairs)

    return matches


def _matches(value: Any, wanted: Any) -> bool:
    """Return whether a value is the wanted one, or one of several wanted ones."""
    if isinstance(wanted, np.ndarray | np.generic):
        wanted = wanted.tolist()
    if is_equal(value, wanted):
        return True
    if isinstance(wanted, str | Mapping) or not isinstance(wanted, Iterable):
        return False
    return any(_matches(value, one) for one in wanted)


def is_equal(a: Any, b: Any) -> bool:
    """Compare two values: NaN with NaN, and 1e-3 with the float32 that is nearest to it."""
    # An integer is exact. A float may have been through float32 on a device.
    if isinstance(a, float) or isinstance(b, float):
        try:
            a, b = _alike(a, b)
        except (TypeError, ValueError, OverflowError):
            return False
        return a == b or (a != a and b != b)
    return a == b


def _alike(a: Any, b: Any) -> tuple[float, float]:
    """Return two numbers, both as float32 if one of them comes from a device."""
    a, b = _number(a), _number(b)
    if is_from_device(a) or is_from_device(b):
        with np.errstate(over="ignore"):
            return float(np.float32(a)), float(np.float32(b))
    return a, b


def _number(value: Any) -> float:
    if not isinstance(value, bool | int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


class _Parser:
    """Turn the text of a condition into a function.

    Args:
        runs: The runs, whose names are known.
        text: The condition.
    """

    def __init__(self, runs: Sequence[StoredRun], text: str):
        self._runs, self._text = runs, text

    def parse(self) -> Condition:
        try:
            tree = ast.parse(_quote_keywords(self._text.strip()), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self._fail(f"is not an expression{self._hint(error)}")
        if isinstance(tree, ast.Tuple):
            self._fail("is a list; write `and` between conditions")
        return self._condition(tree)

    def _hint(self, error: Exception) -> str:
        """Return what to write instead of something from another language."""
        if "&&" in self._text or "||" in self._text:
            return "; write `and`, `or` and `not`"
        if isinstance(error, SyntaxError) and "=" in self._text:
            return "; to compare, write `==`"
        return ""

    def _condition(self, node: ast.expr) -> Condition:
        """Return the condition of a part of the expression."""
        # Of three values: `or` is true if any part is, or else unknown if any part is.
        if isinstance(node, ast.BoolOp):
            parts = [self._condition(part) for part in node.values]
            decisive = isinstance(node.op, ast.Or)
            return lambda run: _combine([part(run) for part in parts], decisive)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._condition(node.operand)
            return lambda run: None if (value := inner(run)) is None else not value
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        # A name alone: an entry that is true.
        get = self._value(node)
        return lambda run: None if (value := get(run)) is None else bool(value)

    def _comparison(self, node: ast.Compare) -> Condition:
        """Return the condition of `a < b`, or of a chain `a < b < c`."""
        parts = [node.left, *node.comparators]
        pairs = zip(node.ops, parts, parts[1:], strict=False)
        steps = [self._pair(op, a, b) for op, a, b in pairs]
        return lambda run: _combine([step(run) for step in steps], decisive=False)

    def _pair(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Condition:
        """Return the condition of one comparison, `a < b`."""
        named = [part for part in (left, right) if not _is_none(part)]
        if len(named) == 1:
            if not isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
                self._fail("orders by None; write `is None` or `is not None`")
            get, wanted = self._value(named[0]), isinstance(op, ast.Eq | ast.Is)
            return lambda run: (get(run) is None) == wanted
        a, b = self._value(left), self._value(right)
        return lambda run: self._compare(op, a(run), b(run))

    def _compare(self, op: ast.cmpop, a: Any, b: Any) -> bool | None:
        if a is None or b is None:
            return None
        if isinstance(op, ast.Eq | ast.NotEq):
            return is_equal(a, b) == isinstance(op, ast.Eq)
        if isinstance(op, ast.In | ast.NotIn):
            if isinstance(b, str):
                return (str(a) in b) == isinstance(op, ast.In)
            if not isinstance(b, list | tuple):
                self._fail(f"uses `in` with {b!r}, which is not a list")
            return any(is_equal(a, one) for one in b) == isinstance(op, ast.In)
        compare = _ORDERS.get(type(op))
        if compare is None:
            self._fail("compares with `is`; write `==`")
        if isinstance(a, str) and isinstance(b, str):
            return compare(a, b)
        try:
            return compare(*_alike(a, b))
        except TypeError:
            # Of some runs it may be a number, and of others a text such as "auto".
            return None

    def _value(self, node: ast.expr) -> Getter:
        """Return the getter of a name, or of a literal value."""
        if isinstance(node, ast.Constant) and _is_plain(node.value):
            return lambda run: node.value
        if isinstance(node, ast.List | ast.Tuple):
            items = [self._value(item) for item in node.elts]
            return lambda run: [item(run) for item in items]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            inner = self._value(node.operand)
            sign = -1 if isinstance(node.op, ast.USub) else 1
            return lambda run: self._signed(sign, inner(run))
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        name = _name_of(node)
        if name is None:
            self._fail(
                f"contains {ast.unparse(node)!r}; it may contain names, numbers, strings "
                "in quotes, lists, comparisons, `and`, `or`, `not` and `in`"
            )
        # Without runs there are no names to check, and nothing to select.
        if not self._runs:
            return lambda run: None
        try:
            return field(self._runs, name)[1]
        except LookupError as error:
            if name.lower() in _NUMBERS:
                return lambda run: _NUMBERS[name.lower()]
            raise LookupError(
                f"In the condition {self._text!r}: {error} If you mean a string, put it "
                "in quotes."
            ) from None

    def _subscript(self, node: ast.Subscript) -> Getter:
        """Return what `config["lr"]` or `last["loss"]` is."""
        kinds = {"config": setting, "last": last_value}
        kind = kinds.get(_name_of(node.value) or "")
        name = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if kind is None or not isinstance(name, str):
            self._fail(
                f'contains {ast.unparse(node)!r}; write config["..."] or last["..."]'
            )
        return kind(name)

    def _signed(self, sign: int, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, bool | int | float):
            self._fail(f"has a sign before {value!r}, which is not a number")
        return sign * value

    def _fail(self, problem: str) -> NoReturn:
        raise ValueError(
            f"The condition {self._text!r} {problem}. Write it like "
            "'lr > 1e-3 and env == \"CartPole\"'."
        )


def _combine(values: Sequence[bool | None], decisive: bool) -> bool | None:
    """Combine with `or` if True decides, and with `and` if False does."""
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


# Python keywords that are not part of expressions. A key may have such a name, as in
# `return > 400`.
_KEYWORD = "__keyword_"
_STATEMENT = re.compile(
    r"""'[^']*'|"[^"]*"|\b(assert|break|class|continue|def|del|except|finally|global|import"""
    r"""|nonlocal|pass|raise|return|try|while|with)\b"""
)


def _quote_keywords(text: str) -> str:
    """Return a condition in which Python keywords outside of quotes are names."""
    return _STATEMENT.sub(lambda m: f"{_KEYWORD}{m[1]}" if m[1] else m[0], text)


def _name_of(node: ast.expr) -> str | None:
    """Return the name that an expression spells out: `optim.lr`, `train/loss`."""
    if isinstance(node, ast.Name):
        return node.id.removeprefix(_KEYWORD)
    if isinstance(node, ast.Attribute):
        outer, inner = _name_of(node.value), node.attr.removeprefix(_KEYWORD)
        return None if outer is None else f"{outer}.{inner}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        outer, inner = _name_of(node.left), _name_of(node.right)
        return None if outer is None or inner is None else f"{outer}/{inner}"
    return None
