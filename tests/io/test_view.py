"""The viewer in a notebook."""

import html
import json
import re
import urllib.request

import numpy as np
import pytest

import lox
from support.stores import write_matrix


def test_a_view_holds_its_page(tmp_path):
    values = {"loss": np.arange(6.0).reshape(3, 2)}
    write_matrix(tmp_path / "store", [{"lr": 0.1}, {"lr": 0.2}], values, np.arange(3))
    view = lox.view(tmp_path / "store")
    assert repr(view).startswith("<view of 2 runs in ")
    frame = view._repr_html_()
    page = html.unescape(re.search('srcdoc="([^"]*)"', frame)[1])
    view.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == page
    start = page.index('id="data">') + len('id="data">')
    data = json.loads(page[start : page.index("</script>", start)])
    assert data["answers"]["panels"]["loss"]["runs"] == 2


def test_a_live_view_asks_this_process(tmp_path):
    pytest.importorskip("tornado")
    values = {"loss": np.arange(6.0).reshape(3, 2)}
    write_matrix(tmp_path / "store", [{}, {}], values, np.arange(3))
    view = lox.view(tmp_path / "store", live=True)
    url = re.search('src="([^"]*)"', view._repr_html_())[1]
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert (
            "frame-ancestors http://localhost:*"
            in answer.headers["Content-Security-Policy"]
        )
        assert b"lox view" in answer.read()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such folder: 'nope'"):
        lox.view("nope")
