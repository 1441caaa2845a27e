"""Importing lox changes in JAX what the table says, and the page says it, too."""

import json
import pathlib
import subprocess
import sys

import pytest

from lox._jax.patches import ADDITIONS, PATCHES

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/what-lox-changes-in-jax.md"


def test_importing_lox_changes_what_the_table_says_and_nothing_else():
    modules = sorted(name for name in sys.modules if name.split(".")[0] == "jax")
    program = ROOT / "tests/support/jax_changes.py"
    run = subprocess.run(
        [sys.executable, program, *modules], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    found, unexplained, is_idempotent = json.loads(run.stdout)
    assert unexplained == []
    assert found == sorted(patch.name for patch in PATCHES if patch.is_needed)
    assert is_idempotent


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_every_patch_is_on_the_page(patch):
    without = patch.without
    if patch.issue is not None:
        url = f"https://github.com/jax-ml/jax/issues/{patch.issue}"
        without += f" ([jax#{patch.issue}]({url}))"
    cells = [f"`{patch.place}`", without, patch.change]
    if patch.since > (0, 0, 0):
        cells.append("since {}.{}.{}".format(*patch.since))
    if patch.until is not None:
        cells.append("before {}.{}.{}".format(*patch.until))
    assert f"| {' | '.join(cells)} |" in PAGE.read_text()


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.what)
def test_every_addition_is_on_the_page(addition):
    assert f"| {addition.what} | {addition.why} |" in PAGE.read_text()
