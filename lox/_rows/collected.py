"""What a part of a program has logged, on its way out of the program.

Every rule gets a `Collected` for each program inside, and returns one for the whole. It has
two halves, which are combined in different ways.

**Entries**, rows or accumulators, belong to keys. A record stays whole: keys that are
logged together are one group with one entry, which has one array for each step and one mask
for all of them. Only where keys part ways is the group split.

    log({"a": x, "b": y}, step=i)      groups = {("a", "b"): x, y, step i}

    log({"a": x, "b": y}, step=i)      groups = {("a",): [x, z], step [i, j],
    log({"a": z}, step=j)                        ("b",): y, step i}

The value of an entry is a tuple, with the value of each of its keys. The values of one key
are found at the same position in all its rows, so what joins, pads and stacks rows need
not know about keys.

**Threaded state** is handed from each part of a program to the next, like the carry of a
loop: how many rows there have been, the rows that wait to be sent, the token of the last
host call. There is nothing to combine: the last one counts. A branch that has none returns
what it was given.

    part 1      groups A    offsets 3, token t1       joined: A merged with B, offsets 5,
    part 2      groups B    offsets 5                         token t1

Invariant: each key is in exactly one group, and `order` has the keys as they were logged
first.
"""

import dataclasses
import functools as ft
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lox._jax.types import AnyArray, PyTree
from lox._rows.accumulator import Accumulator, Entry
from lox._rows.align import align
from lox._rows.merge import alternatives, merge
from lox._rows.rows import Rows
from lox._rows.types import Keys
from lox_host.frozen import frozen

Groups = Mapping[Keys, Entry]


@jax.tree_util.register_dataclass
@frozen
class Threaded:
    """State that each part of a program hands to the next.

    Attributes:
        offsets: How many rows of each key there have been, if that decides what is kept.
        buffer: The rows that wait to be sent. None: none do.
        token: Comes from the last host call. None: there was none.
        seen: What a handler that inspects values has found out so far. None: nothing.
    """

    offsets: dict[str, AnyArray] = dataclasses.field(default_factory=dict)
    buffer: PyTree = None
    token: AnyArray | None = None
    seen: PyTree = None

    def then(self, later: "Threaded") -> "Threaded":
        """Return the state after two parts of a program, the first of which left this."""
        return Threaded(
            offsets={**self.offsets, **later.offsets},
            buffer=self.buffer if later.buffer is None else later.buffer,
            token=self.token if later.token is None else later.token,
            seen=self.seen if later.seen is None else later.seen,
        )

    def limited_to(self, form: "Threaded") -> "Threaded":
        """Return only what `form` has, too."""
        return Threaded(
            offsets={key: self.offsets[key] for key in form.offsets},
            buffer=None if form.buffer is None else self.buffer,
            token=None if form.token is None else self.token,
            seen=None if form.seen is None else self.seen,
        )


class _Form(NamedTuple):
    """What of a `Collected` is known while tracing."""

    groups: tuple[Keys, ...]
    static_fields: tuple[tuple, ...]
    order: Keys


@jax.tree_util.register_pytree_node_class
@frozen
class Collected:
    """What a part of a program has logged. A pytree.

    Attributes:
        groups: Rows or accumulators, by the keys that share them.
        order: The keys, in the order in which they were logged first.
        threaded: What is handed to the next part of the program.
    """

    groups: Groups = dataclasses.field(default_factory=dict)
    order: Keys = ()
    threaded: Threaded = Threaded()

    @classmethod
    def of(
        cls,
        groups: Groups,
        threaded: Threaded = Threaded(),  # noqa: B008  it never changes
    ) -> "Collected":
        """Return groups that have been logged one after the other."""
        return cls(groups, tuple(key for keys in groups for key in keys), threaded)

    @classmethod
    def joined(cls, parts: Sequence["Collected"]) -> "Collected":
        """Return what parts of a program have logged that run one after the other."""
        # Nearly always there is one part, and nothing to look up or to merge.
        if len(parts) == 1:
            return parts[0]
        groups = {
            keys: merge(keys, [entry for _, entry in found])
            for keys, found in _in_common(parts)
        }
        return cls(groups, _order(parts), ft.reduce(Threaded.then, _states(parts)))

    @classmethod
    def either(cls, parts: Sequence["Collected"]) -> "Collected":
        """Return the form in which exactly one of `parts` leaves a `cond`."""
        groups = {}
        for keys, found in _in_common(parts):
            # A branch that logs nothing of these keys counts, too: some rows may not exist.
            logged = dict(found)
            groups[keys] = alternatives(keys, [logged.get(i) for i in range(len(parts))])
        return cls(groups, _order(parts), ft.reduce(Threaded.then, _states(parts)))

    def fitted(self, form: "Collected", given: Threaded) -> "Collected":
        """Return the same in a form that `either` found.

        `given` is the state before: what has not been touched is handed on.
        """
        groups = {
            keys: align(self.get(keys), of_keys)  # pyright: ignore[reportArgumentType]
            for keys, of_keys in form.groups.items()
        }
        # Branches must return the same state, whether they have changed it or not.
        threaded = given.then(self.threaded).limited_to(form.threaded)
        return Collected(groups, form.order, threaded)

    def get(self, keys: Keys) -> Entry | None:
        """Return what was logged of some keys that are in one group. None: nothing."""
        return self[keys] if keys[0] in self._group_of else None

    def __getitem__(self, keys: Keys) -> Entry:
        """Return what was logged of some keys that are in one group."""
        group = self._group_of[keys[0]]
        return _select(self.groups[group], group, keys)

    def separated(self) -> "Collected":
        """Return the same, each key by itself."""
        groups = {(key,): self[(key,)] for key in self.order}
        return Collected(groups, self.order, self.threaded)

    def replace(self, **changes: Any) -> "Collected":
        """Return the same with other fields."""
        return dataclasses.replace(self, **changes)

    @property
    def rows(self) -> dict[Keys, Rows]:
        """The groups that keep their rows."""
        return {k: entry for k, entry in self.groups.items() if isinstance(entry, Rows)}

    @property
    def accumulators(self) -> dict[Keys, Accumulator]:
        """The groups that are reduced."""
        groups = self.groups.items()
        return {keys: entry for keys, entry in groups if isinstance(entry, Accumulator)}

    @ft.cached_property
    def _group_of(self) -> dict[str, Keys]:
        return {key: keys for keys in self.groups for key in keys}

    def __bool__(self) -> bool:
        return bool(self.groups) or bool(jax.tree.leaves(self.threaded))

    def tree_flatten(self) -> tuple[tuple, _Form]:
        entries = self.groups.values()
        values = [entry.value for entry in entries]
        arrays = [entry.arrays() for entry in entries]
        static = tuple(entry.static_fields() for entry in entries)
        form = _Form(tuple(self.groups), static, self.order)
        # All values come before all steps, and so in the outputs of programs.
        return (values, arrays, self.threaded), form

    @classmethod
    def tree_unflatten(cls, form: _Form, children: tuple) -> "Collected":
        values, arrays, threaded = children
        entries = zip(form.groups, form.static_fields, values, arrays, strict=True)
        groups = {
            keys: kind(value, *others, *static)
            for keys, (kind, *static), value, others in entries
        }
        return cls(groups, form.order, threaded)


