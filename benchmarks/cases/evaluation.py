"""Evaluation of a policy while it is trained: episodes end one by one, in a while_loop."""

import jax
import jax.numpy as jnp

from ._case import Case

EPISODES, ROOM, HIDDEN, SAMPLES = 16, 64, 32, 256


def logged(log, rounds):
    def evaluate(params, key):
        def step(episode):
            episode = acted(params, episode)
            log({"reward": episode["reward"], "angle": episode["angle"]})
            return episode

        return jax.lax.while_loop(is_running, step, begin(key))["total"]

    def round_(params, key):
        params, loss = trained(params, key)
        totals = jax.vmap(evaluate, (None, 0))(params, jax.random.split(key, EPISODES))
        log({"loss": loss, "total": totals.mean()})
        return params, None

    def train(key):
        return jax.lax.scan(round_, init(key), jax.random.split(key, rounds))[0]

    return train


def by_hand(rounds):
    """For each round the rows of each episode, and how many of them there are."""

    def evaluate(params, key):
        def step(carry):
            episode, (rewards, angles), n = carry
            episode = acted(params, episode)
            rows = rewards.at[n].set(episode["reward"]), angles.at[n].set(episode["angle"])
            return episode, rows, n + 1

        start = begin(key), (jnp.zeros(ROOM), jnp.zeros(ROOM)), 0
        episode, rows, n = jax.lax.while_loop(
            lambda carry: is_running(carry[0]), step, start
        )
        return episode["total"], (*rows, n)

    def round_(params, key):
        params, loss = trained(params, key)
        keys = jax.random.split(key, EPISODES)
        totals, (*rows, n) = jax.vmap(evaluate, (None, 0))(params, keys)
        return params, (*rows, loss, totals.mean(), n)

    def train(key):
        return jax.lax.scan(round_, init(key), jax.random.split(key, rounds))

    return train


def init(key):
    first, second = jax.random.split(key)
    return {
        "first": jax.random.normal(first, (3, HIDDEN)),
        "second": jax.random.normal(second, (HIDDEN,)) / HIDDEN,
    }


def force(params, angle, speed):
    features = jnp.stack([jnp.sin(angle), jnp.cos(angle), speed], axis=-1)
    return jnp.tanh(jnp.tanh(features @ params["first"]) @ params["second"])


def trained(params, key):
    """Steps towards a controller that works against the speed."""
    angles, speeds = jax.random.normal(key, (2, SAMPLES))

    def loss(params):
        return jnp.mean((force(params, angles, speeds) + jnp.tanh(angles + speeds)) ** 2)

    def step(params, _):
        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params, losses = jax.lax.scan(step, params, None, length=8)
    return params, losses[-1]


def begin(key):
    """A pendulum that stands nearly upright."""
    zero = jnp.float32(0)
    angle = 0.05 * jax.random.normal(key)
    return {"angle": angle, "speed": zero, "reward": zero, "total": zero, "time": 0}


def acted(params, episode):
    push = 2 * force(params, episode["angle"], episode["speed"])
    speed = episode["speed"] + 0.05 * (9.8 * jnp.sin(episode["angle"]) + push)
    angle = episode["angle"] + 0.05 * speed
    reward = jnp.cos(angle) - 0.01 * push**2
    return {
        "angle": angle,
        "speed": speed,
        "reward": reward,
        "total": episode["total"] + reward,
        "time": episode["time"] + 1,
    }


def is_running(episode):
    return (jnp.abs(episode["angle"]) < 1) & (episode["time"] < ROOM)


CASE = Case(
    "evaluation",
    "20 rounds of training a controller, each followed by 16 episodes, which end one by "
    "one in a vmapped `while_loop` of up to 64 steps and log two numbers in each.",
    logged,
    by_hand,
    steps=20,
    capacity=ROOM,
)
