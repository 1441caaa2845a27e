"""What others offer, each in an environment of its own, with a JAX that it supports."""

PEERS = {
    "jax-tap": "jax_tap",
    "oryx": "oryx_harvest",
    "flax": "flax_sow",
    "clu": "clu_metrics",
}
