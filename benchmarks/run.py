"""Run all benchmarks; `--write` puts their table into benchmarks/README.md."""

import argparse
import datetime
import os
import pathlib
import platform
import re

import calls
import collected
import jax
import jaxlib
import logged
import reduced
import sharded
import silent
import stored
import streamed
import tracing
import tracked
from _measure import table

README = pathlib.Path(__file__).with_name("README.md")
ENGINE = [silent, collected, reduced, sharded, streamed, calls, tracing]
MODULES = [*ENGINE, logged, stored, tracked]
START, END = "<!-- figures -->", "<!-- end of figures -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="update the README")
    write = parser.parse_args().write
    print(setting())
    sections = [setting()]
    for module in MODULES:
        section = f"### {module.__doc__.strip()}\n\n{table(module.figures())}"
        print(f"\n{section}", flush=True)
        sections.append(section)
    if write:
        README.write_text(updated(README.read_text(), "\n\n".join(sections)))


def setting() -> str:
    return (
        f"{datetime.date.today()}, {processor()}, {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, "
        f"JAX {jax.__version__}, jaxlib {jaxlib.__version__}, "
        f"back end {jax.default_backend()}."
    )


def processor() -> str:
    """Name the processor's model; Linux knows more of it than `platform` says."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text() if info.exists() else ""
    model = re.search(r"model name\s*: (.*)", lines)
    return model[1] if model else platform.processor() or platform.machine()


def updated(text: str, figures: str) -> str:
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{figures}\n{END}{after}"


if __name__ == "__main__":
    main()
