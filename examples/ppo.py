"""Train PPO on CartPole: four learning rates with eight seeds each, in one jitted program.

The environment, the loss and the optimiser call `lox.log` wherever they know something
worth keeping: in a `cond` when an episode ends, in the loss under `grad`, in nested loops.
They return no metrics and know nothing about loggers. `main` chooses those: a table on the
terminal, and a store on disk with a run for each learning rate and seed. `lox.bind` tells
every record inside an update how many steps the agent has taken by then.
"""

import argparse
import dataclasses
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox.loggers import ConsoleLogger, MultiLogger, SaveLogger

RATES = (3e-4, 1e-3, 3e-3, 3e-2)
KEYS = ["return", "entropy", "loss/policy", "loss/value", "gradient norm", "clip fraction"]


@dataclasses.dataclass(frozen=True)
class Config:
    """What all runs have in common. They differ in their learning rates and seeds."""

    updates: int = 100
    environments: int = 16
    steps: int = 64  # of each environment, for one update
    epochs: int = 4
    minibatches: int = 4
    discount: float = 0.98
    trace: float = 0.9  # the lambda of generalised advantage estimation
    clip: float = 0.2
    entropy_bonus: float = 0.01
    value_weight: float = 0.5
    max_norm: float = 0.5
    width: int = 64


# ---------------------------------------------------------------------------------------
# The environment


class CartPole(NamedTuple):
    """A pole on a cart. An episode ends when it falls, or after 500 steps."""

    x: jax.Array
    speed: jax.Array
    angle: jax.Array
    spin: jax.Array
    time: jax.Array

    @property
    def observation(self):
        """What the policy sees: four numbers."""
        return jnp.stack([self.x, self.speed, self.angle, self.spin], axis=-1)


def reset(key):
    state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    return CartPole(*state, time=jnp.int32(0))


def push(cart, action):
    """Push the cart to the left or to the right for 20 ms: the new state."""
    gravity, mass, total_mass, length = 9.8, 0.1, 1.1, 0.5
    force = jnp.where(action == 1, 10.0, -10.0)
    sin, cos = jnp.sin(cart.angle), jnp.cos(cart.angle)
    pull = (force + mass * length * cart.spin**2 * sin) / total_mass
    swing = (gravity * sin - cos * pull) / (length * (4 / 3 - mass * cos**2 / total_mass))
    thrust = pull - mass * length * swing * cos / total_mass
    return CartPole(
        x=cart.x + 0.02 * cart.speed,
        speed=cart.speed + 0.02 * thrust,
        angle=cart.angle + 0.02 * cart.spin,
        spin=cart.spin + 0.02 * swing,
        time=cart.time + 1,
    )


def has_ended(cart):
    return (jnp.abs(cart.x) > 2.4) | (jnp.abs(cart.angle) > 0.2095) | (cart.time >= 500)


# ---------------------------------------------------------------------------------------
# The policy and what it is trained with


def network(key, width):
    """Parameters of a network for the policy, and of one for the value."""

    def layers(key, outputs, scale):
        sizes = [(4, width, 1.0), (width, width, 1.0), (width, outputs, scale)]
        keys = jax.random.split(key, len(sizes))
        return [
            (jax.random.normal(key, (m, n)) * scale / m**0.5, jnp.zeros(n))
            for key, (m, n, scale) in zip(keys, sizes, strict=True)
        ]

    key_policy, key_value = jax.random.split(key)
    return {"policy": layers(key_policy, 2, 0.01), "value": layers(key_value, 1, 1.0)}


def apply(layers, x):
    *hidden, (w, b) = layers
    for inner, bias in hidden:
        x = jnp.tanh(x @ inner + bias)
    return x @ w + b


def logits_and_value(params, observation):
    logits = jax.nn.log_softmax(apply(params["policy"], observation))
    return logits, apply(params["value"], observation)[..., 0]


class Adam(NamedTuple):
    """The moments of the gradients."""

    count: jax.Array
    mean: dict
    square: dict


