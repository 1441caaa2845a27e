"""How other tools compare, each on the newest JAX that it supports."""

import json
import os
import pathlib
import subprocess

from _measure import grid
from compared import HEADER
from peers import PEERS

ROOT = pathlib.Path(__file__).resolve().parent.parent


def section() -> tuple[str, dict]:
    texts, found = [], {}
    for name in PEERS:
        text, results = peer(name)
        texts.append(text)
        found[name] = results
    return "\n\n".join(texts), found


def peer(name: str) -> tuple[str, list]:
    """Set up the environment of a peer, and measure it there."""
    ready = f".venv-peer-{name}/.ready"
    made = run(["make", "--no-print-directory", ready])
    if made.returncode:
        return f"**{name}** could not be installed: {last_line(made)}", []
    python = ROOT / f".venv-peer-{name}/bin/python"
    version = run([python, "-c", VERSION, name]).stdout.strip()
    measured = run([python, ROOT / "benchmarks/peer.py", name])
    results = [json.loads(line) for line in measured.stdout.splitlines() if line[:1] == "{"]
    if measured.returncode:
        return f"**{name}** {version} does not run: {last_line(measured)}", results
    lines = [cells for result in results for cells in rows(result)]
    setting = f"**{name}** {version}, JAX {results[0]['jax']}"
    return f"{setting}\n\n{grid(['program', *HEADER], lines)}", results


def rows(result: dict) -> list[list[str]]:
    if "error" in result:
        return [[result["case"], result["way"], f"fails: {result['error']}", *[""] * 5]]
    return [[result["case"], *cells] for cells in result["cells"]]


VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def run(command: list) -> subprocess.CompletedProcess:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    environment = {**inherited, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def last_line(done: subprocess.CompletedProcess) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return f"`{lines[-1][:200]}`" if lines else "it says nothing"
