"""Proximal policy optimisation of a pendulum, several seeds in one program."""

import jax
import jax.numpy as jnp

from ._case import Case, descend, flat

ENVS, LENGTH, EPOCHS, PARTS, HIDDEN = 8, 32, 2, 4, 32
RATE, DISCOUNT, TRACE, CLIP = 0.003, 0.97, 0.95, 0.2


def logged(log, updates):
    def loss(params, part):
        value, metrics = objective(params, part)
        log(metrics)
        return value

    def improve(params, part):
        return descend(params, jax.grad(loss)(params, part), RATE), None

    def update(state, key):
        params, env = state
        env, steps, reward = experience(params, env, key)
        log({"reward": reward})

        def epoch(params, key):
            return jax.lax.scan(improve, params, shuffled(steps, key))

        params, _ = jax.lax.scan(epoch, params, jax.random.split(key, EPOCHS))
        return (params, env), None

    def train(key):
        state, _ = jax.lax.scan(update, init(key), jax.random.split(key, updates))
        return state[0]

    return train


def by_hand(updates):
    def improve(params, part):
        grads, metrics = jax.grad(objective, has_aux=True)(params, part)
        return descend(params, grads, RATE), tuple(metrics.values())

    def update(state, key):
        params, env = state
        env, steps, reward = experience(params, env, key)

        def epoch(params, key):
            return jax.lax.scan(improve, params, shuffled(steps, key))

        params, metrics = jax.lax.scan(epoch, params, jax.random.split(key, EPOCHS))
        return (params, env), (reward, metrics)

    def train(key):
        state, (reward, metrics) = jax.lax.scan(
            update, init(key), jax.random.split(key, updates)
        )
        return state[0], (reward, *flat(metrics, 3))

    return train


def init(key):
    first, second, third, start = jax.random.split(key, 4)
    params = {
        "in": jax.random.normal(first, (3, HIDDEN)) / 2,
        "mean": jax.random.normal(second, (HIDDEN,)) / 10,
        "value": jax.random.normal(third, (HIDDEN,)) / 10,
        "scale": jnp.zeros(()),
    }
    return params, jax.random.uniform(start, (ENVS, 2), minval=-1)


def network(params, seen):
    hidden = jnp.tanh(seen @ params["in"])
    return hidden @ params["mean"], hidden @ params["value"]


def look(env):
    angle, speed = env[..., 0], env[..., 1]
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed / 8], -1)


def swing(env, action):
    angle, speed = env[..., 0], env[..., 1]
    torque = 2 * jnp.tanh(action)
    cost = (jnp.mod(angle + jnp.pi, 2 * jnp.pi) - jnp.pi) ** 2 + speed**2 / 10
    speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(angle) + 3 * torque), -8, 8)
    return jnp.stack([angle + 0.05 * speed, speed], -1), -cost / 16


def likelihood(params, mean, action):
    return -(((action - mean) * jnp.exp(-params["scale"])) ** 2) / 2 - params["scale"]


def experience(params, env, key):
    """Act for some steps, and estimate what each action was worth."""

    def act(env, key):
        seen = look(env)
        mean, value = network(params, seen)
        action = mean + jnp.exp(params["scale"]) * jax.random.normal(key, mean.shape)
        env, reward = swing(env, action)
        step = {"seen": seen, "action": action, "value": value, "reward": reward}
        return env, {**step, "before": likelihood(params, mean, action)}

    env, steps = jax.lax.scan(act, env, jax.random.split(key, LENGTH))
    _, last = network(params, look(env))

    def back(carry, step):
        advantage, after = carry
        delta = step["reward"] + DISCOUNT * after - step["value"]
        advantage = delta + DISCOUNT * TRACE * advantage
        return (advantage, step["value"]), advantage

    start = jnp.zeros(ENVS), last
    _, advantages = jax.lax.scan(back, start, steps, reverse=True)
    steps = {**steps, "advantage": advantages, "target": advantages + steps["value"]}
    return env, flat(steps, 2), steps["reward"].mean()


def shuffled(steps, key):
    order = jax.random.permutation(key, ENVS * LENGTH).reshape(PARTS, -1)
    return jax.tree.map(lambda x: x[order], steps)


def objective(params, part):
    mean, value = network(params, part["seen"])
    now = likelihood(params, mean, part["action"])
    ratio = jnp.exp(now - part["before"])
    advantage = part["advantage"] - part["advantage"].mean()
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    policy = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    error = ((value - part["target"]) ** 2).mean()
    metrics = {"policy": policy, "ratio": ratio.max(), "value": error}
    return policy + 0.5 * error - 0.01 * params["scale"], metrics


CASE = Case(
    "ppo",
    "Proximal policy optimisation of a pendulum, 8 seeds in one program; each minibatch "
    "logs three metrics inside the loss, each of 50 updates its reward.",
    logged,
    by_hand,
    steps=50,
    seeds=8,
    small=2,
)
