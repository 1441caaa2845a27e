"""Logging for JAX: say what to log inside, decide outside what becomes of it."""

import typing as _typing

from ._quick import IS_COMMAND as _IS_COMMAND

if _typing.TYPE_CHECKING or not _IS_COMMAND:
    from . import (
        _batching as _batching,
        _derivatives as _derivatives,
        loggers as loggers,
        logify as logify,
        neptune as neptune,
        wandb as wandb,
    )
    from ._context import silent as silent
    from ._courier import barrier as barrier
    from ._forward import export as export
    from ._load import load as load
    from ._log import log as log
    from ._logdict import logdict as logdict
    from ._nolog import nolog as nolog
    from ._progress import progress as progress
    from ._reduce import Reduction as Reduction
    from ._runs import runs as runs
    from ._save import save as save
    from ._spool import spool as spool
    from ._tap import tap as tap
