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
CHECKERS = {
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
    "mypy": ["-m", "mypy", "--ignore-missing-imports", "--follow-imports=silent"],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_transformed_function_keeps_its_signature(checker, tmp_path):
    pytest.importorskip(checker)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
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
