"""jax-tap streams the outputs of each scan: metrics are carried there by hand."""

import jax
import jaxtap
from _ways import Way, called

OURS = ["lox.tap", "lox.tap(batch=100)"]


def streamed(case, steps):
    return jaxtap.verbose(
        case.by_hand(steps), on_step=None, on_ys=called.hear, ops=("scan",)
    )


# Those whose only loop is the one that logs: it streams the outputs of all of them.
WAYS = {
    name: Way("jaxtap.verbose", streamed, jax.effects_barrier) for name in ("mlp", "arrays")
}
