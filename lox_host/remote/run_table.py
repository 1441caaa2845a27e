"""The runs of a session as a Parquet table, for programs that are not lox."""

import io
import json
from collections.abc import Sequence
from typing import Any

from lox_host.store import pyarrow


def encode_runs(runs: Sequence[dict[str, Any]]) -> bytes:
    """Return a table with one row per run: its name, its configuration and so on.

    The column `config` is JSON text, as runs may have different entries.

    Args:
        runs: The runs, as the journal describes them.
    """
    pa = pyarrow()
    import pyarrow.parquet as pq

    columns = {
        "run": pa.array([run["name"] for run in runs], pa.string()),
        "run_id": pa.array([run["id"] for run in runs], pa.int32()),
        "group": pa.array([run.get("group", "") for run in runs], pa.string()),
        "tags": pa.array([run.get("tags", []) for run in runs], pa.list_(pa.string())),
        "key": pa.array([run["key"] for run in runs], pa.list_(pa.int64())),
        "start": pa.array([float(run["start"]) for run in runs], pa.float64()),
        "config": pa.array([json.dumps(run["config"]) for run in runs], pa.string()),
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd", store_schema=False)
    return out.getvalue()
