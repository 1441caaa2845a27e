"""A backend of matplotlib with windows that nobody sees.

They are like those of any toolkit, with timers that run while they are open. They are
closed when nothing more comes, and what is in them is then written to a file.
"""

import json
import os
import time
from pathlib import Path

from matplotlib.backend_bases import FigureManagerBase, TimerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

timers: list[TimerBase] = []


class Timer(TimerBase):
    def _timer_start(self):
        timers.append(self)

    def _timer_stop(self):
        timers.remove(self)


class Manager(FigureManagerBase):
    title = ""

    def set_window_title(self, title):
        self.title = title

    @classmethod
    def pyplot_show(cls, *, block=None):
        import matplotlib.pyplot as plt

        manager = plt.get_current_fig_manager()
        while "ended" not in manager.title:
            time.sleep(timers[0].interval / 1000)
            timers[0]._on_timer()
        lines = [
            [axis.tolist() for axis in line.get_data()]
            for ax in manager.canvas.figure.axes
            for line in ax.lines
        ]
        content = {"title": manager.title, "lines": lines}
        Path(os.environ["WINDOW_CONTENT"]).write_text(json.dumps(content))


class FigureCanvas(FigureCanvasAgg):
    manager_class = Manager

    def new_timer(self, interval=None, callbacks=None):
        return Timer(interval=interval, callbacks=callbacks)


FigureManager = Manager
