"""Neptune under JAX's transformations: one run for each seed, written to files.

The hosted service has ended: see `NeptuneLogger`.

```python
run = lox.neptune.init(key, project="my/project")
lox.neptune.log(run, logs)
lox.neptune.finish(run)
```
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lox.loggers.functional import TrackedRun, finish as finish, log as log, start_run
from lox.loggers.neptune import NeptuneLogger as NeptuneLogger


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
        **kwargs: Those of `NeptuneLogger`, and any of `neptune_scale.Run`. They are
            the same for all runs.

    Returns:
        The run, a pytree. `run.logger` has `spool` and `tap`, which take `run.state`.
    """
    run = {"config": config, "name": name, "group": group, "tags": tags}
    return start_run(NeptuneLogger, kwargs, key, **run, resume=resume)
