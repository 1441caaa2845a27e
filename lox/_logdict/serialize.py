"""The form of logs as text, for programs that are exported."""

import json
from typing import Any

from lox._logdict.sharing import nothing_shared
from lox._rows.rows import Rows

# What is kept of a form.
_KEPT = ("time", "ndim", "batch", "tags", "altered")


def serialize(form: tuple) -> bytes:
    keys, forms, owners = form
    fields = [{name: getattr(_formed(own), name) for name in _KEPT} for own in forms]
    return json.dumps([keys, fields, owners]).encode()


def deserialize(text: bytes) -> tuple:
    keys, fields, *owners = json.loads(text)
    forms = [Rows(None, {}, **_tuples(own)).static_fields() for own in fields]
    # Programs that were exported before keys shared their steps say nothing of owners.
    shared = tuple(map(tuple, owners[0])) if owners else nothing_shared(len(keys))
    return tuple(keys), tuple(forms), shared


def _formed(form: tuple) -> Rows:
    return Rows(None, {}, None, {}, None, *form[1:])


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
