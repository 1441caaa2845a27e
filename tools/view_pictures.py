"""Train a sweep of 320 small networks, and take pictures of the viewer for the docs.

Needs Chromium and `pip install jax-lox[view] playwright`:

    python tools/view_pictures.py docs/pictures
"""

import asyncio
import pathlib
import shutil
import sys
import tempfile
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from playwright.sync_api import Page, sync_playwright

import lox
from lox_host.rows import Batch, Block, Form
from lox_host.runs.run import Run
from lox_host.view import Viewer
from lox_host.view.server import Server
from lox_host.writers.save import SaveWriter

RATES, WIDTHS, SEEDS, STEPS = (0.003, 0.01, 0.03, 0.1), (16, 64), 40, 1500
SIZE = {"width": 1280, "height": 800}
IS_DRAWN = """document.querySelector("#count")?.textContent.includes("diverged") &&
    Object.values(lox.panels()).every((p) => !p.visible || (p.data && !p.loading))"""


def loss(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"]) * params["mask"]
    return jnp.mean((hidden @ params["w2"] - jnp.sin(4 * x)) ** 2)


@lox.spool
def train(rate, width, key):
    """Train one network, and log as it goes."""
    keys = jax.random.split(key, 3)
    mask = (jnp.arange(max(WIDTHS)) < width).astype(jnp.float32)
    params = {
        "w1": 3 * jax.random.normal(keys[0], (1, max(WIDTHS))),
        "b1": jnp.linspace(-3, 3, max(WIDTHS)),
        "w2": jax.random.normal(keys[1], (max(WIDTHS), 1)) * width**-0.5,
        "mask": mask,
    }
    test = jnp.linspace(-1, 1, 64)[:, None]

    def update(params, step):
        x = jax.random.uniform(jax.random.fold_in(keys[2], step), (32, 1), minval=-1)
        value, slope = jax.value_and_grad(loss)(params, x)
        slope["mask"] = jnp.zeros_like(mask)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(slope)))
        params = jax.tree.map(lambda p, g: p - rate * g, params, slope)
        lox.log(
            {
                "loss/train": value,
                "loss/test": loss(params, test),
                "gradient norm": norm,
                "weight norm/first": jnp.sqrt(jnp.sum(params["w1"] ** 2)),
                "weight norm/last": jnp.sqrt(jnp.sum(params["w2"] ** 2)),
                "accuracy": jnp.exp(-10 * loss(params, test)),
            },
            step=step,
        )
        return params, None

    jax.lax.scan(update, params, jnp.arange(STEPS))


def record(path: pathlib.Path) -> None:
    """Train all networks in one program, and save a run for each."""
    grid = [(r, w, s) for r in RATES for w in WIDTHS for s in range(SEEDS)]
    rates, widths, seeds = (np.array(column) for column in zip(*grid, strict=True))
    keys = jax.vmap(jax.random.key)(seeds)
    _, logs = jax.jit(jax.vmap(train))(rates.astype(np.float32), widths, keys)
    writer = SaveWriter(path)
    runs = [
        Run(
            i, f"rate={r:g}-{s}", (s,), {"rate": r, "width": w, "seed": s}, time.time(), "a"
        )
        for i, (r, w, s) in enumerate(grid)
    ]
    for run in runs:
        writer.open(run)
    # (runs, rows) -> rows of all runs, as a logger writes them.
    values = {key: np.asarray(value).T.reshape(-1) for key, value in logs.items()}
    ids = np.tile(np.arange(len(grid), dtype=np.int32), STEPS)
    steps = np.repeat(np.arange(STEPS, dtype=np.int32), len(grid))
    writer.write(
        Batch([Block(ids, {"step": steps}, values, dict.fromkeys(values, Form()))])
    )
    for run in runs:
        writer.close(run)


def show(page: Page, url: str, file: pathlib.Path) -> None:
    """Open an address, wait until everything is drawn, and take a picture."""
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_timeout(1500)
    while not page.evaluate(IS_DRAWN):
        page.wait_for_timeout(100)
    page.wait_for_timeout(500)
    page.screenshot(path=str(file))


def main(out: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = pathlib.Path(folder) / "sweep"
        record(store)
        server = Server(Viewer([store]), port=0)
        run = lambda: asyncio.run(server.serve())  # noqa: E731
        threading.Thread(target=run, daemon=True).start()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--headless", "--no-sandbox", "--disable-gpu"],
            )
            for theme in ("light", "dark"):
                page = browser.new_page(viewport=SIZE)
                url = f"{server.url}?theme={theme}"
                show(
                    page, f"{url}#logy=true&smooth=10&group=rate", out / f"view-{theme}.png"
                )
                if theme == "light":
                    show(page, f"{url}#view=sweep&result=loss/test", out / "view-sweep.png")
                    show(
                        page, f"{url}#view=table&sort=key.loss/test", out / "view-table.png"
                    )
                page.close()
            browser.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
