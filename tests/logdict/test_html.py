"""What notebooks show of logs, read with a parser of HTML and compared with NumPy."""

import html.parser

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox


class Cells(html.parser.HTMLParser):
    """The texts of the cells of a table, and which elements there are."""

    def __init__(self, page):
        super().__init__()
        self.lines, self.tags, self.paths = [], set(), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "tr":
            self.lines.append([])
        if tag in ("td", "th"):
            self.lines[-1].append("")
        if tag == "path":
            self.paths.append(dict(attributes)["d"])

    def handle_data(self, data):
        self.lines[-1][-1] += data


def train(x):
    def body(c, i):
        loss = jnp.where(i == 3, jnp.nan, jnp.exp(-c))
        lox.log({"<script>": loss, "v": jnp.full(3, i, float), "n": i}, step=10 * i)
        lox.log({"k": jax.random.key(i)}, step=i)
        return c + 1.0, None

    return jax.lax.scan(body, x, jnp.arange(6))[0]


def test_a_line_says_what_numpy_says():
    _, logs = lox.spool(train)(1.0)
    cells = Cells(logs._repr_html_())
    assert cells.tags == {
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
        "svg",
        "path",
    }
    head, loss, v, n, k = cells.lines
    assert head == ["key", "type", "last", "range", "not finite", "trend"]
    finite = np.asarray(logs["<script>"])[np.isfinite(logs["<script>"])]
    assert loss[:2] == ["<script>", "float32[6]"]
    np.testing.assert_allclose(float(loss[2]), finite[-1], rtol=1e-3)
    low, high = map(float, loss[3].split(" – "))
    np.testing.assert_allclose([low, high], [finite.min(), finite.max()], rtol=1e-3)
    assert loss[4] == "1 not finite, the first at step 30"
    assert v[:4] == ["v", "float32[6,3]", "[5.0, 5.0, 5.0]", "0.000 – 5.000"]
    assert n[2:4] == ["5", "0 – 5"]
    assert k == ["k", "key<fry>[6]", "", "", "", ""]
    # Five points, with a gap where the NaN is; rising numbers rise, which is down in SVG.
    assert [cells.paths[0].count(c) for c in "ML"] == [2, 3]
    heights = [float(point.split(",")[1]) for point in cells.paths[2].split()]
    assert heights == sorted(heights, reverse=True)


def test_of_a_batch_there_are_means_over_examples():
    _, logs = jax.vmap(lox.spool(train))(jnp.arange(4.0))
    loss = Cells(logs._repr_html_()).lines[1]
    last = np.asarray(logs["<script>"])[:, -1]
    mean, _, std = loss[2].split()
    np.testing.assert_allclose(float(mean), last.mean(), rtol=1e-3)
    np.testing.assert_allclose(float(std), last.std(), rtol=5e-2)
    assert loss[4] == "4 not finite, the first at step 30"
    diverged = lox.logdict({"x": jnp.array([1.0, jnp.nan, jnp.inf])})
    stacked = jax.vmap(lambda x: lox.spool(lambda: lox.log({"x": x}) and None)()[1])
    shown = Cells(stacked(diverged["x"])._repr_html_()).lines[1]
    assert shown[2] == "1.000 ± 0 (2 of 3 diverged)"


def test_logs_without_values_show_as_text():
    pages = []

    @jax.jit
    def f(x):
        pages.append(lox.spool(train)(x)[1]._repr_html_())
        return x

    f(1.0)
    assert pages[0].startswith("<pre>{&#x27;&lt;script&gt;&#x27;: float32[6]")
    assert Cells(lox.logdict()._repr_html_()).lines == [
        ["key", "type", "last", "range", "not finite", "trend"]
    ]
    masked = jax.lax.cond
    _, logs = lox.spool(lambda x: masked(x > 1, lambda: lox.log({"x": x}), lambda: None))(
        0.0
    )
    assert Cells(logs._repr_html_()).lines[1] == ["x", "float32[]", "", "", "", ""]


def test_ipython_shows_the_table():
    formatters = pytest.importorskip("IPython.core.formatters")
    page = formatters.HTMLFormatter()(lox.logdict(loss=0.5))
    assert "<td" in page
