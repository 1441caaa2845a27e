"""Convert logged values to JSON types: numbers, texts, lists and dictionaries."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def to_json(value: Any, special: Callable[[float], Any] = lambda number: None) -> Any:
    """Return a tree of arrays as what `json.dumps` writes strictly.

    Floats have the fewest digits that tell them from others of their type: the float32 next
    to 0.1 is 0.1, and not 0.10000000149011612. Complex numbers are `[real, imaginary]`.
    Masked elements are None, and objects become what `str` makes of them.

    Args:
        value: Dictionaries, lists, tuples, arrays, numbers, and so on.
        special: What to put in place of NaN and infinities.
    """
    if isinstance(value, dict):
        return {str(name): to_json(inner, special) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner, special) for inner in value]
    if isinstance(value, np.generic):
        return _scalar(value, special)
    if isinstance(value, np.ndarray):
        return _listed(value, special)
    if isinstance(value, float):
        return _number(value, special)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def key_name(key: str) -> str:
    """Return the name of a key where the names of steps begin with `@`."""
    return f"@{key}" if key.startswith("@") else key


def _scalar(number: Any, special: Callable) -> Any:
    # Types of other libraries (bfloat16, int4) tell what they are by their items.
    item = number.item()
    if isinstance(item, complex):
        return [_scalar(number.real, special), _scalar(number.imag, special)]
    return _number(float(str(number)), special) if isinstance(item, float) else item


def _listed(array: Any, special: Callable) -> Any:
    if array.dtype.kind == "c":
        return _listed(np.ma.stack([array.real, array.imag], -1), special)
    if not isinstance(np.zeros((), array.dtype).item(), float):
        return array.tolist()
    items = np.empty(array.size, object)
    items[:] = [_number(float(str(x)), special) for x in np.ma.getdata(array).reshape(-1)]
    items[np.ma.getmaskarray(array).reshape(-1)] = None
    return items.reshape(array.shape).tolist()


def _number(number: float, special: Callable) -> Any:
    return number if math.isfinite(number) else special(number)