def rows_by_key(groups: Mapping[Keys, Rows], order: Keys) -> dict[str, Rows]:
    """Return the rows of each key, in this order.

    Keys that share an entry share its steps and masks: these are the same objects.
    """
    rows: dict[str, Rows] = {}
    for keys, entry in groups.items():
        for key, value in zip(keys, entry.value, strict=True):
            rows[key] = entry.replace(value=value, ndim=_row_ndim(entry, value))
    return {key: rows[key] for key in order}


def grouped_rows(rows: Mapping[str, Rows]) -> dict[Keys, Rows]:
    """Undo `rows_by_key`: put keys together that share their steps and masks."""
    together: dict[tuple, list[str]] = {}
    for key, key_rows in rows.items():
        # By identity: equal values would not show that one call of `log` has logged both,
        # and a tracer cannot be compared.
        ids = tuple(id(x) if jax.tree.leaves(x) else None for x in key_rows.arrays())
        # Nothing tells that keys without any of these have the same rows.
        alone = key if ids == (None,) * len(ids) else ""
        # The ranks of their values may differ, but they must have the same leading axes.
        static = key_rows.replace(ndim=key_rows.leading).static_fields()
        together.setdefault((alone, ids, static), []).append(key)
    groups: dict[Keys, Rows] = {}
    for keys in map(tuple, together.values()):
        value = tuple(rows[key].value for key in keys)
        groups[keys] = rows[keys[0]].replace(value=value)
    return groups


def signature(tree: PyTree) -> tuple:
    """Return all that two outputs of branches must have in common."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _in_common(
    parts: Sequence[Collected],
) -> Iterator[tuple[Keys, list[tuple[int, Entry]]]]:
    """Yield keys that are in one group in all parts, with the parts that have them.

    For parts with the groups {(a, b, c)} and {(a, b)}: (a, b) of both parts, and (c,) of
    the first.
    """
    # In which parts each key is, and in which of their groups:
    #     {"a": [(0, (a, b, c)), (1, (a, b))], "b": the same, "c": [(0, (a, b, c))]}
    found: dict[str, list[tuple[int, Keys]]] = {}
    for i, part in enumerate(parts):
        for key in part.order:
            found.setdefault(key, []).append((i, part._group_of[key]))
    # Keys with the same history stay together: they were in one group wherever they were.
    together: dict[tuple[tuple[int, Keys], ...], list[str]] = {}
    for key, history in found.items():
        together.setdefault(tuple(history), []).append(key)
    for history, names in together.items():
        keys = tuple(names)
        entries = [(i, _select(parts[i].groups[g], g, keys)) for i, g in history]
        yield keys, entries


def _select(entry: Entry, group: Keys, keys: Keys) -> Entry:
    """Return what an entry has of some of its keys."""
    if keys == group:
        return entry
    # The values are taken apart; steps and masks stay what they are, for all of the keys.
    chosen = [group.index(key) for key in keys]
    if isinstance(entry, Rows):
        value = tuple(entry.value[i] for i in chosen)
        return entry.replace(value=value, ndim=_row_ndim(entry, value))
    return entry.only(chosen)


def _row_ndim(rows: Rows, value: PyTree) -> int:
    """Return the rank that a row has in the first array of a value."""
    return jnp.ndim(jax.tree.leaves(value)[0]) - rows.leading - rows.time


def _order(parts: Sequence[Collected]) -> Keys:
    return tuple(dict.fromkeys(key for part in parts for key in part.order))


def _states(parts: Sequence[Collected]) -> list[Threaded]:
    return [Threaded(), *(part.threaded for part in parts)]
