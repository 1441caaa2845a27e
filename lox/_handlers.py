"""What the transformations do with a record."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from . import _context
from ._emit import emit_effect
from ._log import log_effect, relog
from ._record import Record
from ._rows import Branch, Rows, Where

_static = {"static": True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Collect:
    """Collect the selected keys; what is not selected goes on outward."""

    keys: frozenset[str] | None = dataclasses.field(default=None, metadata=_static)
    tags: frozenset[str] | None = dataclasses.field(default=None, metadata=_static)
    keep: bool = dataclasses.field(default=False, metadata=_static)
    outward: bool = dataclasses.field(default=True, metadata=_static)

    effects = frozenset({log_effect})
    captures = True

    def __call__(self, record: Record, rebind: Callable, where: Where) -> dict[str, Rows]:
        tagged = self.tags is None or not self.tags.isdisjoint(record.tags)
        mine = [key for key in record.keys if tagged and self._wants(key)]
        kept = mine if self.keep and _context.state() == "captured" else []
        rest = [key for key in record.keys if key not in mine or key in kept]
        if rest and self.outward:
            relog(record.only(tuple(rest)))
        return record.only(tuple(mine)).rows(where)

    def _wants(self, key: str) -> bool:
        return self.keys is None or key in self.keys

    def only(self, keys: frozenset[str]) -> "Collect":
        return dataclasses.replace(self, keys=keys)

    def quiet(self) -> "Collect":
        return dataclasses.replace(self, outward=False)


class _Rebinding:
    """A handler that collects nothing: it lets the record stand, changed."""

    def only(self, keys: frozenset[str]) -> "_Rebinding":
        return self

    def quiet(self) -> "_Rebinding":
        return self


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forward(_Rebinding):
    """Log each record anew, for whoever listens here."""

    effects = frozenset({log_effect})
    captures = True

    def __call__(self, record: Record, rebind: Callable, where: Where) -> dict[str, Rows]:
        relog(record)
        return {}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask(_Rebinding):
    """Let records be valid only where `condition` holds; `branch` says of which `cond`."""

    condition: jax.Array
    branch: Branch | None = dataclasses.field(default=None, metadata=_static)

    effects = frozenset({log_effect, emit_effect})
    captures = False

    def __call__(self, record: Record, rebind: Callable, where: Where) -> dict[str, Rows]:
        # The condition may have the first batch axes of the record, or none.
        inner = range(self.condition.ndim, len(record.batch))
        condition = jnp.broadcast_to(jnp.expand_dims(self.condition, inner), record.batch)
        valid = condition if record.valid is None else record.valid & condition
        if self.branch is None:
            rebind(record.replace(valid=valid, sure=False))
        else:
            rebind(record.replace(valid=valid, path=(*record.path, self.branch)))
        return {}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Anchor(_Rebinding):
    """Tie records to `counter`, so that they stay in the loop that counts it."""

    counter: jax.Array

    effects = frozenset({log_effect, emit_effect})
    captures = False

    def __call__(self, record: Record, rebind: Callable, where: Where) -> dict[str, Rows]:
        rebind(record.replace(anchors=(*record.anchors, self.counter)))
        return {}
