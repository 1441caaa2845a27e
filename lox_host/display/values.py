"""How logged values are written in one line."""

from typing import Any

import numpy as np

from lox_host.histogram import FIELDS, Histogram, is_histogram

FEW = 8  # elements that are written in full
ENDS = 2  # elements shown at either end of more


def short(value: Any) -> str:
    """Write a value in one line: a few elements in full, more as type and ends.

    Args:
        value: A tree of dictionaries, lists, tuples, and arrays of NumPy or JAX.
    """
    histogram = _histogram(value)
    if histogram is not None:
        return histogram
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {short(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(short, value)) + "]"
    if isinstance(value, tuple):
        inner = ", ".join(map(short, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return repr(value)
    is_numpy = isinstance(value, np.ndarray | np.generic)
    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if not is_numpy and not _has_elements(value):
        return kind
    if value.size <= FEW:
        return _nested(np.asarray(value))
    if not is_numpy and len(value.sharding.device_set) > 1:
        return kind  # to bring the ends together could take all of the devices
    # Only the ends leave the device.
    flat = value.reshape(-1)
    first, last = (map(str, np.asarray(part)) for part in (flat[:ENDS], flat[-ENDS:]))
    return f"{kind} [{', '.join([*first, '...', *last])}]"


def _histogram(value: Any) -> str | None:
    """Write a histogram: how many values there are, and where. None: it is none.

    A `lox.Histogram` is recognised by its fields, as `lox` is not imported here.
    """
    if tuple(getattr(type(value), "__dataclass_fields__", ())) == FIELDS:
        value = {name: getattr(value, name) for name in FIELDS}
    if not is_histogram(value):
        return None
    *front, bins = np.shape(value["counts"])
    many = f"[{','.join(map(str, front))}]" if front else ""
    is_readable = all(_is_readable(x) for x in value.values())
    if front or not is_readable:
        return f"histogram{many} of {bins} bins"
    counts, edges = np.asarray(value["counts"]), np.asarray(value["edges"])
    found = Histogram(counts, edges).statistics()
    text = f"histogram of {counts.sum():g} values"
    if "mean" in found:
        text += f" from {found['min']:.4g} to {found['max']:.4g}"
    bad = int(np.asarray(value["nonfinite"]))
    return f"{text}, {bad} not finite" if bad else text


def _is_readable(x: object) -> bool:
    return isinstance(x, np.ndarray | np.generic) or _has_elements(x)


def _has_elements(value: Any) -> bool:
    """Return whether an array is a `jax.Array` whose elements can be read here.

    JAX is not imported for this: an array is recognised by its attributes. The dtype of
    typed PRNG keys is none of NumPy's. For tracers the attribute raises a `TypeError`, and
    the arrays of other libraries do not have it.
    """
    if not isinstance(value.dtype, np.dtype):
        return False
    try:
        is_here = value.is_fully_addressable or value.is_fully_replicated
        return is_here and not value.is_deleted()
    except (AttributeError, TypeError):
        return False


def _nested(array: np.ndarray) -> str:
    if array.ndim == 0:
        return str(array[()])
    return "[" + ", ".join(map(_nested, array)) + "]"
