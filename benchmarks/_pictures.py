"""Pictures of the figures, for the docs."""

import os
import pathlib
import tempfile

import matplotlib as mpl
from _report import ROOT
from cases import CASES

mpl.use("agg")
import matplotlib.pyplot as plt

FOLDER = ROOT / "docs/pictures"
# Of each way its color; what is not of lox is grey.
COLORS = {
    "no logs": "0.8",
    "by hand": "0.4",
    "jax.debug.callback": "black",
    "lox.spool": "C0",
    'lox.spool(reduce="mean")': "C9",
    "lox.spool(interval=10)": "C4",
    "lox.tap": "C3",
    "lox.tap(batch=100)": "C1",
    "SaveLogger.spool": "C2",
    "SaveLogger.tap(batch=100)": "C8",
}
LABELS = {"time": "time, s", "memory": "memory, bytes", "compiling": "compile time, s"}


def draw(figures: dict) -> None:
    """Draw all that there are figures of."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    programs = {name: figures[name]["data"] for name in CASES if name in figures}
    if programs:
        draw_programs(programs)
    curves = figures.get("growth", {}).get("data", {})
    for axis, curve in curves.items():
        draw_growth(axis, curve)


def draw_programs(programs: dict) -> None:
    """Time without logs is 1: a dot for each way in each program, with its quartiles."""
    figure, axes = plt.subplots(
        figsize=(8, 0.75 * len(programs) + 1.6), layout="constrained"
    )
    shown = [way for way in COLORS if way != "no logs"]
    for row, measured in enumerate(programs.values()):
        for k, way in enumerate(shown):
            low, median, high = measured[way]["to_bare"]
            at = -row - 0.35 + 0.7 * (1 - k / (len(shown) - 1))
            axes.plot([low, high], [at, at], color=COLORS[way])
            label = way if row == 0 else None
            axes.plot(median, at, "o", ms=4, color=COLORS[way], label=label)
    axes.axvline(1, color="0.8", zorder=0)
    axes.set(
        xscale="log", xlabel="time ÷ no logs", yticks=[-i for i in range(len(programs))]
    )
    axes.set_yticklabels(list(programs))
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    save(figure, "programs")


def draw_growth(axis: str, curve: dict) -> None:
    quantities = list(dict.fromkeys(what for way in curve["ways"].values() for what in way))
    figure, panels = plt.subplots(
        1, len(quantities), figsize=(3 * len(quantities) + 2, 3), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for panel, what in zip(panels[0], quantities, strict=True):
        for way, values in curve["ways"].items():
            points = zip(curve["sizes"], values.get(what, []), strict=False)
            points = [(x, y) for x, y in points if y]
            if points:
                label = way if what == quantities[0] else None
                panel.plot(*zip(*points, strict=True), ".-", color=COLORS[way], label=label)
        panel.set(xscale="log", yscale="log", xlabel=axis, title=LABELS.get(what, what))
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    save(figure, f"growth-by-{axis.replace(' ', '-')}")


def save(figure, name: str) -> None:
    """Save a picture whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".png", delete=False) as file:
        figure.savefig(file, dpi=110, metadata={"Software": None})
    pathlib.Path(file.name).chmod(0o644)
    os.replace(file.name, FOLDER / f"{name}.png")
    plt.close(figure)
