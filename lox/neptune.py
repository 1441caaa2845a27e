"""Neptune under JAX's transformations: one run for each seed, written to files.

The hosted service has ended: see `NeptuneLogger`.

```python
run = lox.neptune.init(key, project="my/project")
lox.neptune.log(run, logs)
lox.neptune.finish(run)
```
"""

from typing import Any

from lox.loggers.functional import TrackedRun, finish as finish, log as log, start_run
from lox.loggers.neptune import NeptuneLogger as NeptuneLogger


def init(key: Any, **kwargs: Any) -> TrackedRun:
    """Start a run. Works under `jit`, and under `vmap` starts one for each key.

    Args:
        key: A PRNG key, or a number. The same key means the same run.
        **kwargs: Those of `NeptuneLogger`: `config`, and any of `neptune_scale.Run`.

    Returns:
        The run, a pytree. `run.logger` has `spool` and `tap`, which take `run.state`.
    """
    return start_run(NeptuneLogger, key, kwargs)
