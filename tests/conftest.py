"""JAX for the tests: strict promotion, and a CPU back end that does not hang."""

import importlib.metadata
import os

# Plain programs deadlock on the CPU back end of jaxlib 0.10 without this flag; other
# versions do not need it, and XLA ends the process over a flag that it does not know.
FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def quick_compilation():
    """Leave out what takes XLA most of its time, and is not ours to test."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Give all tests of a program to one worker, which then makes its truth once."""
    for item in items:
        program = item.callspec.params.get("p") if hasattr(item, "callspec") else None
        if program is not None:
            item.add_marker(pytest.mark.xdist_group(program.name))
