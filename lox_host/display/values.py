"""How logged values are written in one line."""

from typing import Any

import numpy as np

FEW = 8  # elements that are written in full
ENDS = 2  # elements shown at either end of more


def short(value: Any) -> str:
    """Write a value in one line: a few elements in full, more as type and ends."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {short(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        inner = ", ".join(map(short, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return repr(value)
    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if not _has_elements(value):
        return kind
    if value.size <= FEW:
        return _nested(np.asarray(value))
    is_numpy = isinstance(value, np.ndarray | np.generic)
    if not is_numpy and len(value.sharding.device_set) > 1:
        return kind  # to bring the ends together could take all of the devices
    # Only the ends leave the device.
    flat = value.reshape(-1)
    ends = [_elements(np.asarray(part)) for part in (flat[:ENDS], flat[-ENDS:])]
    return f"{kind} [{', '.join([*ends[0], '...', *ends[1]])}]"


def _has_elements(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return True
    import jax  # the command line shows NumPy arrays without it
    from jax.core import Tracer

    if isinstance(value, Tracer) or not isinstance(value, jax.Array):
        return False
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    is_here = value.is_fully_addressable or value.is_fully_replicated
    return is_here and not value.is_deleted() and not is_key


def _nested(array: np.ndarray) -> str:
    if array.ndim == 0:
        return str(array[()])
    return "[" + ", ".join(map(_nested, array)) + "]"


def _elements(array: np.ndarray) -> list[str]:
    return [str(x) for x in array]