def adam(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Adam(jnp.int32(0), zeros, zeros)


def descend(params, grads, state, learning_rate, max_norm):
    """One step of Adam, with gradients no longer than `max_norm`."""
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    lox.log({"gradient norm": norm})
    scale = jnp.minimum(1.0, max_norm / norm)
    count = state.count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * scale * g, state.mean, grads)
    square = jax.tree.map(
        lambda s, g: 0.999 * s + 0.001 * (scale * g) ** 2, state.square, grads
    )
    rate = learning_rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(
        lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-5), params, mean, square
    )
    return params, Adam(count, mean, square)


# ---------------------------------------------------------------------------------------
# Proximal policy optimisation


class Transition(NamedTuple):
    """What happened in one step."""

    observation: jax.Array
    action: jax.Array
    logp: jax.Array
    value: jax.Array
    end: jax.Array


def rollout(params, carts, key, begun, config):
    """Let the policy act for some steps, in all environments."""

    def step(carts, inputs):
        key, i = inputs
        key_action, key_reset = jax.random.split(key)
        logits, value = logits_and_value(params, carts.observation)
        action = jax.random.categorical(key_action, logits)
        logp = jnp.take_along_axis(logits, action[:, None], axis=1)[:, 0]
        moved = jax.vmap(push)(carts, action)
        end = has_ended(moved)
        done = begun + (i + 1) * config.environments
        jax.lax.cond(end.any(), log_episodes, lambda *_: None, moved.time, end, done)
        fresh = jax.vmap(reset)(jax.random.split(key_reset, config.environments))
        following = jax.tree.map(lambda new, old: jnp.where(end, new, old), fresh, moved)
        return following, Transition(carts.observation, action, logp, value, end)

    inputs = jax.random.split(key, config.steps), jnp.arange(config.steps)
    return jax.lax.scan(step, carts, inputs)


def log_episodes(time, end, done):
    """Log the return of the episodes that have just ended: a reward of 1 for each step."""
    lox.log({"return": jnp.mean(time, where=end)}, step=done)


def advantages(transitions, last_value, config):
    """Generalised advantage estimation, from the last step to the first."""

    def step(carry, t):
        advantage, value = carry
        going = 1.0 - t.end
        error = 1.0 + config.discount * value * going - t.value
        advantage = error + config.discount * config.trace * going * advantage
        return (advantage, t.value), advantage

    start = jnp.zeros_like(last_value), last_value
    return jax.lax.scan(step, start, transitions, reverse=True)[1]


def loss(params, transitions, advantage, target, config):
    logits, value = logits_and_value(params, transitions.observation)
    logp = jnp.take_along_axis(logits, transitions.action[:, None], axis=1)[:, 0]
    ratio = jnp.exp(logp - transitions.logp)
    clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
    value_loss = jnp.mean((value - target) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(logits) * logits, axis=-1))
    lox.log({"loss/policy": policy_loss, "loss/value": value_loss, "entropy": entropy})
    lox.log({"clip fraction": jnp.mean(ratio != clipped)})
    return policy_loss + config.value_weight * value_loss - config.entropy_bonus * entropy


def learn(params, optimiser, batch, key, learning_rate, config):
    """Go through the batch some times, in minibatches."""
    size = config.environments * config.steps

    def minibatch(carry, chosen):
        params, optimiser = carry
        grads = jax.grad(loss)(params, *jax.tree.map(lambda x: x[chosen], batch), config)
        return descend(params, grads, optimiser, learning_rate, config.max_norm), None

    def epoch(carry, key):
        order = jax.random.permutation(key, size).reshape(config.minibatches, -1)
        return jax.lax.scan(minibatch, carry, order)

    keys = jax.random.split(key, config.epochs)
    return jax.lax.scan(epoch, (params, optimiser), keys)[0]


def train(key, learning_rate, config):
    """Train one agent: the parameters of its networks."""

    def update(state, inputs):
        params, optimiser, carts = state
        key, i = inputs
        key_act, key_learn = jax.random.split(key)
        begun = i * config.environments * config.steps
        carts, transitions = rollout(params, carts, key_act, begun, config)
        _, last_value = logits_and_value(params, carts.observation)
        advantage = advantages(transitions, last_value, config)
        batch = transitions, advantage, advantage + transitions.value
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        rate = learning_rate * (1 - i / config.updates)
        params, optimiser = lox.bind(learn, step=begun)(
            params, optimiser, batch, key_learn, rate, config
        )
        return (params, optimiser, carts), None

    key_network, key_reset, key = jax.random.split(key, 3)
    params = network(key_network, config.width)
    carts = jax.vmap(reset)(jax.random.split(key_reset, config.environments))
    inputs = jax.random.split(key, config.updates), jnp.arange(config.updates)
    (params, *_), _ = jax.lax.scan(update, (params, adam(params), carts), inputs)
    return params


