"""Export the page as one file for a paper, a colleague or a notebook.

The file needs no network. It holds the page, its style and its script, and all answers that
the page needs to show the current selection, grouped by any of a few config entries.
Zooming works at the resolution of these answers. Controls that need a server, such as the
filter, are greyed out.

A panel is the same for each way to group its runs, except for the lines of the groups:

    panels     {"loss": {"density": ..., "marks": ..., ...}}
    groupings  {"lr": {"loss": {"groups": [...], ...}}, "": {"loss": ...}}
"""

import base64
import hashlib
import json

from lox_host.view.page import script, single_html, style
from lox_host.view.panel_rows import Json
from lox_host.view.viewer import Viewer

TABLE_KEYS = 8  # the number of keys in the table
GROUPINGS = 4  # the most config entries to group by
MOST = 160  # the most groupings of all panels together, each of about 100 kB
# The fields of a panel that depend on the grouping.
GROUPED = ("groups", "palette", "note", "points")


def export_html(viewer: Viewer, fields: Json | None = None) -> str:
    """Return the page as one file.

    Args:
        viewer: Answers the requests of the page.
        fields: The state of the page: its selected runs and options. None: the state in
            which it opens.
    """
    data = {"state": fields or {}, "answers": answers(viewer, fields or {})}
    # A `<` in the data could end the script element. JSON allows this escape instead.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    code, css = script(), style()
    policy = (
        f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(css)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{css}</style>"
    )
    body = (
        f'<script type="application/json" id="data">{text}</script>\n'
        f"<script>{code}</script>"
    )
    return single_html(head, body)


def answers(viewer: Viewer, fields: Json) -> Json:
    """Return the answers that the page needs, by question and key."""
    overview = viewer.answer("overview", {})
    names = [key["name"] for key in overview["keys"]]
    asked = {"group": overview["group"], **fields}
    panels, groupings = {}, {}
    for group in _groups(overview, asked["group"]):
        found = {
            key: viewer.answer("panel", {**asked, "key": key, "group": group or None})
            for key in names
        }
        groupings[group] = {key: _grouped(panel) for key, panel in found.items()}
        panels = panels or {key: _without_groups(panel) for key, panel in found.items()}
    return {
        "overview": overview,
        "panels": panels,
        "groupings": groupings,
        "table": viewer.answer("table", {**asked, "keys": names[:TABLE_KEYS]}),
        "diverged": viewer.answer("diverged", {}),
    }


def _groups(overview: Json, current: str | None) -> list[str]:
    """Return the config entries to group by, the current one first; "" for none."""
    few = sorted(overview["config"], key=lambda entry: entry["values"])
    names = [entry["name"] for entry in few[:GROUPINGS]]
    found = list(dict.fromkeys([current or "", "", *names]))
    return found[: max(1, MOST // max(1, len(overview["keys"])))]


def _grouped(panel: Json) -> Json:
    """Return what depends on the grouping, with the group of each line."""
    own = {name: panel[name] for name in GROUPED if name in panel}
    return {**own, "line_groups": [line["group"] for line in panel["lines"]]}


def _without_groups(panel: Json) -> Json:
    return {name: value for name, value in panel.items() if name not in GROUPED}


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
