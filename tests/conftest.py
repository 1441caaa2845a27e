"""JAX for the tests: strict, quick, and with a CPU back end that does not hang."""

import importlib.metadata
import os
import tempfile

# The programs that tests start take half of their time to compile modules without this.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Plain programs deadlock on the CPU back end of jaxlib 0.10 without this flag; other
# versions do not need it, and XLA ends the process over a flag that it does not know.
FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()

# Leave out what takes XLA most of its time, and is not ours to test: here, and in programs
# that tests start.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import jax  # noqa: E402
import pytest  # noqa: E402

# A program that tests start, not a module of them.
collect_ignore = ["support/processes.py"]

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config):
    """Compile no program twice: the workers of a run share what they have compiled."""
    folder = getattr(config, "workerinput", {}).get("compiled")
    if folder is None:
        mine = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        config.add_cleanup(mine.cleanup)
        folder = mine.name
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a new worker where that is; the programs that tests start do not know."""
    node.workerinput["compiled"] = jax.config.jax_compilation_cache_dir


@pytest.fixture(autouse=True)
def _compiles_quickly():
    """Let no test change for the next ones how they are compiled."""
    yield
    assert jax.config.read("jax_disable_most_optimizations"), "Use the fixture `optimized`."


@pytest.fixture
def optimized():
    """Compile as users do, to ask the compiler what a program costs."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Give all tests of a program to one worker, which then makes its truth once."""
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        program = params.get("p", params.get("fun"))
        name = getattr(program, "name", getattr(program, "__name__", None))
        if name is not None:
            item.add_marker(pytest.mark.xdist_group(name))
