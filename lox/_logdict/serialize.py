"""The form of logs as text, for programs that are exported."""

import json
from typing import Any

from lox._logdict.shared_arrays import nothing_shared
from lox._rows.rows import Rows

# The fields of rows that users can see. Exported programs hold these names.
_KEPT = ("time", "ndim", "batch", "tags", "altered")


def serialize(form: tuple) -> bytes:
    """Write down the form of a `logdict`, see `logdict.tree_flatten`."""
    keys, static_fields, owners = form
    rows = [Rows(None, {}, None, {}, None, *fields) for _, *fields in static_fields]
    kept = [{name: getattr(key_rows, name) for name in _KEPT} for key_rows in rows]
    return json.dumps([keys, kept, owners]).encode()


def deserialize(text: bytes) -> tuple:
    """Read the form of a `logdict`."""
    keys, kept, *owners = json.loads(text)
    forms = [Rows(None, {}, **_tuples(fields)).static_fields() for fields in kept]
    # Programs that were exported before keys shared their steps say nothing of owners.
    shared = tuple(map(tuple, owners[0])) if owners else nothing_shared(len(keys))
    return tuple(keys), tuple(forms), shared


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    # JSON has no tuples.
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
