"""Measure what lox costs. With `--write`, update the tables, the page and its pictures."""

import argparse
import inspect
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Whole programs, then how they grow, then the peers, then single parts of lox.
PROGRAMS = [
    "ppo", "transformer", "mlp", "sampler", "evolution", "l-bfgs", "l-bfgs, 8 starts",
    "evaluation", "arrays", "empty loop",
]  # fmt: skip
PARTS = [
    "silent", "reduced", "watched", "recorded", "nans", "sharded", "logged", "stored",
    "tracked", "opened", "calls", "python_loop", "loaded", "started", "remote",
]  # fmt: skip
SECTIONS = [*PROGRAMS, "growth", "peers", *PARTS, "planted"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="update tables and pictures")
    parser.add_argument("--peers", action="store_true", help="also what others offer")
    parser.add_argument("--quick", action="store_true", help="only what the compiler says")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="some sections only")
    args = parser.parse_args()
    if args.quick:
        import quick

        return quick.check_all()
    by_default = [name for name in SECTIONS if name != "peers" or args.peers or args.write]
    names = args.only or by_default
    # One alone is measured here, each of several in a process of its own.
    if len(names) == 1:
        return measure(names[0], write=args.write)
    return each(names, write=args.write)


def each(names: list[str], *, write: bool) -> None:
    """Measure sections one after the other; those that fail do not stop the others."""
    failed = []
    for name in names:
        command = [sys.executable, __file__, "--only", name, *["--write"] * write]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"Not measured: {', '.join(failed)}.")


def measure(name: str, *, write: bool) -> None:
    start = time.perf_counter()
    title, text, data = section(name)
    print(f"\n### {title}\n\n{text}", flush=True)
    print(f"\n({time.perf_counter() - start:.0f} s)", flush=True)
    if write:
        import _pictures
        import _report

        figures = _report.keep(name, title, text, data)
        _report.render(figures, SECTIONS)
        _pictures.draw(figures)
        _report.publish()


def section(name: str) -> tuple[str, str, dict]:
    """The title of a section, its text, and what there is to draw."""
    if name in PROGRAMS:
        import compared

        return name, *compared.section(name)
    if name == "growth":
        import growth

        return first_line(growth), *growth.section()
    if name == "peers":
        import peered

        return first_line(peered), *peered.section()
    if name == "planted":
        import nans

        return nans.PLANTED, nans.named(200), {}
    return part(name)


def part(name: str) -> tuple[str, str, dict]:
    import importlib

    from _measure import table

    module = importlib.import_module(name)
    title, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
    text = "\n\n".join(filter(None, [rest, table(module.figures())]))
    return title, text, {}


def first_line(module) -> str:
    return inspect.cleandoc(module.__doc__).splitlines()[0]


if __name__ == "__main__":
    os.chdir(HERE.parent)
    main()
