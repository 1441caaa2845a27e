"""L-BFGS with a line search: a while_loop in a while_loop, neither of known length."""

import dataclasses

import jax
import jax.numpy as jnp

from ._case import Case

SIZE, MEMORY, ROOM, PRECISION = 32, 5, 1024, 1e-3


def logged(log, steps):
    def shorten(search):
        search = shortened(search)
        log({"rate": search["rate"], "trial": search["trial"]})
        return search

    def step(state):
        search = jax.lax.while_loop(is_too_far, shorten, begin(state))
        state = moved(state, search)
        log({"loss": state["loss"], "slope": slope(state)})
        return state

    def minimize(key):
        state = jax.lax.while_loop(lambda s: is_running(s, steps), step, start(key))
        return state["x"]

    return minimize


def by_hand(steps, *, room=ROOM):
    """The rows of both loops, and how many of them there are."""

    def shorten(carry):
        search, rows, n = carry
        search = shortened(search)
        return search, written(rows, n, (search["rate"], search["trial"])), n + 1

    def step(carry):
        state, inner, n, outer, m = carry
        search, inner, n = jax.lax.while_loop(
            lambda carry: is_too_far(carry[0]), shorten, (begin(state), inner, n)
        )
        state = moved(state, search)
        return state, inner, n, written(outer, m, (state["loss"], slope(state))), m + 1

    def minimize(key):
        empty = jnp.zeros(room), jnp.zeros(room)
        state, inner, n, outer, m = jax.lax.while_loop(
            lambda carry: is_running(carry[0], steps),
            step,
            (start(key), empty, 0, empty, 0),
        )
        return state["x"], (*inner, *outer, n, m)

    return minimize


def written(rows, n, values):
    return tuple(row.at[n].set(value) for row, value in zip(rows, values, strict=True))


def objective(x):
    """Rosenbrock's valley in many dimensions."""
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2) / SIZE


def start(key):
    x = 0.5 * jax.random.normal(key, (SIZE,))
    loss, grad = jax.value_and_grad(objective)(x)
    pairs = jnp.zeros((MEMORY, SIZE))
    return {"x": x, "loss": loss, "grad": grad, "moves": pairs, "turns": pairs, "i": 0}


def slope(state):
    return jnp.linalg.norm(state["grad"])


def is_running(state, steps):
    return (slope(state) > PRECISION) & (state["i"] < steps)


def direction(state):
    """The gradient times an estimate of the inverse Hessian, by the two-loop recursion."""
    moves, turns = state["moves"], state["turns"]
    products = jnp.sum(moves * turns, axis=1)
    scales = jnp.where(products > 0, 1 / jnp.where(products > 0, products, 1), 0)
    q, alphas = state["grad"], []
    for i in reversed(range(MEMORY)):
        alphas.append(scales[i] * moves[i] @ q)
        q = q - alphas[-1] * turns[i]
    size = turns[-1] @ turns[-1]
    q = q * jnp.where(size > 0, products[-1] / jnp.where(size > 0, size, 1), 1)
    for i, alpha in zip(range(MEMORY), reversed(alphas), strict=True):
        q = q + (alpha - scales[i] * turns[i] @ q) * moves[i]
    return -q


def begin(state):
    """The first trial of a line search."""
    step = direction(state)
    search = {
        "x": state["x"], "step": step, "loss": state["loss"],
        "descent": state["grad"] @ step, "rate": jnp.float32(2),
    }  # fmt: skip
    return shortened({**search, "trial": jnp.float32(0)})


def shortened(search):
    rate = search["rate"] / 2
    trial = objective(search["x"] + rate * search["step"])
    return {**search, "rate": rate, "trial": trial}


def is_too_far(search):
    enough = search["loss"] + 1e-4 * search["rate"] * search["descent"]
    return (search["trial"] > enough) & (search["rate"] > 1e-6)


def moved(state, search):
    x = state["x"] + search["rate"] * search["step"]
    loss, grad = jax.value_and_grad(objective)(x)
    move, turn = x - state["x"], grad - state["grad"]
    return {
        "x": x,
        "loss": loss,
        "grad": grad,
        "moves": jnp.roll(state["moves"], -1, 0).at[-1].set(move),
        "turns": jnp.roll(state["turns"], -1, 0).at[-1].set(turn),
        "i": state["i"] + 1,
    }


CASE = Case(
    "l-bfgs",
    "L-BFGS on Rosenbrock's function in 32 dimensions, until the gradient is small: the "
    "line search is a `while_loop` in a `while_loop`, both log two numbers, and "
    f"`capacity` is {ROOM:,}.",
    logged,
    by_hand,
    steps=400,
    small=8,
    capacity=ROOM,
)
VMAPPED = dataclasses.replace(
    CASE, name="l-bfgs, 8 starts", what="The same from eight starts at once.", seeds=8
)
