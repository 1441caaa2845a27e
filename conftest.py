"""What examples in docstrings and pages have: some names, and a folder of their own.

And what they share with the tests: trackers that stay on this machine.
"""

import contextlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Iterator

import pytest

pytest_plugins = ["support.schedule"]
# It is Sphinx's, and nothing to collect.
collect_ignore = ["docs/conf.py"]
# This page has eight devices: `tests/test_sharded.py` runs it in a process of its own.
if os.environ.get("JAX_NUM_CPU_DEVICES") != "8":
    collect_ignore.append("docs/many-devices.md")

# The packages that the pages of the cookbook need. `make test` or `make test-libraries` has
# all packages of a page, which `tests/docs/test_docs.py` checks; elsewhere it is left out.
COOKBOOK = {
    "equinox": ("equinox", "optax"),
    "flax-linen": ("flax", "optax"),
    "flax-nnx": ("flax", "optax"),
    "hydra": ("hydra-core", "pandas"),
    "notebook": ("matplotlib", "pandas"),
    "optax": ("optax", "pandas"),
    "ppo": ("flax", "gymnax", "optax"),
    "wandb-offline": ("wandb",),
}


def _is_installed(package: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(package))
    return False


for page, packages in COOKBOOK.items():
    if not all(map(_is_installed, packages)):
        collect_ignore.append(f"docs/cookbook/{page}.md")


@pytest.fixture(autouse=True)
def _names(request: pytest.FixtureRequest, doctest_namespace: dict) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    if request.node.name in ("trackers.md", "wandb-offline.md"):
        request.getfixturevalue("offline")
    import jax
    import jax.numpy as jnp

    import lox

    doctest_namespace.update(jax=jax, jnp=jnp, lox=lox)
    patch, folder = (request.getfixturevalue(name) for name in ("monkeypatch", "tmp_path"))
    patch.chdir(folder)
    for name in ("LOX_SPOOL", "LOX_CACHE"):
        patch.setenv(name, str(folder / name.lower()))


@pytest.fixture(autouse=True)
def _as_libraries_need_it(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the libraries in the cookbook promote dtypes and ranks, as they do by default.

    Undo what Hydra leaves behind: its arguments, and its handlers of Python's logging.
    """
    if request.path.parent.name != "cookbook":
        yield
        return
    import jax

    root = logging.getLogger()
    argv, handlers, level = sys.argv, root.handlers[:], root.level
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    sys.argv, root.handlers[:] = argv, handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def offline(tmp_path_factory):
    """Keep all trackers on this machine, and in folders of the tests."""
    home = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR"):
            patch.setenv(f"WANDB_{name}", str(home / "wandb"))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        patch.setenv("TRACKIO_DIR", str(home / "trackio"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("DO_NOT_TRACK", "true")
        (home / "wandb").mkdir()
        yield home


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Import MLflow, which takes seconds, where its tests do."""
    for item in items:
        if item.name == "trackers.md":
            item.add_marker(pytest.mark.xdist_group("mlflow"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
            )
