"""Logging for JAX: say what to log inside, decide outside what becomes of it."""

from lox import loggers as loggers, logify as logify, neptune as neptune, wandb as wandb
from lox._core.bind import bind as bind
from lox._core.context import silent as silent
from lox._core.log import log as log
from lox._core.log_grad import log_grad as log_grad
from lox._core.nolog import nolog as nolog
from lox._core.spool import spool as spool
from lox._core.stats import stats as stats
from lox._core.when import nonfinite as nonfinite
from lox._io.export import export as export
from lox._io.load import load as load
from lox._io.runs import runs as runs
from lox._io.save import save as save
from lox._jax.patches import install as _install_patches
from lox._logdict.logdict import logdict as logdict
from lox._rows.histogram import Histogram as Histogram, histogram as histogram
from lox._rows.reductions import Reduction as Reduction
from lox._stream.callbacks import barrier as barrier
from lox._stream.progress import progress as progress
from lox._stream.tap import tap as tap

__version__ = "0.1.0"

_install_patches()
