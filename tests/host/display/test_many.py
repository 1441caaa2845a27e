"""Very long names in tables, and very many curves in a legend."""

import matplotlib.pyplot as plt

from lox_host.display.columns import Column, fit, room
from lox_host.display.panels import add_legend


def test_a_very_long_name_is_cut_in_its_middle():
    names = ["a" * 299 + "1", "a" * 299 + "2", "short"]
    columns = [Column("RUN", names), Column("STATE", ["ended"] * 3)]
    columns.append(Column("loss", ["1.000"] * 3, numbers=True, rank=1))
    shown = fit(columns, 80)
    assert [column.head for column in shown] == ["RUN", "STATE", "loss"]
    assert room(shown, 80) == 0
    first, second, short = shown[0].cells
    assert (first[-1], second[-1], short) == ("1", "2", "short")
    assert first.count("…") == 1
    # What fits stays whole, and a narrow terminal leaves something to read.
    assert fit([Column("RUN", ["b" * 80])], 80)[0].cells == ["b" * 80]
    assert len(fit(columns, 10)[0].cells[0]) == 24


def test_a_legend_names_a_few_of_many_curves():
    figure, ax = plt.subplots()
    for i in range(100):
        ax.plot([i], [i], label=f"lr={i}")
    add_legend(ax)
    legend = ax.get_legend()
    texts = [text.get_text() for text in legend.get_texts()]
    assert (len(texts), texts[0], texts[-1]) == (12, "lr=0", "lr=99")
    assert legend.get_title().get_text() == "12 of 100 curves"
    plt.close(figure)
