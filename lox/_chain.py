"""The token that host calls hand on, so that each comes after the one before it.

It travels like a key that is reduced: out of branches, along the carries of loops.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._reduce import Reduction
from ._reduced import Reduced, reduced
from ._rows import Rows

_TOKEN = "\0token"
_adding = Reduction(
    empty=jnp.zeros_like, lift=lambda x: x, combine=lambda a, b: a + b, finish=lambda x: x
)


def new_token() -> Any:
    """The token for a first call. All tokens are zero."""
    return np.zeros((), np.int32)


def chained(token: Any) -> dict[str, Reduced]:
    """What is logged of a host call that returned `token`."""
    return {_TOKEN: reduced(_TOKEN, Rows(token, {}), _adding)}


def follow(token: Any, entries: Mapping[str, Any]) -> Any:
    """The token for a call that comes after `token` and after what was logged."""
    if _TOKEN not in entries:
        return token
    (last,) = entries[_TOKEN].value
    return token + (last.max() if last.ndim else last)