# ---------------------------------------------------------------------------------------
# Learning rates, seeds and loggers


def main():
    options = arguments()
    config = Config(updates=options.updates)
    store, picture = options.out / "runs", options.out / "learning_curves.png"
    logger = MultiLogger(
        SaveLogger(store, mode="w", config=dataclasses.asdict(config)),
        ConsoleLogger(title="PPO on CartPole"),
    )

    def experiment(learning_rate, seed):
        state = logger.init(
            seed,
            config={"learning_rate": learning_rate},
            name="rate={learning_rate:.2g}-{seed}",
        )
        logger.tap(train, state)(jax.random.key(seed), learning_rate, config)
        logger.finish(state)

    over_seeds = jax.vmap(experiment, in_axes=(None, 0))
    grid = jax.jit(jax.vmap(over_seeds, in_axes=(0, None)))

    steps = config.updates * config.environments * config.steps
    agents = f"{len(RATES)} learning rates × {options.seeds} seeds"
    print(f"Training {agents} for {steps} steps each, in one program.")
    print("JAX compiles the program first, which takes 10 to 20 seconds.", flush=True)
    start = time.perf_counter()
    grid(jnp.array(RATES), jnp.arange(options.seeds))
    lox.barrier()
    print(f"Done in {time.perf_counter() - start:.0f} s, with compilation.\n")
    summarise(store, steps)
    keys = [word for key in KEYS for word in ("-k", key)]
    plot = [sys.executable, "-m", "lox", "plot", str(store), "--by", "learning_rate"]
    plot += ["--smooth", "20", *keys, "-o", str(picture)]
    subprocess.run(plot, check=True, stdout=subprocess.DEVNULL)
    print(f"\nLearning curves: {picture}\n\nThe logs are on disk. Try next:")
    print(*commands(options.out), sep="\n")


def commands(out):
    """What to type next, with the `lox` that belongs to this Python."""
    lox_ = shlex.quote(os.path.relpath(Path(sys.executable).with_name("lox")))
    runs, picture = shlex.quote(f"{out}/runs"), shlex.quote(f"{out}/returns.png")
    yield f"  {lox_} ls {runs} --group-by learning_rate -k return"
    yield f"  {lox_} show {runs}/rate={RATES[-1]:g}-0"
    yield f"  {lox_} plot {runs} -k return --by learning_rate --smooth 20 -o {picture}"
    yield f"  {lox_} tail {runs}/rate={RATES[0]:g}-0 -k return --no-follow"
    yield f"  {lox_} view {shlex.quote(str(out))}"


def summarise(store, steps):
    """Print the mean return of the first and the last tenth of the steps of each rate."""
    print("  learning rate  first tenth  last tenth  worst seed    (return, at most 500)")
    for rate in map(np.float32, RATES):
        runs = lox.runs(store, where={"learning_rate": float(rate)})
        firsts, lasts = [], []
        for run in runs:
            logs = lox.load(store, "return", run=run.name)
            at, returns = np.asarray(logs.step["return"]), np.asarray(logs["return"])
            firsts.append(returns[at <= steps / 10].mean())
            lasts.append(returns[at > steps * 9 / 10].mean())
        first, last, worst = np.mean(firsts), np.mean(lasts), np.min(lasts)
        print(f"  {rate:13.2g}  {first:11.1f}  {last:10.1f}  {worst:10.1f}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path(), help="folder for what it writes"
    )
    parser.add_argument("--seeds", type=int, help="how many seeds per rate, default 8")
    parser.add_argument("--updates", type=int, help="how long to train, default 100")
    parser.add_argument("--quick", action="store_true", help="2 seeds, 25 updates")
    options = parser.parse_args()
    options.seeds = options.seeds or (2 if options.quick else 8)
    options.updates = options.updates or (25 if options.quick else Config.updates)
    return options


if __name__ == "__main__":
    main()
