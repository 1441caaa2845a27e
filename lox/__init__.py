"""Logging for JAX: log anywhere, and decide from the outside what happens to the logs."""

import typing as _typing

from lox import _stream  # noqa: F401  it declares a patch
from lox._core.bind import bind as bind
from lox._core.context import silent as silent
from lox._core.log import log as log
from lox._core.log_grad import log_grad as log_grad
from lox._core.nolog import nolog as nolog
from lox._core.spool import spool as spool
from lox._core.when import nonfinite as nonfinite
from lox._jax import example_marks as _example_marks  # noqa: F401  it declares a patch
from lox._jax.patches import install as _install_patches
from lox._lazy import lazy_names as _lazy_names
from lox._logdict.logdict import logdict as logdict
from lox._rows.histogram import Histogram as Histogram, histogram as histogram
from lox._rows.reductions import Reduction as Reduction

if _typing.TYPE_CHECKING:
    from lox import loggers as loggers, logify as logify, neptune as neptune, wandb as wandb
    from lox._inside.black_box.recorder import recorder as recorder
    from lox._inside.black_box.recording import Diverged as Diverged, Recording as Recording
    from lox._inside.nan.find_nan import find_nan as find_nan
    from lox._inside.nan.report import NanReport as NanReport
    from lox._inside.stats import stats as stats
    from lox._inside.watching.scopes import scopes as scopes
    from lox._inside.watching.watch import watch as watch
    from lox._io.export import export as export
    from lox._io.load import load as load
    from lox._io.runs import runs as runs
    from lox._io.save import save as save
    from lox._io.scan import scan as scan
    from lox._io.view import view as view
    from lox._stream.callbacks import barrier as barrier
    from lox._stream.progress import progress as progress
    from lox._stream.tap import tap as tap

__version__ = "0.1.0"

_install_patches()

_MODULES = ("loggers", "logify", "neptune", "wandb")
_IO = ("export", "load", "runs", "save", "scan", "view")

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        **{name: f"lox.{name}" for name in _MODULES},
        **{name: f"lox._io.{name}" for name in _IO},
        "Diverged": "lox._inside.black_box.recording",
        "NanReport": "lox._inside.nan.report",
        "Recording": "lox._inside.black_box.recording",
        "barrier": "lox._stream.callbacks",
        "find_nan": "lox._inside.nan.find_nan",
        "progress": "lox._stream.progress",
        "recorder": "lox._inside.black_box.recorder",
        "scopes": "lox._inside.watching.scopes",
        "stats": "lox._inside.stats",
        "tap": "lox._stream.tap",
        "watch": "lox._inside.watching.watch",
    },
)
