"""An evolution strategy that learns to swing a pendulum up."""

import jax
import jax.numpy as jnp

from ._case import Case
from .ppo import look, swing

PAIRS, LENGTH, HIDDEN, SPREAD, RATE = 32, 50, 16, 0.1, 0.02


def logged(log, generations):
    def rollout(params, env):
        env, reward = play(params, env)
        log({"distance": jnp.abs(env[0])})
        return reward

    def step(params, key):
        noise, env = explored(key)
        rewards = jax.vmap(rollout, in_axes=(0, None))(around(params, noise), env)
        log({"mean": rewards.mean(), "best": rewards.max(), "rewards": rewards})
        return improved(params, noise, rewards), None

    def evolve(key):
        return jax.lax.scan(step, init(key), jax.random.split(key, generations))[0]

    return evolve


def by_hand(generations):
    def rollout(params, env):
        env, reward = play(params, env)
        return reward, jnp.abs(env[0])

    def step(params, key):
        noise, env = explored(key)
        rewards, distances = jax.vmap(rollout, in_axes=(0, None))(
            around(params, noise), env
        )
        rows = distances, rewards.mean(), rewards.max(), rewards
        return improved(params, noise, rewards), rows

    def evolve(key):
        return jax.lax.scan(step, init(key), jax.random.split(key, generations))

    return evolve


def init(key):
    return jax.random.normal(key, (4 * HIDDEN,)) / 10


def explored(key):
    directions, start = jax.random.split(key)
    noise = jax.random.normal(directions, (PAIRS, 4 * HIDDEN))
    return noise, jax.random.uniform(start, (2,), minval=-1)


def around(params, noise):
    return params[None] + SPREAD * jnp.concatenate([noise, -noise])


def play(params, env):
    first, second = params[: 3 * HIDDEN].reshape(3, HIDDEN), params[3 * HIDDEN :]

    def act(env, _):
        return swing(env, jnp.tanh(look(env) @ first) @ second)

    env, rewards = jax.lax.scan(act, env, length=LENGTH)
    return env, rewards.mean()


def improved(params, noise, rewards):
    rank = rewards.argsort().argsort() / (2 * PAIRS - 1) - 0.5
    up, down = jnp.split(rank, 2)
    return params + RATE * (up - down) @ noise


CASE = Case(
    "evolution",
    "An evolution strategy, 64 pendulums for each of 200 generations; each of them logs "
    "where it ended, the generation its mean, its best and all rewards.",
    logged,
    by_hand,
    steps=200,
)
