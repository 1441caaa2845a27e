"""The form of logs as text, for programs that are exported."""

import json
from typing import Any

from lox._rows.rows import Rows

# What is kept of a form.
_KEPT = ("time", "ndim", "batch", "tags", "altered")


def serialize(form: tuple) -> bytes:
    keys, forms = form
    fields = [{name: getattr(_formed(own), name) for name in _KEPT} for own in forms]
    return json.dumps([keys, fields]).encode()


def deserialize(text: bytes) -> tuple:
    keys, fields = json.loads(text)
    forms = [Rows(None, {}, **_tuples(own)).form() for own in fields]
    return tuple(keys), tuple(forms)


def _formed(form: tuple) -> Rows:
    return Rows(None, {}, None, {}, None, *form[1:])


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
