"""Type checkers know what a transformed function takes and returns."""

import re
import subprocess
import sys

import pytest

PROGRAM = """
import lox

def train(steps: int, *, rate: float = 0.1) -> str:
    return "done"

logger = lox.loggers.SaveLogger("results")
state = logger.init(0)
reveal_type(lox.spool(train)(3, rate=0.2))
reveal_type(lox.tap(train)(3))
reveal_type(lox.nolog(train)(3))
reveal_type(lox.bind(train, step=1)(3))
reveal_type(lox.progress(train)(3))
reveal_type(logger.tap(train, state)(3))
reveal_type(logger.spool(train, state)(3))
lox.spool(train)("three")
"""
# mypy takes twenty seconds to read libraries that say nothing about these types.
CONFIG = """
[mypy]
follow_imports = silent
ignore_missing_imports = true

[mypy-jax.*,jaxlib.*,numpy.*,ml_dtypes.*]
follow_imports = skip
follow_imports_for_stubs = true
"""
CHECKERS = {
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
    "mypy": ["-m", "mypy", "--config-file", "mypy.ini"],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_transformed_function_keeps_its_signature(checker, tmp_path):
    pytest.importorskip(checker)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, *CHECKERS[checker], str(file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    text = done.stdout + done.stderr
    revealed = re.findall(r'(?:Type of .*? is|Revealed type is) "([^"]*)"', text)
    plain = [re.sub(r"[\w.]+\.(?=\w)", "", kind) for kind in revealed]
    assert plain == ["tuple[str, logdict]", *["str"] * 6], text
    errors = [line for line in text.splitlines() if "error:" in line]
    assert len(errors) == 1, text
    assert "program.py:16:" in errors[0], text
    assert '"int"' in errors[0], text
