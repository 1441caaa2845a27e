"""Weights & Biases under JAX's transformations: one run for each seed.

```python
run = lox.wandb.init(key, project="mine")
lox.wandb.log(run, logs)
lox.wandb.finish(run)
```
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lox.loggers.functional import TrackedRun, finish as finish, log as log, start_run
from lox.loggers.wandb import WandbLogger as WandbLogger


def init(
    key: Any,
    *,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
    group: str | None = None,
    tags: str | Iterable[str] = (),
    resume: bool = False,
    **kwargs: Any,
) -> TrackedRun:
    """Start a run. Works under `jit`, and under `vmap` starts one for each key.

    Args:
        key: A PRNG key, or a number.
        config: The configuration of the run. Values may be traced.
        name: The name of the run. It can refer to entries of the configuration, to
            `{seed}` and to `{index}`: see `Logger.init`.
        group: A name for runs that belong together.
        tags: One or more words to find the run by.
        resume: Whether to continue the run of an earlier session.
        **kwargs: Those of `WandbLogger`, and any of `wandb.init`. They are the same for all
            runs.

    Returns:
        The run, a pytree. `run.logger` has `spool` and `tap`, which take `run.state`.
    """
    run = {"config": config, "name": name, "group": group, "tags": tags}
    return start_run(WandbLogger, kwargs, key, **run, resume=resume)
