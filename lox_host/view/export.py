"""Export the page as one file for a paper, a colleague or a notebook.

The file needs no network. It holds the page, its style and its script, and all answers that
the page needs to show the current selection. Zooming works at the resolution of these
answers. Controls that need a server, such as the filter, are greyed out.
"""

import base64
import hashlib
import json

from lox_host.view.page import script, single_html, style
from lox_host.view.panel_rows import Json
from lox_host.view.viewer import Viewer

TABLE_KEYS = 8  # the number of keys in the table


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
    panels = {key: viewer.answer("panel", {**asked, "key": key}) for key in names}
    table = viewer.answer("table", {**asked, "keys": names[:TABLE_KEYS]})
    diverged = viewer.answer("diverged", {})
    return {"overview": overview, "panels": panels, "table": table, "diverged": diverged}


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
