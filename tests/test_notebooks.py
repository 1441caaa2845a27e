"""What a notebook shows and keeps: run by a real kernel, exported as HTML, and read."""

import base64
import io
import re

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbconvert runs notebooks")
pytest.importorskip("ipykernel", reason="it is the kernel of notebooks")

CELLS = {
    "setup": """
import jax, jax.numpy as jnp, lox
from lox.loggers import ConsoleLogger, PlotLogger
def train(xs):
    def step(total, x):
        lox.log({"total": total + x}, step=total.astype(int))
        return total + x, None
    return jax.lax.scan(step, 0.0, xs)[0]
""",
    "console": """
with ConsoleLogger() as logger:
    jax.block_until_ready(logger.tap(train, logger.init(0))(jnp.ones(20)))
    lox.barrier()
    print("printed")
""",
    "plot": """
with PlotLogger() as logger:
    jax.block_until_ready(logger.tap(train, logger.init(0))(jnp.ones(20)))
""",
    "progress": """
jax.block_until_ready(lox.progress(jax.jit(lox.nolog(train)), title="bar")(jnp.ones(200)))
""",
    "curves": "logs = lox.spool(train)(jnp.ones(20))[1]; logs.plot()",
    "curves_before_the_end": "figure = logs.plot(); 1 + 1",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    from nbconvert.preprocessors import ExecutePreprocessor

    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    nb = nbformat.v4.new_notebook(cells=cells)
    python = {"name": "python3", "display_name": "Python", "language": "python"}
    nb.metadata["kernelspec"] = python
    folder = str(tmp_path_factory.mktemp("notebook"))
    ExecutePreprocessor(timeout=300).preprocess(nb, {"metadata": {"path": folder}})
    return nb


def outputs(notebook, cell: str) -> list[dict]:
    return notebook.cells[list(CELLS).index(cell)].outputs


def data(notebook, cell: str, kind: str) -> list[str]:
    found = (output.get("data", {}).get(kind) for output in outputs(notebook, cell))
    return [each for each in found if each]


def is_picture(png: str) -> bool:
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(base64.b64decode(png)))
    return len(image.convert("RGB").getcolors(1 << 24)) > 10


def test_the_console_keeps_its_table_and_leaves_what_is_printed_alone(notebook):
    (table,) = data(notebook, "console", "text/html")
    text = re.sub("<[^>]*>", "", table)
    assert "total" in text
    assert "20.00" in text
    assert "100%" in text
    (printed,) = [each for each in outputs(notebook, "console") if "text" in each]
    assert printed.text == "printed\n"


def test_curves_show_after_a_console_in_an_earlier_cell(notebook):
    (png,) = data(notebook, "plot", "image/png")
    assert is_picture(png)


def test_a_progress_bar_keeps_its_last_state(notebook):
    (bar,) = data(notebook, "progress", "text/html")
    text = re.sub("<[^>]*>", "", bar)
    assert "bar" in text
    assert "200/200" in text


@pytest.mark.parametrize("cell", ["curves", "curves_before_the_end"])
def test_a_plot_of_logs_is_shown_once(notebook, cell):
    (png,) = data(notebook, cell, "image/png")
    assert is_picture(png)


def test_the_exported_page_has_the_table_the_bar_and_all_pictures(notebook):
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    assert "200/200" in re.sub("<[^>]*>", "", page)
    assert page.count("data:image/png") == 3
