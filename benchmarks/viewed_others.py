"""How soon TensorBoard, trackio and MLflow show the runs that `lox view` shows.

Each gets the same session through `lox export`. Some load all runs when they start, so they
have 20 s for that. The time runs from asking for a page until its first curve.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence

from viewed import Session, opened, report, serving, wait_for

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS, ROWS, KEYS = 64, 1000, 4
WARM_UP = 20.0  # seconds between the first sign of a server and the first page
PATIENCE = 60.0  # seconds after which a page counts as empty
TOOLS = pathlib.Path(sys.executable).parent


def measure_others(folder: pathlib.Path, browser, names: Sequence[str]) -> None:
    """Measure lox and the named others on the same runs. Without names: all of them."""
    print(f"{RUNS} runs × {ROWS} rows × {KEYS} keys; load {os.getloadavg()[0]:.1f}")
    session = Session(folder / "small", RUNS, KEYS)
    session.add(ROWS)
    session.end()
    with serving(folder / "small") as (_, url):
        page = opened(browser, url)
        report("lox: first picture", f"{page.evaluate('drawn.first'):.0f} ms", "")
        page.close()
    for name in names or OTHERS:
        title, value = OTHERS[name](folder, browser)
        report(f"{title}: first picture", value, "")


def tensorboard(folder: pathlib.Path, browser) -> tuple[str, str]:
    export(folder, "tensorboard", "-o", str(folder / "events"))
    command = [TOOLS / "tensorboard", "--logdir", folder / "events", "--port", "6123"]
    with running(command, "http://127.0.0.1:6123/"):
        time.sleep(WARM_UP)
        # The axes are there before the curves; a spinner in the card turns until then.
        drawn = """(() => {
            const card = document.querySelector('scalar-card');
            return card?.querySelector('line-chart') && !card.querySelector('mat-spinner');
        })()"""
        return "TensorBoard", first_picture(browser, "http://127.0.0.1:6123/", drawn)


def trackio(folder: pathlib.Path, browser) -> tuple[str, str]:
    settings = {
        "TRACKIO_DIR": str(folder / "trackio"),
        "GRADIO_SERVER_PORT": "6124",
        "GRADIO_ANALYTICS_ENABLED": "False",
        "BROWSER": "true",
    }
    export(folder, "trackio", "--project", "bench", **settings)
    command, url = (
        [TOOLS / "trackio", "show", "--project", "bench"],
        "http://127.0.0.1:6124/",
    )
    with running(command, url, **settings):
        time.sleep(WARM_UP)
        drawn = "document.querySelector('.vega-embed canvas, .vega-embed svg') !== null"
        return "trackio", first_picture(browser, url, drawn)


def mlflow(folder: pathlib.Path, browser) -> tuple[str, str]:
    """Measure the page of the whole `mlflow`, from an environment of its own."""
    ready = ".venv-peer-mlflow/.ready"
    subprocess.run(["make", "--no-print-directory", ready], cwd=ROOT, check=True)
    command = [ROOT / ".venv-peer-mlflow/bin/mlflow", "server", "--port", "6125"]
    command += [
        "--workers",
        "1",
        "--backend-store-uri",
        f"sqlite:///{folder / 'mlflow.db'}",
    ]
    url = "http://127.0.0.1:6125"
    # Its job workers would only take time from the page.
    with running(command, url, cwd=folder, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"):
        export(folder, "mlflow", "--project", "bench", MLFLOW_TRACKING_URI=url)
        time.sleep(WARM_UP)
        page = f"{url}/#/experiments/1/runs?compareRunsMode=CHART"
        drawn = "document.querySelector('.js-plotly-plot .scatterlayer path') !== null"
        return "MLflow", first_picture(browser, page, drawn)


OTHERS = {"tensorboard": tensorboard, "trackio": trackio, "mlflow": mlflow}


def export(folder: pathlib.Path, to: str, *options: str, **settings: str) -> None:
    """Send the session to another tool, as a user does."""
    lox = [sys.executable, "-m", "lox_host.cli.main", "export", str(folder / "small")]
    subprocess.run(
        [*lox, "--to", to, *options],
        check=True,
        env={**os.environ, **settings},
        capture_output=True,
    )


@contextlib.contextmanager
def running(command, url: str, cwd: pathlib.Path | None = None, **settings: str):
    """Start a server, wait until it answers, and stop it at the end."""
    server = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until_it_answers(url)
        yield
    finally:
        # A server may have workers.
        os.killpg(server.pid, 15)
        server.wait()


def wait_until_it_answers(url: str) -> None:
    end = time.monotonic() + 2 * PATIENCE
    while True:
        try:
            urllib.request.urlopen(url, timeout=PATIENCE).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def first_picture(browser, url: str, drawn: str) -> str:
    """Return how long it takes until a page has drawn its first curve."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    began = time.perf_counter()
    try:
        page.goto(url)
        wait_for(page, drawn, PATIENCE)
        return f"{1e3 * (time.perf_counter() - began):.0f} ms"
    except TimeoutError:
        return f"none in {PATIENCE:.0f} s"
    finally:
        page.close()
