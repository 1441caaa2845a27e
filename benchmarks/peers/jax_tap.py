"""jax-tap streams the outputs of each scan: metrics are carried there by hand."""

import jax
import jaxtap
from _ways import Way, called

OURS = ["lox.tap", "lox.tap(batch=100)"]


def streamed(case, steps):
    # Of the outermost loop: those inside have outputs that are no metrics.
    return jaxtap.verbose(
        case.by_hand(steps), on_step=None, on_ys=called.hear, ops=("scan",), max_depth=1
    )


WAYS = {
    name: Way("jaxtap.verbose", streamed, jax.effects_barrier)
    for name in ("mlp", "evolution", "arrays")
}
