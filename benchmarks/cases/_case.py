"""A program to measure, written twice: with log calls, and with its metrics by hand."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Log = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A program of one seed, `fun(key)`, which is run for `seeds` of them at once.

    Nothing here imports lox: the same programs run beside each peer, on the JAX that it
    supports.

    Attributes:
        name: What it is called in the tables.
        what: A sentence about it.
        logged: From a function like `lox.log` and a number of steps to the program that
            calls it.
        by_hand: The same for the program that returns `(output, rows)`, the rows in the
            order in which their keys are first logged.
        steps: The number of steps.
        seeds: The number of seeds, a power of two.
        small: Number of steps for a quick look.
        capacity: How many rows `lox.spool` keeps of loops of unknown length.
    """

    name: str
    what: str
    logged: Callable[[Log, int], Callable]
    by_hand: Callable[[int], Callable]
    steps: int
    seeds: int = 1
    small: int = 4
    capacity: int | None = None

    def keys(self, seeds: int | None = None) -> jax.Array:
        """The argument: a key, or one for each seed."""
        keys = jax.random.split(jax.random.key(0), seeds or self.seeds)
        return keys if (seeds or self.seeds) > 1 else keys[0]

    def over_seeds(self, fun: Callable, seeds: int | None = None) -> Callable:
        return jax.vmap(fun) if (seeds or self.seeds) > 1 else fun


def ignore(*args: Any, **options: Any) -> None:
    """Log nothing."""


def norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def descend(params: Any, grads: Any, rate: float) -> Any:
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def flat(rows: Any, loops: int) -> Any:
    """The rows of nested loops in one axis of time."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[loops:]), rows)
