"""The figures on disk, and what is made of them: tables, a page and pictures."""

import datetime
import json
import os
import pathlib
import platform
import re
import tempfile

import jax
import jaxlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = ROOT / "benchmarks/figures.json"
README = ROOT / "benchmarks/README.md"
PAGE, TEMPLATE = ROOT / "docs/benchmarks.md", ROOT / "benchmarks/page.md"
START, END = "<!-- figures -->", "<!-- end of figures -->"


def keep(name: str, title: str, text: str, data: dict) -> dict:
    """Put the figures of a section in the place of older ones, and return all."""
    figures = kept()
    figures[name] = {"title": title, "setting": setting(), "text": text, "data": data}
    write(FIGURES, json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    return figures


def kept() -> dict:
    return json.loads(FIGURES.read_text()) if FIGURES.exists() else {}


def render(figures: dict, order: list[str]) -> None:
    """Write the tables of all sections that there are figures of."""
    names = [name for name in order if name in figures]
    shared = {figures[name]["setting"] for name in names}
    parts = sorted(shared) if len(shared) == 1 else []
    for name in names:
        own = figures[name]
        parts.append(f"### {own['title']}")
        parts += [own["setting"]] if len(shared) > 1 else []
        parts.append(own["text"])
    write(README, updated(README.read_text(), "\n\n".join(parts)))


def publish() -> None:
    """Put the page into the docs as soon as all of its pictures are there."""
    page = TEMPLATE.read_text()
    pictures = re.findall(r"\((pictures/.*?)\)", page)
    if all((PAGE.parent / picture).exists() for picture in pictures):
        write(PAGE, page)


def updated(text: str, figures: str) -> str:
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{figures}\n{END}{after}"


def write(path: pathlib.Path, text: str) -> None:
    """Write a file whole or not at all, also if it is interrupted."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    pathlib.Path(file.name).chmod(0o644)
    os.replace(file.name, path)


def setting() -> str:
    return (
        f"{datetime.date.today()}, {processor()}, {os.cpu_count()} cores, "
        f"{memory()}{platform.system()}, Python {platform.python_version()}, "
        f"JAX {jax.__version__}, jaxlib {jaxlib.__version__}, "
        f"back end {jax.default_backend()}."
    )


def memory() -> str:
    info = pathlib.Path("/proc/meminfo")
    total = re.search(r"MemTotal:\s*(\d+)", info.read_text()) if info.exists() else None
    return f"{round(int(total[1]) / 2**20)} GiB, " if total else ""


def processor() -> str:
    """Name the processor's model; Linux knows more of it than `platform` says."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text() if info.exists() else ""
    model = re.search(r"model name\s*: (.*)", lines)
    return model[1] if model else platform.processor() or platform.machine()
