"""The viewer: a thousand runs of one program, in a browser. NumPy and tornado; no JAX.

    store -- columns.py --> matrices   -- aggregate.py --> means, bands -- panel.py --> JSON
           each byte once   (rows, runs)  density.py       lines, image

A page (the folder `page`) asks a `Viewer` questions over HTTP (`server.py`), or holds the
answers itself (`export.py`). Everything is computed from all runs that are selected, here;
what is sent is what fits on the screen.

Why the page draws by itself: with Bokeh, six panels with a density image, a band and a line
took 2.4 s until they could be seen in headless Chromium on two cores, and the page had
3.6 MB; a canvas drew the same in 0.3 s with some kB of script. Of libraries, the server
(tornado: 5 MB installed, no dependencies, imported in 0.2 s) is what is left.
"""

from lox_host.view.export import export_html as export_html
from lox_host.view.viewer import Viewer as Viewer
