"""Weights & Biases under JAX's transformations: one run for each seed.

```python
run = lox.wandb.init(key, project="mine")
lox.wandb.log(run, logs)
lox.wandb.finish(run)
```
"""

from typing import Any

from lox.loggers.functional import TrackedRun, finish as finish, log as log, start_run
from lox.loggers.wandb import WandbLogger as WandbLogger


def init(key: Any, **kwargs: Any) -> TrackedRun:
    """Start a run. Works under `jit`, and under `vmap` starts one for each key.

    Args:
        key: A PRNG key, or a number. The same key means the same run.
        **kwargs: Those of `WandbLogger`: `config`, and any of `wandb.init`.

    Returns:
        The run, a pytree. `run.logger` has `spool` and `tap`, which take `run.state`.
    """
    return start_run(WandbLogger, key, kwargs)
